//! Labels: who allocates (rule D.4).

use std::cell::{Cell, RefCell};
use std::fmt;
use std::marker::PhantomData;

use aquifer_core::LabelId;

use crate::device::Device;

thread_local! {
    /// Labels in force on this thread, the innermost last, with the device each is for.
    static LABELS: RefCell<Vec<(u64, LabelId)>> = const { RefCell::new(Vec::new()) };
    /// How many there are: nearly always none, and then nothing else is looked at.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// While it lives, what this thread allocates on the device is counted under its name. It stays
/// on its thread; guards end in the reverse order of their making.
#[must_use = "a label counts only while it lives"]
pub struct Label {
    depth: usize,
    /// Not `Send`: it belongs to this thread's stack of labels.
    thread: PhantomData<*const ()>,
}

impl Label {
    pub(crate) fn new(device: &Device, name: &str) -> Self {
        let parent = current(device);
        let id = device.pool().label(parent, name);
        let depth = LABELS.with_borrow_mut(|labels| {
            labels.push((device.0.id, id));
            DEPTH.set(labels.len());
            labels.len()
        });
        Self { depth, thread: PhantomData }
    }
}

impl Drop for Label {
    fn drop(&mut self) {
        // Guards dropped out of order end those inside them too.
        let _ = LABELS.try_with(|labels| {
            let mut labels = labels.borrow_mut();
            let depth = labels.len().min(self.depth - 1);
            labels.truncate(depth);
            DEPTH.set(depth);
        });
    }
}

impl fmt::Debug for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Label").field("depth", &self.depth).finish()
    }
}

/// The label in force on this thread for a device.
#[inline]
pub(crate) fn current(device: &Device) -> LabelId {
    if DEPTH.get() == 0 {
        return LabelId::default();
    }
    LABELS
        .try_with(|labels| {
            let labels = labels.borrow();
            let found = labels.iter().rev().find(|(id, _)| *id == device.0.id);
            found.map_or(LabelId::default(), |(_, label)| *label)
        })
        .unwrap_or_default()
}
