//! Prints the table of a benchmark: ours, upstream's, and the ratio.

/// A measured quantity.
pub(super) struct Row {
    pub(super) what: String,
    pub(super) unit: &'static str,
    pub(super) better: Better,
    /// The intended ratio to upstream.
    pub(super) target: Option<f64>,
}

#[derive(Clone, Copy)]
pub(super) enum Better {
    More,
    Less,
}

/// The measurements of one side, in the order of the rows.
pub(super) type Column = Vec<(Row, f64)>;

pub(super) fn print(ours: &Column, theirs: Option<&Column>) {
    println!("{:<88}{:>12}{:>14}{:>9}{:>9}", "", "Windlass", "upstream", "ratio", "wanted");
    for (row, value) in ours {
        let peer = theirs.and_then(|all| {
            all.iter().find(|(other, _)| (&other.what, other.unit) == (&row.what, row.unit))
        });
        let peer = peer.map(|(_, value)| *value);
        // A value that is too small to be measured has no ratio.
        let ratio = peer.filter(|peer| *peer > 0.0 && *value > 0.0).map(|peer| match row.better {
            Better::More => value / peer,
            Better::Less => peer / value,
        });
        let times =
            |ratio: Option<f64>| ratio.map_or("".to_owned(), |ratio| format!("{ratio:.1}×"));
        println!(
            "{:<88}{:>12}{:>14}{:>9}{:>9}",
            format!("{} ({})", row.what, row.unit),
            figure(*value),
            peer.map_or("not measured".to_owned(), figure),
            times(ratio),
            times(row.target),
        );
    }
}

/// Formats a value with three significant digits.
fn figure(value: f64) -> String {
    match value {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v if v >= 1.0 => format!("{v:.2}"),
        v => format!("{v:.3}"),
    }
}
