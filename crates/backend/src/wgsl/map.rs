//! Kernels whose outputs have a value at every place.

use std::fmt::Write;

use super::print::{Printer, value_type};
use super::{Features, Shader, Shape, Slot, Variant, Word};
use crate::ir::Kernel;

/// The head of an entry point that knows its invocation's number `t` among all.
pub(super) fn entry(group: u32) -> String {
    format!(
        "@compute @workgroup_size({group})
fn main(@builtin(workgroup_id) w: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>,
        @builtin(local_invocation_index) l: u32) {{
    let g = w.y * n.x + w.x;
    let t = g * {group}u + l;"
    )
}

pub(super) fn shader(kernel: &Kernel, variant: Variant, features: Features) -> Shader {
    let mut printer = Printer::new(kernel, features, variant.repeats);
    printer.word(Word::Len, "len");
    match variant.shape {
        Shape::Wide => wide(&mut printer),
        Shape::Packed => packed(&mut printer),
        _ => one(&mut printer),
    }
    printer.finish(features.group)
}

fn one(printer: &mut Printer<'_>) {
    let outputs = printer.kernel.outputs.len();
    printer.load_functions();
    (0..outputs).for_each(|output| printer.store_functions(output));
    printer.eval_function();
    printer.line(entry(printer.features.group));
    printer.line("    if t >= args.len {\n        return;\n    }");
    let call = printer.eval_call("t");
    printer.line(format!("    let v = {call};"));
    for output in 0..outputs {
        printer.line(format!("    store_o{output}(t, v.v{output});"));
    }
    printer.line("}");
}

/// `Len` counts groups of four; what is not repeated is 4 bytes wide and aligned.
fn wide(printer: &mut Printer<'_>) {
    let kernel = printer.kernel;
    let straight: Vec<usize> =
        printer.inputs().into_iter().filter(|input| printer.repeats >> input & 1 == 0).collect();
    printer.load_repeating();
    for &input in &straight {
        let element = format!("vec4<{}>", value_type(kernel.inputs[input]));
        printer.buffer(Slot::Input(input), "read", &format!("i{input}"), &element);
    }
    for output in 0..kernel.outputs.len() {
        let element = format!("vec4<{}>", value_type(kernel.output_dtype(output)));
        printer.buffer(Slot::Output(output), "read_write", &format!("o{output}"), &element);
    }
    printer.eval_function();
    printer.line(entry(printer.features.group));
    printer.line("    if t >= args.len {\n        return;\n    }");
    for &input in &straight {
        printer.line(format!("    let x{input} = i{input}[t];"));
    }
    // Calls begin at multiples of four.
    let draws = printer.draw_four("4u * t");
    for lane in 0..4 {
        let mut call = format!("eval(4u * t + {lane}u");
        for input in printer.inputs() {
            let _ = if straight.contains(&input) {
                write!(call, ", x{input}[{lane}]")
            } else {
                write!(call, ", load_i{input}(4u * t + {lane}u)")
            };
        }
        for draw in &draws {
            let _ = write!(call, ", {draw}[{lane}]");
        }
        printer.line(format!("    let v{lane} = {call});"));
    }
    for output in 0..kernel.outputs.len() {
        let value = value_type(kernel.output_dtype(output));
        let lanes: Vec<String> = (0..4).map(|lane| format!("v{lane}.v{output}")).collect();
        printer.line(format!("    o{output}[t] = vec4<{value}>({});", lanes.join(", ")));
    }
    printer.line("}");
}

/// Groups begin where the words of the first packed output do: `Phase` places before the first.
fn packed(printer: &mut Printer<'_>) {
    let outputs = printer.kernel.outputs.len();
    printer.word(Word::Phase, "phase");
    printer.load_functions();
    for output in 0..outputs {
        printer.store_functions(output);
        printer.store_four(output);
    }
    printer.eval_function();
    printer.line(entry(printer.features.group));
    printer.line("    let first = 4u * t;");
    printer.line("    if first >= args.len + args.phase {\n        return;\n    }");
    printer.line("    if first >= args.phase && first - args.phase + 4u <= args.len {");
    printer.line("        let i = first - args.phase;");
    for lane in 0..4 {
        let call = printer.eval_call(&format!("i + {lane}u"));
        printer.line(format!("        let v{lane} = {call};"));
    }
    for output in 0..outputs {
        let lanes: Vec<String> = (0..4).map(|lane| format!("v{lane}.v{output}")).collect();
        printer.line(format!("        store4_o{output}(i, {});", lanes.join(", ")));
    }
    printer.line("        return;\n    }");
    printer.line("    for (var k = first; k < first + 4u; k += 1u) {");
    printer.line("        if k >= args.phase && k - args.phase < args.len {");
    let call = printer.eval_call("k - args.phase");
    printer.line(format!("            let v = {call};"));
    for output in 0..outputs {
        printer.line(format!("            store_o{output}(k - args.phase, v.v{output});"));
    }
    printer.line("        }\n    }\n}");
}
