//! Metal where it is not: it says so.

use std::sync::Arc;

use crate::apis::{Listed, OpenError};
use crate::seam::Backend;

/// Metal is Apple's own; this build has it not, and no value of this type exists.
#[derive(Clone, Copy, Debug)]
pub enum Metal {}

impl Metal {
    /// # Errors
    /// Always.
    pub fn open(_index: Option<usize>) -> Result<Arc<dyn Backend>, OpenError> {
        Err(Self::absent())
    }

    /// # Errors
    /// Always.
    pub fn list() -> Result<Vec<Listed>, OpenError> {
        Err(Self::absent())
    }

    fn absent() -> OpenError {
        OpenError::new("Metal is on Apple's systems only")
    }
}
