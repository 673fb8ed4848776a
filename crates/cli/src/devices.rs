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
                    "device": entry.selector,
                    "name": entry.name,
                    "memory": entry.memory,
                    "kind": entry.kind,
                    "driver": entry.driver,
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
        ("kind", Side::Left),
        ("name", Side::Left),
        ("driver", Side::Left),
    ]);
    for entry in &entries {
        table.row(vec![
            entry.selector.clone(),
            if entry.name.is_some() { "here" } else { "not here" }.to_owned(),
            entry.memory.map_or_else(String::new, format_bytes),
            entry.kind.unwrap_or_default().to_owned(),
            entry.name.as_deref().or(entry.reason.as_deref()).unwrap_or_default().to_owned(),
            entry.driver.clone().unwrap_or_default(),
        ]);
    }
    table.print(&mut out)?;
    Ok(())
}
