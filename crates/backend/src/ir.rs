//! What a kernel computes: a small graph of typed operations, one value an element.
//!
//! The graph is in the order of its operations: a node's operands come before it. Values that
//! change between calls are *parameters*, so that a pipeline is compiled once for an expression.
//! Integer arithmetic wraps; dividing by zero gives the dividend, its remainder 0; shifts take
//! the amount modulo the width. A cast from float to integer saturates, NaN gives 0.

use crate::dtype::Dtype;

/// Names a node of a kernel by its place.
pub type NodeId = u32;

/// Operations of one operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Unary {
    Neg,
    Abs,
    Sqrt,
    Rsqrt,
    Exp,
    Log,
    Log2,
    Sin,
    Cos,
    Tan,
    Tanh,
    Floor,
    Ceil,
    /// To the nearest integer, halves to even.
    Round,
    /// Bits of an integer; the opposite of a bool.
    Not,
    /// To bool.
    IsNan,
    /// To bool.
    IsInf,
}

/// Operations of two operands of one type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Binary {
    Add,
    Sub,
    Mul,
    Div,
    Rem,
    /// The smaller; of a NaN and a number the number.
    Min,
    /// The larger; of a NaN and a number the number.
    Max,
    Pow,
    And,
    Or,
    Xor,
    Shl,
    Shr,
    /// To bool, as the five after it.
    Lt,
    Le,
    Gt,
    Ge,
    Eq,
    Ne,
}

impl Binary {
    /// Whether the result is a bool whatever the operands are.
    pub const fn compares(self) -> bool {
        matches!(self, Self::Lt | Self::Le | Self::Gt | Self::Ge | Self::Eq | Self::Ne)
    }
}

/// What a node does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// The element of an input at this place; a shorter input repeats.
    Input(u8),
    /// The value of a parameter.
    Param(u16),
    /// The place itself, as u64.
    Index,
    /// Random bits of the place, as u32 (Philox 4x32-10): the key is a u64 parameter, `stream`
    /// tells draws of one kernel apart.
    Random {
        /// Parameter that holds the key.
        key: u16,
        /// Which draw.
        stream: u8,
    },
    /// One operand.
    Unary(Unary, NodeId),
    /// Two operands.
    Binary(Binary, NodeId, NodeId),
    /// The second where the first (a bool) is true, else the third.
    Select(NodeId, NodeId, NodeId),
    /// The same value in the node's type.
    Cast(NodeId),
}

impl Op {
    /// The nodes that it reads.
    pub fn operands(self) -> impl Iterator<Item = NodeId> {
        let all = match self {
            Self::Input(_) | Self::Param(_) | Self::Index | Self::Random { .. } => [None; 3],
            Self::Unary(_, a) | Self::Cast(a) => [Some(a), None, None],
            Self::Binary(_, a, b) => [Some(a), Some(b), None],
            Self::Select(a, b, c) => [Some(a), Some(b), Some(c)],
        };
        all.into_iter().flatten()
    }
}

/// One operation and the type of its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    /// The operation.
    pub op: Op,
    /// The type of the value.
    pub dtype: Dtype,
}

/// How values along a row become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fold {
    /// Their sum.
    Sum,
    /// Their product.
    Product,
    /// The least; NaN is passed over.
    Min,
    /// The greatest; NaN is passed over.
    Max,
    /// How many are true, as u64.
    Count,
    /// Whether one is true.
    Any,
    /// Whether all are true.
    All,
    /// The place of the first least, as u64; NaN is passed over.
    ArgMin,
    /// The place of the first greatest, as u64; NaN is passed over.
    ArgMax,
}

impl Fold {
    /// The type of the result for values of `dtype`.
    pub const fn result(self, dtype: Dtype) -> Dtype {
        match self {
            Self::Sum | Self::Product | Self::Min | Self::Max => dtype,
            Self::Count | Self::ArgMin | Self::ArgMax => Dtype::U64,
            Self::Any | Self::All => Dtype::Bool,
        }
    }
}

/// Where a value goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Output {
    /// To the same place of an output array.
    Store(NodeId),
    /// Folded along each row into one element.
    Fold(Fold, NodeId),
}

impl Output {
    /// The node that it takes.
    pub const fn node(self) -> NodeId {
        match self {
            Self::Store(node) | Self::Fold(_, node) => node,
        }
    }
}

/// A whole kernel: the key of a compiled pipeline.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Kernel {
    /// Operations in order.
    pub nodes: Vec<Node>,
    /// Element types of the inputs.
    pub inputs: Vec<Dtype>,
    /// Types of the parameters.
    pub params: Vec<Dtype>,
    /// What is kept of it.
    pub outputs: Vec<Output>,
}

impl Kernel {
    /// Element type of an output array.
    pub fn output_dtype(&self, index: usize) -> Dtype {
        let output = self.outputs[index];
        let dtype = self.nodes[output.node() as usize].dtype;
        match output {
            Output::Store(_) => dtype,
            Output::Fold(fold, _) => fold.result(dtype),
        }
    }
}
