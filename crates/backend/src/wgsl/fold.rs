//! Kernels whose outputs are folds of rows.
//!
//! A row that is short is one invocation's. A long one is cut into pieces, a workgroup each; the
//! pieces' results are stored and joined by a second kernel. How values are joined is fixed by
//! the lengths alone, so that the same input gives the same bits on every run.

use std::fmt::Write;

use super::map::entry;
use super::print::{Printer, value_type};
use super::{Features, Shader, Shape, Slot, Variant, Word};
use crate::dtype::Dtype;
use crate::ir::{Fold, Kernel, Output};

/// Words of one fold's result in a record of a piece: a value and a place.
const RECORD: usize = 4;
/// Bytes of workgroup memory that a kernel takes at most; every device has twice as many.
const SCRATCH: usize = 16 << 10;

/// Words of a piece's record.
pub(crate) fn partial_words(kernel: &Kernel) -> u64 {
    (kernel.outputs.len() * RECORD) as u64
}

/// One fold: what its running result is and how it changes.
struct Step {
    index: usize,
    fold: Fold,
    dtype: Dtype,
    /// Type of the running value.
    value: &'static str,
}

fn steps(kernel: &Kernel, features: Features) -> Vec<Step> {
    let outputs = kernel.outputs.iter().enumerate();
    outputs
        .filter_map(|(index, output)| {
            let Output::Fold(fold, node) = *output else { return None };
            let dtype = kernel.nodes[node as usize].dtype;
            let value = match fold {
                Fold::Count => "u64",
                Fold::Any | Fold::All => "bool",
                // Rounded once, at the end, as on the CPU.
                Fold::Sum | Fold::Product if dtype.is_float() && features.supports(Dtype::F64) => {
                    "f64"
                }
                Fold::ArgMin | Fold::ArgMax if dtype == Dtype::Bool => "u32",
                _ => value_type(dtype),
            };
            Some(Step { index, fold, dtype, value })
        })
        .collect()
}

fn zero(value: &str) -> &'static str {
    match value {
        "bool" => "false",
        "u32" => "0u",
        "i32" => "0",
        "u64" => "0lu",
        "i64" => "0li",
        "f64" => "0.0lf",
        _ => "0.0",
    }
}

fn one(value: &str) -> &'static str {
    match value {
        "u32" => "1u",
        "i32" => "1",
        "u64" => "1lu",
        "i64" => "1li",
        "f64" => "1.0lf",
        _ => "1.0",
    }
}

/// No place yet.
const NOWHERE: &str = "0xfffffffffffffffflu";

impl Step {
    fn has_place(&self) -> bool {
        matches!(self.fold, Fold::ArgMin | Fold::ArgMax)
    }

    /// Whether a sum of f32 keeps what it lost, where there is no f64.
    fn compensates(&self) -> bool {
        self.fold == Fold::Sum && self.value == "f32"
    }

    fn fields(&self) -> String {
        let (i, value) = (self.index, self.value);
        let mut fields = format!("a{i}: {value}, ");
        if self.has_place() {
            let _ = write!(fields, "p{i}: u64, ");
        }
        if self.compensates() {
            let _ = write!(fields, "c{i}: f32, ");
        }
        fields
    }

    fn start(&self) -> String {
        let value = match (self.fold, self.value) {
            (Fold::All, _) | (Fold::Min, "bool") => "true".to_owned(),
            (Fold::Product, value) => one(value).to_owned(),
            (Fold::Min | Fold::Max, "f32") => "nan_f32()".to_owned(),
            (Fold::Min | Fold::Max, "f64") => "nan_f64()".to_owned(),
            (Fold::Min, "u32") => "0xffffffffu".to_owned(),
            (Fold::Min, "i32") => "2147483647".to_owned(),
            (Fold::Max, "i32") => "i32(-2147483648)".to_owned(),
            (Fold::Min, "u64") => NOWHERE.to_owned(),
            (Fold::Min, "i64") => "9223372036854775807li".to_owned(),
            (Fold::Max, "i64") => "(-9223372036854775807li - 1li)".to_owned(),
            (_, value) => zero(value).to_owned(),
        };
        let place = if self.has_place() { format!(", {NOWHERE}") } else { String::new() };
        let lost = if self.compensates() { ", 0.0" } else { "" };
        format!("{value}{place}{lost}")
    }

