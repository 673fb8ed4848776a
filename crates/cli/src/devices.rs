//! `aquifer devices`: what is here, what is not and why.

use std::io::Write;

use aquifer::{Device, format_bytes};
use serde_json::json;

use crate::Failure;
use crate::table::{Side, Table};

pub(crate) fn run(json: bool) -> Result<(), Failure> {
    let entries = Device::list();
    let mut out = std::io::stdout().lock();
    if json {
        let rows: Vec<_> = entries
            .iter()
            .map(|entry| {
                json!({
                    "backend": entry.api,
                    "name": entry.name,
                    "memory": entry.memory,
                    "available": entry.name.is_some(),
                    "reason": entry.reason,
                })
            })
            .collect();
        serde_json::to_writer_pretty(&mut out, &json!({ "devices": rows }))?;
        writeln!(out)?;
        return Ok(());
    }
    let mut table = Table::new(&[
        ("device", Side::Left),
        ("", Side::Left),
        ("memory", Side::Right),
        ("", Side::Left),
    ]);
    for entry in &entries {
        table.row(vec![
            entry.api.to_owned(),
            if entry.name.is_some() { "here" } else { "not here" }.to_owned(),
            entry.memory.map_or_else(String::new, format_bytes),
            entry.name.as_deref().or(entry.reason).unwrap_or_default().to_owned(),
        ]);
    }
    table.print(&mut out)?;
    Ok(())
}
