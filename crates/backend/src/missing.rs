//! Back ends that are not in this build, and why.

/// A back end that cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Absent {
    /// The API's name, as `AQUIFER_DEVICE` takes it.
    pub api: &'static str,
    /// Why it is not here.
    pub reason: &'static str,
}

/// What this build does not have.
pub fn absent() -> &'static [Absent] {
    &[
        Absent { api: "metal", reason: "this build has no Metal back end" },
        Absent { api: "cuda", reason: "this build has no CUDA back end" },
    ]
}
