//! Prints tables as upstream does: columns padded with tabs to multiples of eight.

use std::io::Write;

use crate::error::Error;

const TAB: usize = 8;

pub(crate) fn print<const N: usize>(
    out: &mut dyn Write,
    header: [&str; N],
    mut rows: Vec<[String; N]>,
) -> Result<(), Error> {
    rows.sort();
    rows.insert(0, header.map(str::to_owned));
    let length = |cell: &String| cell.chars().count();
    let width = |column: usize| {
        let longest = rows.iter().filter_map(|row| row.get(column)).map(length).max();
        (longest.unwrap_or_default() + 1).div_ceil(TAB) * TAB
    };
    let widths: Vec<_> = (0..N).map(width).collect();
    for row in &rows {
        for (number, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let tabs = if number + 1 == N { 0 } else { (width - length(cell)).div_ceil(TAB) };
            write!(out, "{cell}{}", "\t".repeat(tabs))?;
        }
        writeln!(out)?;
    }
    Ok(())
}