    /// Statements that join `b`'s result to `r`.
    fn join(&self) -> String {
        let (i, value) = (self.index, self.value);
        let (a, b) = (format!("r.a{i}"), format!("b.a{i}"));
        let float = matches!(value, "f32" | "f64");
        match self.fold {
            Fold::Sum if self.compensates() => {
                // Neumaier's sum.
                format!(
                    "let s{i} = {a} + {b};
    let l{i} = select(({b} - s{i}) + {a}, ({a} - s{i}) + {b}, abs({a}) >= abs({b}));
    r.c{i} = r.c{i} + b.c{i} + select(l{i}, 0.0, is_inf_f32(s{i}) || is_nan_f32(s{i}));
    {a} = s{i};"
                )
            }
            Fold::Sum | Fold::Count => format!("{a} = {a} + {b};"),
            Fold::Product => format!("{a} = {a} * {b};"),
            Fold::Any => format!("{a} = {a} || {b};"),
            Fold::All => format!("{a} = {a} && {b};"),
            Fold::Min if value == "bool" => format!("{a} = {a} && {b};"),
            Fold::Max if value == "bool" => format!("{a} = {a} || {b};"),
            Fold::Min if float => format!("{a} = min_{value}({a}, {b});"),
            Fold::Max if float => format!("{a} = max_{value}({a}, {b});"),
            Fold::Min => format!("{a} = min({a}, {b});"),
            Fold::Max => format!("{a} = max({a}, {b});"),
            Fold::ArgMin | Fold::ArgMax => {
                let sign = if self.fold == Fold::ArgMin { "<" } else { ">" };
                format!(
                    "if b.p{i} != {NOWHERE} && (r.p{i} == {NOWHERE} || {b} {sign} {a}
        || ({b} == {a} && b.p{i} < r.p{i})) {{
        {a} = {b};
        r.p{i} = b.p{i};
    }}"
                )
            }
        }
    }

    /// The result of one value `v` at place `at` of its row.
    fn single(&self) -> String {
        let i = self.index;
        let v = format!("v.v{i}");
        let value = match (self.fold, self.value) {
            (Fold::Count, _) => format!("select(0lu, 1lu, {v})"),
            (_, "u32") if self.dtype == Dtype::Bool => format!("select(0u, 1u, {v})"),
            (Fold::Sum | Fold::Product, "f64") => format!("f64({v})"),
            _ => v.clone(),
        };
        let place = match (self.has_place(), self.value) {
            (false, _) => String::new(),
            (true, "f32" | "f64") => {
                format!(", select(at, {NOWHERE}, is_nan_{}({v}))", self.value)
            }
            _ => ", at".to_owned(),
        };
        let lost = if self.compensates() { ", 0.0" } else { "" };
        format!("{value}{place}{lost}")
    }

    /// What the output's element is in the end.
    fn result(&self) -> String {
        let i = self.index;
        match (self.fold, self.value) {
            (Fold::ArgMin | Fold::ArgMax, _) => {
                format!("select(r.p{i}, 0lu, r.p{i} == {NOWHERE})")
            }
            (Fold::Sum, "f32") => format!("r.a{i} + r.c{i}"),
            (Fold::Sum | Fold::Product, "f64") => {
                format!("{}(r.a{i})", value_type(self.dtype))
            }
            _ => format!("r.a{i}"),
        }
    }

    /// The two words of the running value and the two of its place (or of what it lost).
    fn words(&self) -> [String; 4] {
        let a = format!("r.a{}", self.index);
        let split =
            |wide: String| [format!("u32({wide} & 0xfffffffflu)"), format!("u32({wide} >> 32u)")];
        let [low, high] = match self.value {
            "bool" => [format!("select(0u, 1u, {a})"), "0u".to_owned()],
            "u32" => [a, "0u".to_owned()],
            "i32" | "f32" => [format!("bitcast<u32>({a})"), "0u".to_owned()],
            "u64" => split(a),
            _ => split(format!("bitcast<u64>({a})")),
        };
        let [third, fourth] = if self.has_place() {
            split(format!("r.p{}", self.index))
        } else if self.compensates() {
            [format!("bitcast<u32>(r.c{})", self.index), "0u".to_owned()]
        } else {
            ["0u".to_owned(), "0u".to_owned()]
        };
        [low, high, third, fourth]
    }

    /// The running result that the words from `w` on hold.
    fn restored(&self) -> String {
        let at = |word: usize| format!("partials[w + {}u]", self.index * RECORD + word);
        let wide = |low: usize| format!("(u64({}) | (u64({}) << 32u))", at(low), at(low + 1));
        let value = match self.value {
            "bool" => format!("{} != 0u", at(0)),
            "u32" => at(0),
            "i32" | "f32" => format!("bitcast<{}>({})", self.value, at(0)),
            "u64" => wide(0),
            other => format!("bitcast<{other}>({})", wide(0)),
        };
        let place = if self.has_place() { format!(", {}", wide(2)) } else { String::new() };
        let lost = match self.compensates() {
            true => format!(", bitcast<f32>({})", at(2)),
            false => String::new(),
        };
        format!("{value}{place}{lost}")
    }
}

