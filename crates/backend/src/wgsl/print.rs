//! Expressions as WGSL: values, loads and stores.

use std::fmt::Write;

use super::{Features, Slot, Word};
use crate::dtype::Dtype;
use crate::ir::{Binary, Kernel, NodeId, Op, Unary};

/// The type in which values are computed.
pub(super) fn value_type(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::Bool => "bool",
        Dtype::U8 | Dtype::U16 | Dtype::U32 => "u32",
        Dtype::I8 | Dtype::I16 | Dtype::I32 => "i32",
        Dtype::U64 => "u64",
        Dtype::I64 => "i64",
        Dtype::F64 => "f64",
        Dtype::F16 | Dtype::Bf16 | Dtype::F32 => "f32",
    }
}

/// The type of a buffer's elements: words where several elements share one.
fn stored_type(dtype: Dtype) -> &'static str {
    if super::is_packed(dtype) { "u32" } else { value_type(dtype) }
}

/// A value of the type's own width, from one of the type that it is computed in.
fn wrapped(dtype: Dtype, value: &str) -> String {
    match dtype {
        Dtype::U8 => format!("(({value}) & 0xffu)"),
        Dtype::U16 => format!("(({value}) & 0xffffu)"),
        Dtype::I8 => format!("((({value}) << 24u) >> 24u)"),
        Dtype::I16 => format!("((({value}) << 16u) >> 16u)"),
        _ => format!("({value})"),
    }
}

/// The nodes that an output needs.
pub(super) fn needed(kernel: &Kernel) -> Vec<bool> {
    let mut needed = vec![false; kernel.nodes.len()];
    for output in &kernel.outputs {
        needed[output.node() as usize] = true;
    }
    for index in (0..kernel.nodes.len()).rev().filter(|&index| kernel.nodes[index].op.reads()) {
        if needed[index] {
            kernel.nodes[index].op.operands().for_each(|id| needed[id as usize] = true);
        }
    }
    needed
}

/// A text under way and the arguments that it has so far.
pub(super) struct Printer<'k> {
    pub(super) kernel: &'k Kernel,
    pub(super) features: Features,
    pub(super) repeats: u8,
    pub(super) text: String,
    pub(super) words: Vec<(Word, String)>,
    pub(super) slots: Vec<Slot>,
    needed: Vec<bool>,
}

impl<'k> Printer<'k> {
    pub(super) fn new(kernel: &'k Kernel, features: Features, repeats: u8) -> Self {
        Self {
            kernel,
            features,
            repeats,
            text: String::new(),
            words: Vec::new(),
            slots: Vec::new(),
            needed: needed(kernel),
        }
    }

    pub(super) fn word(&mut self, word: Word, name: impl Into<String>) {
        self.words.push((word, name.into()));
    }

    pub(super) fn line(&mut self, line: impl AsRef<str>) {
        self.text.push_str(line.as_ref());
        self.text.push('\n');
    }

    /// Inputs that are read.
    pub(super) fn inputs(&self) -> Vec<usize> {
        super::used_inputs(self.kernel)
            .into_iter()
            .enumerate()
            .filter_map(|(slot, used)| used.then_some(slot))
            .collect()
    }

    fn repeats(&self, input: usize) -> bool {
        self.repeats >> input & 1 == 1
    }

    /// Declares a buffer; returns its binding.
    pub(super) fn buffer(&mut self, slot: Slot, access: &str, name: &str, element: &str) {
        let binding = self.slots.len();
        self.slots.push(slot);
        let _ = writeln!(
            self.text,
            "@group(0) @binding({binding}) var<storage, {access}> {name}: array<{element}>;"
        );
    }

    /// Declares the inputs, each with a function that loads one element.
    pub(super) fn load_functions(&mut self) {
        self.load_functions_of(&self.inputs());
    }

    /// The same of those that repeat.
    pub(super) fn load_repeating(&mut self) {
        let repeating: Vec<usize> =
            self.inputs().into_iter().filter(|&input| self.repeats(input)).collect();
        self.load_functions_of(&repeating);
    }

