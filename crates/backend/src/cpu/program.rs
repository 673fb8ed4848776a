//! An expression made ready to run: steps over registers.
//!
//! The one idea: a chunk of places goes through all steps before the next chunk starts, so an
//! expression of any length reads its inputs and writes its outputs once, and everything between
//! stays in the first-level cache. Inputs are read where they lie, the last step writes where
//! the result belongs; 16-bit floats are widened and narrowed at the ends.

use crate::dtype::Dtype;
use crate::ir::{Binary, Fold, Kernel, Node, NodeId, Op, Output, Unary};
use crate::seam::CompileError;

/// Where an operand is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Register(usize),
    Input(usize),
    Param(usize),
}

/// Where a result goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Register(usize),
    Output(usize),
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Action {
    Index,
    Random {
        key: usize,
        stream: u8,
    },
    Unary(Unary, Source),
    Binary(Binary, Source, Source),
    /// Two operations in a row, each with a parameter as its second operand.
    Pair([Binary; 2], Source, [usize; 2]),
    Select(Source, Source, Source),
    Cast(Source),
    /// A 16-bit float of an input or a parameter becomes f32.
    Widen(Source),
    /// f32 becomes the output's 16-bit float.
    Narrow(Source),
    /// The same value, to where it belongs.
    Copy(Source),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) action: Action,
    /// Type of the operands (of the second and third of a select).
    pub(super) operand: Dtype,
    /// Type of the result.
    pub(super) result: Dtype,
    pub(super) target: Target,
}

/// A fold of a value at the end of each chunk.
#[derive(Clone, Copy, Debug)]
pub(super) struct FoldStep {
    pub(super) fold: Fold,
    pub(super) dtype: Dtype,
    pub(super) source: Source,
    /// Index among the kernel's outputs.
    pub(super) output: usize,
}

#[derive(Debug)]
pub(super) struct Program {
    pub(super) kernel: Kernel,
    pub(super) steps: Vec<Step>,
    pub(super) folds: Vec<FoldStep>,
    pub(super) registers: usize,
    /// Which inputs any output depends on.
    pub(super) uses_input: Vec<bool>,
}

/// Operations that two of which run as one loop.
fn pairs(op: Binary) -> bool {
    matches!(op, Binary::Add | Binary::Sub | Binary::Mul | Binary::Min | Binary::Max)
}

/// The operation and the parameter of a node that may be half of a pair, and its first operand.
fn half(kernel: &Kernel, index: usize) -> Option<(Binary, NodeId, usize)> {
    let Node { op: Op::Binary(op, a, b), dtype } = kernel.nodes[index] else { return None };
    let Op::Param(slot) = kernel.nodes[b as usize].op else { return None };
    let float = matches!(dtype, Dtype::F32 | Dtype::F64);
    (float && pairs(op)).then_some((op, a, slot as usize))
}

/// For each node the node before it that runs in the same loop, as a pair: one that nothing else
/// reads.
fn find_pairs(kernel: &Kernel) -> Vec<Option<NodeId>> {
    let mut readers = vec![0; kernel.nodes.len()];
    for node in &kernel.nodes {
        node.op.operands().for_each(|id| readers[id as usize] += 1);
    }
    kernel.outputs.iter().for_each(|output| readers[output.node() as usize] += 1);
    let mut first = vec![None; kernel.nodes.len()];
    for index in 0..kernel.nodes.len() {
        if let Some((_, before, _)) = half(kernel, index)
            && readers[before as usize] == 1
            && first[before as usize].is_none()
            && half(kernel, before as usize).is_some()
        {
            first[index] = Some(before);
        }
    }
    first
}

/// Which nodes an output needs, and the last node that reads each.
fn find_uses(kernel: &Kernel, first: &[Option<NodeId>]) -> (Vec<bool>, Vec<usize>) {
    let count = kernel.nodes.len();
    let mut last_use = vec![0; count];
    let mut needed = vec![false; count];
    for output in &kernel.outputs {
        let node = output.node() as usize;
        (needed[node], last_use[node]) = (true, usize::MAX);
    }
    for index in (0..count).rev().filter(|&index| kernel.nodes[index].op.operands().count() > 0) {
        if needed[index] {
            for id in kernel.nodes[index].op.operands() {
                needed[id as usize] = true;
                last_use[id as usize] = last_use[id as usize].max(index);
            }
            // What the first half of a pair reads is read where the pair runs.
            let read = first[index].map(|id| kernel.nodes[id as usize].op.operands());
            for id in read.into_iter().flatten() {
                last_use[id as usize] = last_use[id as usize].max(index);
            }
        }
    }
    (needed, last_use)
}

struct Compiler<'k> {
    kernel: &'k Kernel,
    /// The first half of a node's pair.
    first: Vec<Option<NodeId>>,
    /// The last step that reads a node; steps are numbered by node.
    last_use: Vec<usize>,
    source: Vec<Option<Source>>,
    steps: Vec<Step>,
    spare: Vec<usize>,
    registers: usize,
}

