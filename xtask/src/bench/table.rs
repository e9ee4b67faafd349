//! The table of a benchmark: ours, upstream's, the ratio, and whether it is as wanted.

use super::results::Measurement;

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

/// The verdicts, with the limit, on quantities that miss their ratio, by the beginning of their names.
const LIMITS: [(&str, &str); 4] = [
    ("create", "not met: the load generator shares the processors, and an object costs its checks"),
    ("get a Pod", "not met: the load generator shares the processors"),
    ("list", "not met: the load generator shares the processors"),
    ("memory", "not met: an object's JSON is kept as it is sent"),
];

/// The measurements of both sides.
#[derive(Default)]
pub(super) struct Table(Vec<Line>);

struct Line {
    row: Row,
    ours: f64,
    theirs: Option<f64>,
}

impl Table {
    /// Adds the measurements of one part.
    pub(super) fn add(&mut self, ours: Column, theirs: Option<&Column>) {
        for (row, value) in ours {
            let peer = theirs.and_then(|all| {
                all.iter().find(|(other, _)| (&other.what, other.unit) == (&row.what, row.unit))
            });
            self.0.push(Line { row, ours: value, theirs: peer.map(|(_, value)| *value) });
        }
    }

    pub(super) fn print(&self) {
        if self.0.is_empty() {
            return;
        }
        let head = ["Windlass", "upstream", "ratio", "wanted"];
        println!("{:<88}{:>12}{:>14}{:>9}{:>9}", "", head[0], head[1], head[2], head[3]);
        for line in &self.0 {
            println!("{line}");
        }
    }

    /// Returns the quantities that both sides have.
    pub(super) fn measurements(&self) -> Vec<Measurement> {
        let compared = self.0.iter().filter_map(|Line { row, ours, theirs }| {
            let (what, unit) = (row.what.clone(), row.unit.to_owned());
            Some(Measurement { what, unit, ours: *ours, theirs: (*theirs)? })
        });
        compared.collect()
    }
}

impl Line {
    /// Returns how many times as good ours is. A value that is too small to be measured has no ratio.
    fn ratio(&self) -> Option<f64> {
        let peer = self.theirs.filter(|peer| *peer > 0.0 && self.ours > 0.0)?;
        Some(match self.row.better {
            Better::More => self.ours / peer,
            Better::Less => peer / self.ours,
        })
    }

    /// Returns whether the ratio is as wanted, and what limits one that is not.
    fn verdict(&self) -> &'static str {
        match (self.row.target, self.ratio()) {
            (None, _) | (_, None) => "",
            (Some(target), Some(ratio)) if ratio >= target => "met",
            _ => {
                let limit = LIMITS.iter().find(|(start, _)| self.row.what.starts_with(start));
                limit.map_or("not met", |(_, limit)| limit)
            }
        }
    }
}

impl std::fmt::Display for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let times =
            |ratio: Option<f64>| ratio.map_or("".to_owned(), |ratio| format!("{ratio:.1}×"));
        let line = format!(
            "{:<88}{:>12}{:>14}{:>9}{:>9}  {}",
            format!("{} ({})", self.row.what, self.row.unit),
            figure(self.ours),
            self.theirs.map_or("not measured".to_owned(), figure),
            times(self.ratio()),
            times(self.row.target),
            self.verdict(),
        );
        f.write_str(line.trim_end())
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

#[cfg(test)]
mod tests {
    use super::*;

    fn column(rows: &[(&str, Better, Option<f64>, f64)]) -> Column {
        let row = |(what, better, target, value): &(&str, Better, Option<f64>, f64)| {
            let (what, better, target) = ((*what).to_owned(), *better, *target);
            (Row { what, unit: "s", better, target }, *value)
        };
        rows.iter().map(row).collect()
    }

    #[test]
    fn states_ratio_and_limit_of_each_quantity() {
        let ours = column(&[
            ("start", Better::Less, Some(10.0), 0.5),
            ("create Pods", Better::More, Some(20.0), 30.0),
            ("other", Better::More, Some(20.0), 30.0),
            ("without target", Better::More, None, 30.0),
            ("only ours", Better::More, Some(20.0), 30.0),
            ("too small", Better::Less, Some(20.0), 0.0),
        ]);
        let theirs = column(&[
            ("other", Better::More, Some(20.0), 3.0),
            ("start", Better::Less, Some(10.0), 6.0),
            ("create Pods", Better::More, Some(20.0), 2.0),
            ("without target", Better::More, None, 3.0),
            ("too small", Better::Less, Some(20.0), 1.0),
        ]);
        let mut table = Table::default();
        table.add(ours, Some(&theirs));
        let lines: Vec<_> = table.0.iter().map(|line| (line.ratio(), line.verdict())).collect();
        let expected = [
            (Some(12.0), "met"),
            (Some(15.0), LIMITS[0].1),
            (Some(10.0), "not met"),
            (Some(10.0), ""),
            (None, ""),
            (None, ""),
        ];
        assert_eq!(lines, expected);
        assert_eq!(table.measurements().len(), 5);
        assert!(table.0[0].to_string().ends_with("met"));
        assert!(table.0[4].to_string().contains("not measured"));
    }
}