/// Invocations of a workgroup, so that their results fit its memory.
fn group(steps: &[Step], features: Features) -> u32 {
    let each: usize = steps.iter().map(|_| 24).sum();
    let mut group = features.group;
    while group > 32 && group as usize * each > SCRATCH {
        group /= 2;
    }
    group
}

pub(super) fn shader(kernel: &Kernel, variant: Variant, features: Features) -> Shader {
    let steps = steps(kernel, features);
    let group = match variant.shape {
        Shape::Rows => features.group,
        _ => group(&steps, features),
    };
    let mut printer = Printer::new(kernel, features, variant.repeats);
    printer.word(Word::Rows, "rows");
    if variant.shape != Shape::Join {
        printer.word(Word::RowLen, "row_len");
        printer.load_functions();
    }
    (0..kernel.outputs.len()).for_each(|output| printer.store_functions(output));
    if variant.shape != Shape::Rows {
        let slot = printer.slots.len();
        printer.word(Word::Offset(slot), "first_partial");
        printer.word(Word::Pieces, "pieces");
        printer.buffer(Slot::Partials, "read_write", "partials", "u32");
    }
    results(&mut printer, &steps);
    match variant.shape {
        Shape::Rows => rows(&mut printer, group),
        Shape::Pieces => pieces(&mut printer, &steps, group),
        _ => join(&mut printer, &steps, group),
    }
    printer.finish(group)
}

/// The running results and what is done with them.
fn results(printer: &mut Printer<'_>, steps: &[Step]) {
    let list = |part: &dyn Fn(&Step) -> String, separator: &str| {
        steps.iter().map(part).collect::<Vec<_>>().join(separator)
    };
    printer.line(format!("struct Results {{ {}}}", list(&Step::fields, "")));
    printer.line(format!(
        "fn start() -> Results {{\n    return Results({});\n}}",
        list(&Step::start, ", ")
    ));
    printer.line(format!(
        "fn joined(a: Results, b: Results) -> Results {{\n    var r = a;\n    {}\n    return r;\n}}",
        list(&Step::join, "\n    ")
    ));
    let stores = list(&|step| format!("    store_o{}(row, {});", step.index, step.result()), "\n");
    printer.line(format!("fn store_results(row: u32, r: Results) {{\n{stores}\n}}"));
}

/// The values of a place, as results of their own.
fn single(printer: &mut Printer<'_>, steps: &[Step]) {
    let singles: Vec<String> = steps.iter().map(Step::single).collect();
    let place = if steps.iter().any(Step::has_place) { ", at: u64" } else { "" };
    printer.line(format!(
        "fn single(v: Values{place}) -> Results {{\n    return Results({});\n}}",
        singles.join(", ")
    ));
}

