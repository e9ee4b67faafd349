//! Tables of text.

/// Formats lines in columns, three spaces apart.
pub(super) fn table(head: &[&str], lines: impl Iterator<Item = Vec<String>>) -> String {
    let mut all = vec![head.iter().map(|cell| (*cell).to_owned()).collect::<Vec<_>>()];
    all.extend(lines);
    let width = |column: usize| all.iter().filter_map(|l| l.get(column)).map(String::len).max();
    let widths: Vec<usize> = (0..head.len()).map(|c| width(c).unwrap_or(0) + 3).collect();
    let text = |line: &Vec<String>| {
        let cells = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<String>().trim_end().to_owned() + "\n"
    };
    all.iter().map(text).collect()
}