impl Compiler<'_> {
    fn register(&mut self) -> usize {
        self.spare.pop().unwrap_or_else(|| {
            self.registers += 1;
            self.registers - 1
        })
    }

    fn source(&self, id: NodeId) -> Source {
        self.source[id as usize].expect("operands come before what reads them")
    }

    /// Registers of operands that nothing after `index` reads are free for the step after it.
    fn release(&mut self, index: usize) {
        let own = self.kernel.nodes[index].op.operands();
        let paired = self.first[index].map(|id| self.kernel.nodes[id as usize].op.operands());
        for id in own.chain(paired.into_iter().flatten()).collect::<Vec<_>>() {
            if self.last_use[id as usize] == index
                && let Some(Source::Register(register)) = self.source[id as usize]
                && !self.spare.contains(&register)
            {
                self.spare.push(register);
            }
        }
    }

    fn node(&mut self, index: usize, output: Option<usize>) {
        let node = self.kernel.nodes[index];
        let widened = matches!(node.dtype, Dtype::F16 | Dtype::Bf16);
        let mut operand = node.dtype;
        let action = match node.op {
            Op::Input(slot) if widened => Action::Widen(Source::Input(slot as usize)),
            Op::Input(slot) => {
                self.source[index] = Some(Source::Input(slot as usize));
                return;
            }
            Op::Param(slot) if widened => Action::Widen(Source::Param(slot as usize)),
            Op::Param(slot) => {
                self.source[index] = Some(Source::Param(slot as usize));
                return;
            }
            Op::Index => Action::Index,
            Op::Random { key, stream } => Action::Random { key: key as usize, stream },
            Op::Unary(op, a) => {
                operand = self.kernel.nodes[a as usize].dtype;
                Action::Unary(op, self.source(a))
            }
            Op::Binary(op, a, b) => {
                operand = self.kernel.nodes[a as usize].dtype;
                let halves = self.first[index].and_then(|first| {
                    Some((half(self.kernel, first as usize)?, half(self.kernel, index)?))
                });
                match halves {
                    Some(((one, source, p), (two, _, q))) => {
                        Action::Pair([one, two], self.source(source), [p, q])
                    }
                    None => Action::Binary(op, self.source(a), self.source(b)),
                }
            }
            Op::Select(c, a, b) => Action::Select(self.source(c), self.source(a), self.source(b)),
            Op::Cast(a) => {
                operand = self.kernel.nodes[a as usize].dtype;
                Action::Cast(self.source(a))
            }
        };
        // The result's register is taken before the operands' are given up: a step never writes
        // what it reads.
        let target = match output {
            Some(output) => Target::Output(output),
            None => {
                let register = self.register();
                self.source[index] = Some(Source::Register(register));
                Target::Register(register)
            }
        };
        self.release(index);
        self.steps.push(Step { action, operand, result: node.dtype, target });
    }
}

impl Program {
    /// Orders the operations, gives them registers, and drops what no output needs.
    pub(super) fn compile(kernel: &Kernel) -> Result<Self, CompileError> {
        let count = kernel.nodes.len();
        kernel.check().map_err(CompileError::new)?;
        let first = find_pairs(kernel);
        let (needed, last_use) = find_uses(kernel, &first);
        let mut in_pair = vec![false; count];
        first.iter().flatten().for_each(|&id| in_pair[id as usize] = true);
        let mut compiler = Compiler {
            kernel,
            first,
            last_use,
            source: vec![None; count],
            steps: Vec::new(),
            spare: Vec::new(),
            registers: 0,
        };
        for index in (0..count).filter(|&index| needed[index] && !in_pair[index]) {
            compiler.node(index, sole_store(kernel, index));
        }
        let mut folds = Vec::new();
        for (output, what) in kernel.outputs.iter().enumerate() {
            let dtype = kernel.nodes[what.node() as usize].dtype;
            match (*what, compiler.source[what.node() as usize]) {
                (Output::Fold(fold, _), Some(source)) => {
                    folds.push(FoldStep { fold, dtype, source, output });
                }
                (Output::Store(_), Some(source)) => {
                    let narrow = matches!(dtype, Dtype::F16 | Dtype::Bf16);
                    let action = if narrow { Action::Narrow(source) } else { Action::Copy(source) };
                    let target = Target::Output(output);
                    compiler.steps.push(Step { action, operand: dtype, result: dtype, target });
                }
                // Its step writes the output itself.
                (_, None) => {}
            }
        }
        let uses = |slot: usize| {
            let reads =
                |(node, needed): (&Node, &bool)| *needed && node.op == Op::Input(slot as u8);
            kernel.nodes.iter().zip(&needed).any(reads)
        };
        Ok(Self {
            uses_input: (0..kernel.inputs.len()).map(uses).collect(),
            kernel: kernel.clone(),
            steps: compiler.steps,
            folds,
            registers: compiler.registers,
        })
    }
}

/// The output that a node's step may write itself: the only one that takes the node, when no
/// other node reads it and it is stored as it is computed.
fn sole_store(kernel: &Kernel, index: usize) -> Option<usize> {
    let id = index as NodeId;
    if matches!(kernel.nodes[index].dtype, Dtype::F16 | Dtype::Bf16)
        || matches!(kernel.nodes[index].op, Op::Input(_) | Op::Param(_))
        || kernel.nodes.iter().any(|node| node.op.operands().any(|operand| operand == id))
    {
        return None;
    }
    let mut takers = (0..kernel.outputs.len()).filter(|&at| kernel.outputs[at].node() == id);
    let first = takers.next()?;
    let stored = matches!(kernel.outputs[first], Output::Store(_));
    (stored && takers.next().is_none()).then_some(first)
}