    fn load_functions_of(&mut self, inputs: &[usize]) {
        for &input in inputs {
            let dtype = self.kernel.inputs[input];
            let slot = self.slots.len();
            self.buffer(Slot::Input(input), "read", &format!("i{input}"), stored_type(dtype));
            self.word(Word::Offset(slot), format!("io{input}"));
            let mut at = format!("args.io{input} + i");
            if self.repeats(input) {
                self.word(Word::Modulus(input), format!("im{input}"));
                self.word(Word::Start(input), format!("is{input}"));
                at = format!("args.io{input} + (args.is{input} + i) % args.im{input}");
            }
            let (name, result) = (format!("i{input}"), value_type(dtype));
            let _ = writeln!(
                self.text,
                "fn load_i{input}(i: u32) -> {result} {{\n    let e = {at};\n    return {};\n}}",
                element(dtype, &name)
            );
        }
    }

    /// Declares an output with a function that stores one element; `index` says which.
    pub(super) fn store_functions(&mut self, output: usize) {
        let dtype = self.kernel.output_dtype(output);
        let (name, value) = (format!("o{output}"), value_type(dtype));
        let slot = self.slots.len();
        self.word(Word::Offset(slot), format!("oo{output}"));
        if !super::is_packed(dtype) {
            self.buffer(Slot::Output(output), "read_write", &name, value);
            let _ = writeln!(
                self.text,
                "fn store_o{output}(i: u32, v: {value}) {{\n    {name}[args.oo{output} + i] = v;\n}}"
            );
            return;
        }
        self.buffer(Slot::Output(output), "read_write", &name, "u32");
        self.buffer(Slot::Edges(output), "read_write", &format!("e{output}"), "atomic<u32>");
        let (per_word, bits, mask) = packing(dtype);
        let _ = writeln!(
            self.text,
            "fn bits_o{output}(v: {value}) -> u32 {{\n    return ({}) & {mask};\n}}",
            bits_of(dtype, "v")
        );
        // Each element is one invocation's; the word may be shared with others'. One step that needs
        // the value: clearing the bits first could come before an input's load, where that is of
        // the same memory.
        let _ = writeln!(
            self.text,
            "fn store_o{output}(i: u32, v: {value}) {{
    let e = args.oo{output} + i;
    let shift = (e % {per_word}u) * {bits}u;
    let old = (atomicLoad(&e{output}[e / {per_word}u]) >> shift) & {mask};
    atomicXor(&e{output}[e / {per_word}u], (old ^ bits_o{output}(v)) << shift);
}}"
        );
    }

    /// Declares a function that stores four elements in a row, as words where they fill words.
    pub(super) fn store_four(&mut self, output: usize) {
        let dtype = self.kernel.output_dtype(output);
        let value = value_type(dtype);
        let mut body = String::new();
        if super::is_packed(dtype) {
            let (per_word, bits, _) = packing(dtype);
            let _ = writeln!(body, "    let e = args.oo{output} + i;");
            let _ = writeln!(body, "    if e % {per_word}u == 0u {{");
            for word in 0..4 / per_word {
                let parts: Vec<String> = (0..per_word)
                    .map(|k| format!("bits_o{output}(v{}) << {}u", word * per_word + k, k * bits))
                    .map(|part| format!("({part})"))
                    .collect();
                let sum = parts.join(" | ");
                let _ = writeln!(body, "        o{output}[e / {per_word}u + {word}u] = {sum};");
            }
            body.push_str("        return;\n    }\n");
        }
        for k in 0..4 {
            let _ = writeln!(body, "    store_o{output}(i + {k}u, v{k});");
        }
        let _ = writeln!(
            self.text,
            "fn store4_o{output}(i: u32, v0: {value}, v1: {value}, v2: {value}, v3: {value}) {{\n{body}}}"
        );
    }

    /// Prints `eval`: the values of the outputs' nodes at place `i`, from the inputs' elements.
    pub(super) fn eval_function(&mut self) {
        let mut params = String::from("i: u32");
        for input in self.inputs() {
            let _ = write!(params, ", x{input}: {}", value_type(self.kernel.inputs[input]));
        }
        let draws = self.draws();
        draws.iter().for_each(|(index, ..)| {
            let _ = write!(params, ", r{index}: u32");
        });
        let mut body = String::new();
        for index in 0..self.kernel.nodes.len() {
            if self.needed[index] {
                let value = self.node(index);
                let _ = writeln!(body, "    let v{index} = {value};");
            }
        }
        let mut fields = String::new();
        let mut values = Vec::new();
        for (output, what) in self.kernel.outputs.iter().enumerate() {
            let node = what.node();
            let _ = write!(fields, "v{output}: {}, ", value_type(self.dtype(node)));
            values.push(format!("v{node}"));
        }
        if body.contains("place(i)") || !draws.is_empty() {
            self.word(Word::PlaceLow, "pl");
            self.word(Word::PlaceHigh, "ph");
            self.line("fn place(i: u32) -> vec2<u32> {");
            self.line("    let low = args.pl + i;");
            self.line("    return vec2<u32>(low, args.ph + select(0u, 1u, low < i));\n}");
        }
        let _ = writeln!(self.text, "struct Values {{ {fields}}}");
        let _ = writeln!(
            self.text,
            "fn eval({params}) -> Values {{\n{body}    return Values({});\n}}",
            values.join(", ")
        );
    }

    /// The nodes that are random bits: node, key, stream.
    fn draws(&self) -> Vec<(usize, u16, u8)> {
        let nodes = self.kernel.nodes.iter().zip(&self.needed).enumerate();
        nodes
            .filter_map(|(index, (node, needed))| match node.op {
                Op::Random { key, stream } if *needed => Some((index, key, stream)),
                _ => None,
            })
            .collect()
    }

    /// The random bits of a place, or of the four from it on, as arguments of a call by `name`.
    fn draw_calls(&self, name: &str, place: &str) -> Vec<(usize, String)> {
        self.draws()
            .into_iter()
            .map(|(index, key, stream)| {
                let key = format!("vec2<u32>(PARAMS.p{key}l, PARAMS.p{key}h)");
                (index, format!("{name}(place({place}), {stream}u, {key})"))
            })
            .collect()
    }

    /// A call of `eval` for the place that an expression names.
    pub(super) fn eval_call(&self, place: &str) -> String {
        let mut call = format!("eval({place}");
        for input in self.inputs() {
            let _ = write!(call, ", load_i{input}({place})");
        }
        for (_, draw) in self.draw_calls("random_at", place) {
            let _ = write!(call, ", {draw}");
        }
        call + ")"
    }

    /// Declares the random bits of four places, of which the first is a multiple of 4, as vectors;
    /// returns their names.
    pub(super) fn draw_four(&mut self, place: &str) -> Vec<String> {
        let draws = self.draw_calls("random_four", place);
        for (index, draw) in &draws {
            self.line(format!("    let r{index} = {draw};"));
        }
        draws.into_iter().map(|(index, _)| format!("r{index}")).collect()
    }

    /// The whole text, with its arguments declared.
    pub(super) fn finish(mut self, group: u32) -> super::Shader {
        let params: Vec<usize> = self.used_params();
        let wide = |slot: usize| self.kernel.params[slot].size() == 8;
        let count: usize = params.iter().map(|&slot| 1 + usize::from(wide(slot))).sum();
        if self.words.len() + count <= self.features.words {
            for slot in params {
                self.words.push((Word::Param(slot, false), format!("p{slot}l")));
                if self.kernel.params[slot].size() == 8 {
                    self.words.push((Word::Param(slot, true), format!("p{slot}h")));
                }
            }
            self.text = self.text.replace("PARAMS.", "args.");
        } else {
            // By place in the buffer, two words each.
            for slot in params {
                let low = format!("params[{}]", 2 * slot);
                let high = format!("params[{}]", 2 * slot + 1);
                self.text = self.text.replace(&format!("PARAMS.p{slot}l"), &low);
                self.text = self.text.replace(&format!("PARAMS.p{slot}h"), &high);
            }
            self.buffer(Slot::Params, "read", "params", "u32");
        }
        let fields: String = self.words.iter().map(|(_, name)| format!("{name}: u32, ")).collect();
        let head = if fields.is_empty() {
            String::new()
        } else {
            format!("struct Args {{ {fields}}}\nvar<immediate> args: Args;\n")
        };
        super::Shader {
            text: super::library::link(head + &self.text, self.features.int64),
            words: self.words.into_iter().map(|(word, _)| word).collect(),
            slots: self.slots,
            group,
        }
    }

    fn used_params(&self) -> Vec<usize> {
        let mut used = vec![false; self.kernel.params.len()];
        for (node, needed) in self.kernel.nodes.iter().zip(&self.needed) {
            match node.op {
                Op::Param(slot) | Op::Random { key: slot, .. } if *needed => {
                    used[slot as usize] = true;
                }
                _ => {}
            }
        }
        (0..used.len()).filter(|&slot| used[slot]).collect()
    }

    fn dtype(&self, id: NodeId) -> Dtype {
        self.kernel.nodes[id as usize].dtype
    }

    fn node(&self, index: usize) -> String {
        let node = self.kernel.nodes[index];
        match node.op {
            Op::Input(slot) => format!("x{slot}"),
            Op::Param(slot) => param(node.dtype, slot),
            Op::Index => "u64(place(i).x) | (u64(place(i).y) << 32u)".to_owned(),
            Op::Random { .. } => format!("r{index}"),
            Op::Unary(op, a) => unary(op, self.dtype(a), &format!("v{a}")),
            Op::Binary(op, a, b) => {
                binary(op, self.dtype(a), &format!("v{a}"), &format!("v{b}"), self.features)
            }
            Op::Select(c, a, b) => format!("select(v{b}, v{a}, v{c})"),
            Op::Cast(a) => cast(self.dtype(a), node.dtype, &format!("v{a}")),
        }
    }
}

