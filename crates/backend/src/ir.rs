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

impl Unary {
    /// Whether it exists from one type to another.
    fn fits(self, operand: Dtype, result: Dtype) -> bool {
        match self {
            Self::IsNan | Self::IsInf => result == Dtype::Bool,
            Self::Not => operand == result && !result.is_float(),
            Self::Neg | Self::Abs => operand == result && result != Dtype::Bool,
            _ => operand == result && result.is_float(),
        }
    }
}

impl Binary {
    /// Whether it exists for operands of a type.
    fn takes(self, operand: Dtype) -> bool {
        let bits = matches!(self, Self::And | Self::Or | Self::Xor | Self::Shl | Self::Shr);
        match operand {
            Dtype::Bool => !matches!(
                self,
                Self::Add
                    | Self::Sub
                    | Self::Mul
                    | Self::Div
                    | Self::Rem
                    | Self::Pow
                    | Self::Shl
                    | Self::Shr
            ),
            dtype => !(bits && dtype.is_float()),
        }
    }

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
    /// Whether it reads any node.
    pub fn reads(self) -> bool {
        self.operands().next().is_some()
    }

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
    /// Whether every node and output is well-formed and well-typed.
    ///
    /// # Errors
    /// What the first that is not is.
    pub fn check(&self) -> Result<(), String> {
        for index in 0..self.nodes.len() {
            self.check_node(index)?;
        }
        for output in &self.outputs {
            let Some(node) = self.nodes.get(output.node() as usize) else {
                return Err(format!(
                    "an output takes node {} of {}",
                    output.node(),
                    self.nodes.len()
                ));
            };
            if let Output::Fold(Fold::Count | Fold::Any | Fold::All, _) = output
                && node.dtype != Dtype::Bool
            {
                return Err(format!("{output:?} folds {}, not bool", node.dtype));
            }
        }
        Ok(())
    }

    fn check_node(&self, index: usize) -> Result<(), String> {
        let node = self.nodes[index];
        for operand in node.op.operands() {
            if operand as usize >= index {
                return Err(format!("node {index} reads node {operand}, which comes after it"));
            }
        }
        let of = |id: NodeId| self.nodes[id as usize].dtype;
        let ok = match node.op {
            Op::Input(slot) => self.inputs.get(slot as usize) == Some(&node.dtype),
            Op::Param(slot) => self.params.get(slot as usize) == Some(&node.dtype),
            Op::Index => node.dtype == Dtype::U64,
            Op::Random { key, .. } => {
                node.dtype == Dtype::U32 && self.params.get(key as usize) == Some(&Dtype::U64)
            }
            Op::Unary(op, a) => op.fits(of(a), node.dtype),
            Op::Binary(op, a, b) => {
                let result = if op.compares() { Dtype::Bool } else { of(a) };
                of(a) == of(b) && node.dtype == result && op.takes(of(a))
            }
            Op::Select(c, a, b) => of(c) == Dtype::Bool && of(a) == of(b) && node.dtype == of(a),
            Op::Cast(_) => true,
        };
        if ok { Ok(()) } else { Err(format!("node {index}, {node:?}, does not type-check")) }
    }
}
