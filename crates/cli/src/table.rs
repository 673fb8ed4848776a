//! Tables for people: columns as wide as they need, colours only on a terminal.

use std::io::{self, IsTerminal, Write};

/// Which side of a column its text stands at.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Left,
    Right,
}

/// A table whose first row is its head.
pub(crate) struct Table {
    sides: Vec<Side>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(columns: &[(&str, Side)]) -> Self {
        let head = columns.iter().map(|(name, _)| (*name).to_owned()).collect();
        Self { sides: columns.iter().map(|column| column.1).collect(), rows: vec![head] }
    }

    pub(crate) fn row(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.sides.len());
        self.rows.push(cells);
    }

    pub(crate) fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let width = |column: usize| {
            self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.sides.len()).map(width).collect();
        for (index, row) in self.rows.iter().enumerate() {
            let mut line = String::new();
            for ((cell, &width), &side) in row.iter().zip(&widths).zip(&self.sides) {
                let padding = " ".repeat(width - cell.chars().count());
                if !line.is_empty() {
                    line.push_str("  ");
                }
                match side {
                    Side::Left => line.extend([cell.as_str(), &padding]),
                    Side::Right => line.extend([padding.as_str(), cell]),
                }
            }
            let line = line.trim_end();
            if index == 0 { writeln!(out, "{}", bold(line))? } else { writeln!(out, "{line}")? }
        }
        Ok(())
    }
}

/// Whether standard output shows colours.
fn colours() -> bool {
    io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none()
}

pub(crate) fn bold(text: &str) -> String {
    if colours() { format!("\u{1b}[1m{text}\u{1b}[0m") } else { text.to_owned() }
}

/// The beginning of a text from a file, fit for a message.
pub(crate) fn excerpt(text: &str) -> String {
    const MOST: usize = 120;
    let mut start = printable(&text.chars().take(MOST).collect::<String>());
    if text.chars().nth(MOST).is_some() {
        start.push('…');
    }
    start
}

/// A text from a file, fit for a terminal: control characters would move its cursor.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}