/// Elements of a word, bits of one, and their mask.
fn packing(dtype: Dtype) -> (usize, usize, &'static str) {
    if dtype.size() == 1 { (4, 8, "0xffu") } else { (2, 16, "0xffffu") }
}

/// Element `e` of a buffer as a value.
fn element(dtype: Dtype, buffer: &str) -> String {
    if !super::is_packed(dtype) {
        return format!("{buffer}[e]");
    }
    let (per_word, bits, mask) = packing(dtype);
    let raw = format!("(({buffer}[e / {per_word}u] >> ((e % {per_word}u) * {bits}u)) & {mask})");
    match dtype {
        Dtype::Bool => format!("{raw} != 0u"),
        Dtype::I8 | Dtype::I16 => wrapped(dtype, &format!("bitcast<i32>({raw})")),
        Dtype::F16 => format!("f16_of({raw})"),
        Dtype::Bf16 => format!("bf16_of({raw})"),
        _ => raw,
    }
}

/// A packed element's bits, in the low bits of a word.
fn bits_of(dtype: Dtype, value: &str) -> String {
    match dtype {
        Dtype::Bool => format!("select(0u, 1u, {value})"),
        Dtype::I8 | Dtype::I16 => format!("bitcast<u32>({value})"),
        Dtype::F16 => format!("f16_bits({value})"),
        Dtype::Bf16 => format!("bf16_bits({value})"),
        _ => value.to_owned(),
    }
}