fn rows(printer: &mut Printer<'_>, group: u32) {
    let steps = steps(printer.kernel, printer.features);
    printer.eval_function();
    single(printer, &steps);
    let call = printer.eval_call("t * args.row_len + k");
    let at = if steps.iter().any(Step::has_place) { ", u64(k)" } else { "" };
    printer.line(entry(group));
    printer.line("    if t >= args.rows {\n        return;\n    }");
    printer.line("    var r = start();");
    printer.line("    for (var k = 0u; k < args.row_len; k += 1u) {");
    printer.line(format!("        r = joined(r, single({call}{at}));"));
    printer.line("    }\n    store_results(t, r);\n}");
}

/// Joins the results of a workgroup's invocations, in a tree.
fn tree(printer: &mut Printer<'_>, group: u32) {
    printer.line("    scratch[l] = r;\n    workgroupBarrier();");
    printer.line(format!("    for (var half = {}u; half > 0u; half = half / 2u) {{", group / 2));
    printer.line("        if l < half {");
    printer.line("            scratch[l] = joined(scratch[l], scratch[l + half]);");
    printer.line("        }\n        workgroupBarrier();\n    }");
}

fn pieces(printer: &mut Printer<'_>, steps: &[Step], group: u32) {
    printer.word(Word::PieceLen, "piece_len");
    printer.word(Word::Parted, "parted");
    let placed = steps.iter().any(Step::has_place);
    if placed {
        printer.word(Word::InRowLow, "in_row_low");
        printer.word(Word::InRowHigh, "in_row_high");
    }
    printer.eval_function();
    single(printer, steps);
    let records = steps.len() * RECORD;
    let mut body = String::new();
    for step in steps {
        for (word, value) in step.words().iter().enumerate() {
            let at = step.index * RECORD + word;
            let _ = writeln!(body, "    partials[w + {at}u] = {value};");
        }
    }
    printer.line(format!("fn store_partial(w: u32, r: Results) {{\n{body}}}"));
    printer.line(format!("var<workgroup> scratch: array<Results, {group}>;"));
    printer.line(entry(group));
    printer.line("    if g >= args.rows * args.pieces {\n        return;\n    }");
    printer.line("    let row = g / args.pieces;\n    let piece = g % args.pieces;");
    printer.line("    let end = min((piece + 1u) * args.piece_len, args.row_len);");
    if placed {
        printer.line("    let before = u64(args.in_row_low) | (u64(args.in_row_high) << 32u);");
    }
    printer.line("    var r = start();");
    printer
        .line(format!("    for (var k = piece * args.piece_len + l; k < end; k += {group}u) {{"));
    let call = printer.eval_call("row * args.row_len + k");
    let at = if placed { ", before + u64(k)" } else { "" };
    printer.line(format!("        r = joined(r, single({call}{at}));\n    }}"));
    tree(printer, group);
    printer.line("    if l == 0u {\n        if args.parted == 0u {");
    printer.line("            store_results(row, scratch[0]);\n        } else {");
    // The first is given in words: where a call's records begin need not be a record's multiple.
    printer.line(format!(
        "            let w = args.first_partial + (row * args.pieces + piece) * {records}u;"
    ));
    printer.line("            store_partial(w, scratch[0]);");
    printer.line("        }\n    }\n}");
}

fn join(printer: &mut Printer<'_>, steps: &[Step], group: u32) {
    let records = steps.len() * RECORD;
    let values: Vec<String> = steps.iter().map(Step::restored).collect();
    printer.line(format!(
        "fn load_partial(w: u32) -> Results {{\n    return Results({});\n}}",
        values.join(", ")
    ));
    printer.line(format!("var<workgroup> scratch: array<Results, {group}>;"));
    printer.line(entry(group));
    printer.line("    if g >= args.rows {\n        return;\n    }\n    var r = start();");
    printer.line(format!("    for (var k = l; k < args.pieces; k += {group}u) {{"));
    printer
        .line(format!("        let w = args.first_partial + (g * args.pieces + k) * {records}u;"));
    printer.line("        r = joined(r, load_partial(w));\n    }");
    tree(printer, group);
    printer.line("    if l == 0u {\n        store_results(g, scratch[0]);\n    }\n}");
}
