//! The JSON documents that commands print.

use serde::Serialize;
use serde_json::{Map, Value};

use crate::stats::{Number, Stats};

#[derive(Serialize)]
pub(crate) struct DeviceName {
    pub(crate) name: String,
    pub(crate) backend: String,
}

impl DeviceName {
    pub(crate) fn of(device: &aquifer::Device) -> Self {
        Self { name: device.name().to_owned(), backend: device.backend().to_owned() }
    }
}

#[derive(Serialize)]
pub(crate) struct TensorRow {
    pub(crate) name: String,
    pub(crate) dtype: &'static str,
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: u64,
    pub(crate) origin: String,
    #[serde(flatten)]
    pub(crate) stats: Stats,
}

#[derive(Serialize)]
pub(crate) struct Totals {
    pub(crate) tensors: usize,
    pub(crate) parameters: u64,
    pub(crate) bytes: u64,
    pub(crate) seconds: f64,
}

/// What `inspect` prints.
#[derive(Serialize)]
pub(crate) struct Inspection {
    pub(crate) device: DeviceName,
    pub(crate) tensors: Vec<TensorRow>,
    pub(crate) totals: Totals,
    #[serde(serialize_with = "as_figures")]
    pub(crate) memory: aquifer::MemoryStats,
}

fn as_figures<S: serde::Serializer>(
    stats: &aquifer::MemoryStats,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    memory(stats).serialize(serializer)
}

/// Every figure of the memory, by name.
pub(crate) fn memory(stats: &aquifer::MemoryStats) -> Map<String, Value> {
    stats.figures().into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect()
}

impl Serialize for Number {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match *self {
            Self::Float(value) => serializer.serialize_f64(value),
            Self::Signed(value) => serializer.serialize_i64(value),
            Self::Unsigned(value) => serializer.serialize_u64(value),
        }
    }
}