fn param(dtype: Dtype, slot: u16) -> String {
    let low = format!("PARAMS.p{slot}l");
    let wide = format!("(u64({low}) | (u64(PARAMS.p{slot}h) << 32u))");
    match dtype {
        Dtype::Bool => format!("({low} & 0xffu) != 0u"),
        Dtype::U8 | Dtype::U16 | Dtype::U32 => wrapped(dtype, &low),
        Dtype::I8 | Dtype::I16 | Dtype::I32 => wrapped(dtype, &format!("bitcast<i32>({low})")),
        Dtype::U64 => wide,
        Dtype::I64 => format!("bitcast<i64>({wide})"),
        Dtype::F64 => format!("bitcast<f64>({wide})"),
        Dtype::F32 => format!("bitcast<f32>({low})"),
        Dtype::F16 => format!("f16_of({low} & 0xffffu)"),
        Dtype::Bf16 => format!("bf16_of({low} & 0xffffu)"),
    }
}

/// `f32` or `f64`, for the names of functions.
fn float(dtype: Dtype) -> &'static str {
    value_type(dtype.compute())
}

fn unary(op: Unary, dtype: Dtype, a: &str) -> String {
    let own = |name: &str| format!("{name}_{}({a})", float(dtype));
    let signed = matches!(value_type(dtype), "i32" | "i64");
    match op {
        Unary::Neg if dtype.is_float() => format!("-{a}"),
        Unary::Neg if dtype == Dtype::U64 => format!("(0lu - {a})"),
        Unary::Neg if dtype == Dtype::I64 => format!("(0li - {a})"),
        Unary::Neg if signed => wrapped(dtype, &format!("0 - {a}")),
        Unary::Neg => wrapped(dtype, &format!("0u - {a}")),
        Unary::Abs if dtype == Dtype::I64 => format!("select({a}, 0li - {a}, {a} < 0li)"),
        Unary::Abs if signed => wrapped(dtype, &format!("select({a}, 0 - {a}, {a} < 0)")),
        Unary::Abs if dtype.is_float() => format!("abs({a})"),
        Unary::Abs => a.to_owned(),
        Unary::Not if dtype == Dtype::Bool => format!("!{a}"),
        Unary::Not => wrapped(dtype, &format!("~{a}")),
        Unary::IsNan if dtype.is_float() => own("is_nan"),
        Unary::IsInf if dtype.is_float() => own("is_inf"),
        Unary::IsNan | Unary::IsInf => "false".to_owned(),
        Unary::Sqrt => format!("sqrt({a})"),
        Unary::Rsqrt if dtype == Dtype::F64 => format!("(1.0lf / sqrt({a}))"),
        Unary::Rsqrt => format!("(1.0 / sqrt({a}))"),
        Unary::Floor => format!("floor({a})"),
        Unary::Ceil => format!("ceil({a})"),
        Unary::Round => format!("round({a})"),
        Unary::Exp => own("exp"),
        Unary::Log => own("log"),
        Unary::Log2 => own("log2"),
        Unary::Sin => own("sin"),
        Unary::Cos => own("cos"),
        Unary::Tan => own("tan"),
        Unary::Tanh => own("tanh"),
    }
}

