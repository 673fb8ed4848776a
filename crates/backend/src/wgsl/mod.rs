//! Kernels as WGSL: what Vulkan and Metal compile.
//!
//! The one idea: a printed kernel comes with a description of its arguments ([`Word`], [`Slot`]), so
//! that a back end fills them in without knowing what is in the text. Everything that changes
//! between calls (offsets, lengths, scalars) is an argument; a text is compiled once for an
//! expression and a [`Shape`].

mod fold;
mod library;
mod map;
mod print;
pub(crate) mod source;

use crate::dtype::Dtype;
use crate::ir::{Kernel, Output};

pub(crate) use fold::partial_words;

/// 32-bit words of arguments that any device may have: naga counts no more.
pub(crate) const MOST_WORDS: usize = 64;

/// What the language may use on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Features {
    pub(crate) int64: bool,
    pub(crate) float64: bool,
    /// 32-bit words that the arguments of one call may have.
    pub(crate) words: usize,
    /// Invocations of a workgroup.
    pub(crate) group: u32,
}

impl Features {
    /// Whether elements of a type can be computed with. 8 and 16 bits are packed in words.
    pub(crate) fn supports(self, dtype: Dtype) -> bool {
        match dtype {
            Dtype::U64 | Dtype::I64 => self.int64,
            // By its bits as much as by its values.
            Dtype::F64 => self.float64 && self.int64,
            _ => true,
        }
    }
}

/// How a kernel goes over its places.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Shape {
    /// One place an invocation.
    One,
    /// Four places an invocation, loaded and stored as vectors of aligned 4-byte elements.
    Wide,
    /// Four places an invocation that fill whole words of 8- or 16-bit outputs.
    Packed,
    /// Folds: one row an invocation.
    Rows,
    /// Folds: one piece of a row a workgroup.
    Pieces,
    /// Folds: the pieces of one row, a workgroup.
    Join,
}

/// One text of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Variant {
    pub(crate) shape: Shape,
    /// Bit `k` is set where input `k` is shorter and repeats.
    pub(crate) repeats: u8,
}

/// What a word of the arguments holds. Places and rows are those of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    /// Places.
    Len,
    /// The first place, of all of the kernel's.
    PlaceLow,
    PlaceHigh,
    /// Places by which the first group begins before the first place.
    Phase,
    /// Elements from the start of a slot's binding to the first place (or row).
    Offset(usize),
    /// Elements of an input that repeats.
    Modulus(usize),
    /// Which of them the first place takes.
    Start(usize),
    /// The low or high half of a parameter.
    Param(usize, bool),
    /// Rows.
    Rows,
    /// Places of a row.
    RowLen,
    /// Places of a piece.
    PieceLen,
    /// Pieces of a row.
    Pieces,
    /// The place in its row of the first place.
    InRowLow,
    InRowHigh,
    /// 1 where a row has more pieces than one: partial results are stored.
    Parted,
}

/// What is bound at a place of the bind group; the index is the binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    Input(usize),
    Output(usize),
    /// The same output once more, for the words that it shares with its neighbours.
    Edges(usize),
    /// Results of pieces.
    Partials,
    /// Parameters that do not fit among the words.
    Params,
}

/// A kernel's text and what its arguments are.
#[derive(Clone, Debug)]
pub(crate) struct Shader {
    pub(crate) text: String,
    pub(crate) words: Vec<Word>,
    pub(crate) slots: Vec<Slot>,
    /// Invocations of a workgroup.
    pub(crate) group: u32,
}

/// Prints a kernel that has been checked ([`Kernel::check`]).
pub(crate) fn shader(kernel: &Kernel, variant: Variant, features: Features) -> Shader {
    match variant.shape {
        Shape::One | Shape::Wide | Shape::Packed => map::shader(kernel, variant, features),
        Shape::Rows | Shape::Pieces | Shape::Join => fold::shader(kernel, variant, features),
    }
}

/// Whether a kernel's outputs are folds.
pub(crate) fn folds(kernel: &Kernel) -> bool {
    matches!(kernel.outputs.first(), Some(Output::Fold(..)))
}

/// Whether elements of a type share words with their neighbours.
pub(crate) const fn is_packed(dtype: Dtype) -> bool {
    dtype.size() < 4
}

/// Element types that a kernel computes with.
pub(crate) fn needed_types(kernel: &Kernel) -> Vec<Dtype> {
    let needed = print::needed(kernel);
    let nodes = kernel.nodes.iter().zip(&needed).filter(|(_, needed)| **needed);
    let results = (0..kernel.outputs.len()).map(|output| kernel.output_dtype(output));
    nodes.map(|(node, _)| node.dtype).chain(results).collect()
}

/// Which inputs any output depends on.
pub(crate) fn used_inputs(kernel: &Kernel) -> Vec<bool> {
    let needed = print::needed(kernel);
    (0..kernel.inputs.len())
        .map(|slot| {
            let reads = |(node, needed): (&crate::ir::Node, &bool)| {
                *needed && node.op == crate::ir::Op::Input(slot as u8)
            };
            kernel.nodes.iter().zip(&needed).any(reads)
        })
        .collect()
}