fn binary(op: Binary, dtype: Dtype, a: &str, b: &str, features: Features) -> String {
    let infix = |sign: &str| wrapped(dtype, &format!("{a} {sign} {b}"));
    let call = |name: &str| format!("{name}_{}({a}, {b})", float(dtype));
    let builtin = |name: &str| format!("{name}({a}, {b})");
    let bool_operands = dtype == Dtype::Bool;
    let amount = || {
        let amount = match dtype {
            Dtype::U64 => format!("u32({b} & 63lu)"),
            Dtype::I64 => format!("u32(bitcast<u64>({b}) & 63lu)"),
            _ => format!("u32({b}) & {}u", dtype.size() * 8 - 1),
        };
        format!("({amount})")
    };
    match op {
        Binary::Add => infix("+"),
        Binary::Sub => infix("-"),
        Binary::Mul => infix("*"),
        Binary::Div => infix("/"),
        Binary::Rem if dtype.is_float() => call("rem"),
        // The dividend is what WGSL gives for a divisor of 0.
        Binary::Rem => match value_type(dtype) {
            "u64" => format!("select({a} % {b}, 0lu, {b} == 0lu)"),
            "i64" => format!("select({a} % {b}, 0li, {b} == 0li)"),
            "i32" => format!("select({a} % {b}, 0, {b} == 0)"),
            _ => format!("select({a} % {b}, 0u, {b} == 0u)"),
        },
        Binary::Min | Binary::And if bool_operands => format!("({a} && {b})"),
        Binary::Max | Binary::Or if bool_operands => format!("({a} || {b})"),
        Binary::Min if dtype.is_float() => call("min"),
        Binary::Max if dtype.is_float() => call("max"),
        Binary::Min => builtin("min"),
        Binary::Max => builtin("max"),
        Binary::Pow if dtype.compute() == Dtype::F32 && !features.supports(Dtype::F64) => {
            format!("pow_plain_f32({a}, {b})")
        }
        Binary::Pow if dtype.is_float() => call("pow"),
        Binary::Pow => wrapped(dtype, &format!("pow_{}({a}, {b})", value_type(dtype))),
        Binary::And => format!("({a} & {b})"),
        Binary::Or => format!("({a} | {b})"),
        Binary::Xor if bool_operands => format!("({a} != {b})"),
        Binary::Xor => format!("({a} ^ {b})"),
        Binary::Shl => wrapped(dtype, &format!("{a} << {}", amount())),
        Binary::Shr => format!("({a} >> {})", amount()),
        // `!=` would be false of a NaN.
        Binary::Ne if dtype.is_float() => format!("(!({a} == {b}))"),
        compare => comparison(compare, bool_operands, a, b),
    }
}

fn comparison(op: Binary, bools: bool, a: &str, b: &str) -> String {
    match op {
        // false is less than true.
        Binary::Lt if bools => format!("(!{a} && {b})"),
        Binary::Le if bools => format!("(!{a} || {b})"),
        Binary::Gt if bools => format!("({a} && !{b})"),
        Binary::Ge if bools => format!("({a} || !{b})"),
        Binary::Lt => format!("({a} < {b})"),
        Binary::Le => format!("({a} <= {b})"),
        Binary::Gt => format!("({a} > {b})"),
        Binary::Ge => format!("({a} >= {b})"),
        Binary::Ne => format!("({a} != {b})"),
        _ => format!("({a} == {b})"),
    }
}

/// A literal of a float type.
fn literal(float: &str, value: f64) -> String {
    let suffix = if float == "f64" { "lf" } else { "f" };
    format!("{value:e}{suffix}")
}

fn cast(from: Dtype, to: Dtype, a: &str) -> String {
    let (source, target) = (value_type(from), value_type(to));
    match (source, target) {
        ("bool", "bool") => a.to_owned(),
        ("bool", "f64") => format!("f64(select(0u, 1u, {a}))"),
        ("bool", _) => match to {
            Dtype::F16 | Dtype::Bf16 => format!("f32(select(0u, 1u, {a}))"),
            _ => format!("{target}(select(0u, 1u, {a}))"),
        },
        ("f32" | "f64", "bool") => format!("(!({a} == {}))", literal(source, 0.0)),
        ("u64", "bool") => format!("({a} != 0lu)"),
        ("i64", "bool") => format!("({a} != 0li)"),
        ("i32", "bool") => format!("({a} != 0)"),
        (_, "bool") => format!("({a} != 0u)"),
        ("f32" | "f64", "f32" | "f64") => round_to(to, &format!("{target}({a})")),
        (_, "f32") => round_to(to, &format!("f32({a})")),
        (_, "f64") => format!("f64({a})"),
        ("f32" | "f64", _) => saturated(source, to, a),
        _ => integer(source, to, a),
    }
}

/// An f32 rounded to a 16-bit float's precision.
fn round_to(to: Dtype, value: &str) -> String {
    match to {
        Dtype::F16 => format!("f16_of(f16_bits({value}))"),
        Dtype::Bf16 => format!("bf16_of(bf16_bits({value}))"),
        _ => value.to_owned(),
    }
}

/// A float as an integer: NaN is 0, what is out of range the nearest end of it.
fn saturated(source: &str, to: Dtype, a: &str) -> String {
    let target = value_type(to);
    let bits = to.size() as i32 * 8;
    let signed = matches!(target, "i32" | "i64");
    // The ends as powers of two, which both float types have.
    let above = 2f64.powi(if signed { bits - 1 } else { bits });
    let least = if signed { -above } else { 0.0 };
    let (zero, low, high) = match to {
        Dtype::U8 => ("0u", "0u", "255u"),
        Dtype::U16 => ("0u", "0u", "65535u"),
        Dtype::U32 => ("0u", "0u", "4294967295u"),
        Dtype::U64 => ("0lu", "0lu", "18446744073709551615lu"),
        Dtype::I8 => ("0", "-128", "127"),
        Dtype::I16 => ("0", "-32768", "32767"),
        Dtype::I32 => ("0", "i32(-2147483648)", "2147483647"),
        _ => ("0li", "(-9223372036854775807li - 1li)", "9223372036854775807li"),
    };
    let (least, above) = (literal(source, least), literal(source, above));
    let inside = format!("{a} >= {least} && {a} < {above}");
    let safe = format!("{target}(select({}, {a}, {inside}))", literal(source, 0.0));
    let ends = format!("select({low}, {high}, {a} >= {above})");
    format!("select(select({ends}, {safe}, {inside}), {zero}, is_nan_{source}({a}))")
}

/// An integer as another: the low bits.
fn integer(source: &str, to: Dtype, a: &str) -> String {
    let target = value_type(to);
    // Through the unsigned type of the source's width, extended by the source's sign.
    let value = match (source, target) {
        (same, other) if same == other => a.to_owned(),
        ("u32", "i32") => format!("bitcast<i32>({a})"),
        ("i32", "u32") => format!("bitcast<u32>({a})"),
        ("u64", "i64") => format!("bitcast<i64>({a})"),
        ("i64", "u64") => format!("bitcast<u64>({a})"),
        ("u32", "u64") => format!("u64({a})"),
        ("u32", "i64") => format!("bitcast<i64>(u64({a}))"),
        ("i32", "i64") => format!("i64({a})"),
        ("i32", "u64") => format!("bitcast<u64>(i64({a}))"),
        ("u64", "u32") => format!("u32({a} & 0xfffffffflu)"),
        ("u64", _) => format!("bitcast<i32>(u32({a} & 0xfffffffflu))"),
        ("i64", "u32") => format!("u32(bitcast<u64>({a}) & 0xfffffffflu)"),
        _ => format!("bitcast<i32>(u32(bitcast<u64>({a}) & 0xfffffffflu))"),
    };
    wrapped(to, &value)
}
