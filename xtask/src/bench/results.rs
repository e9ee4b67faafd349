//! The file of recorded measurements, from which `cargo xtask docs` makes the comparisons of README.md and of the book.

use std::{fmt::Write as _, path::Path};

use crate::{
    error::{During as _, Result},
    file::read,
    run::{output, program},
};

/// The path below the workspace's root.
pub(crate) const PATH: &str = "xtask/facts/benchmarks.tsv";

/// A quantity that both sides have.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Measurement {
    pub(crate) what: String,
    pub(crate) unit: String,
    pub(crate) ours: f64,
    pub(crate) theirs: f64,
}

/// Returns the content of the file for measurements of today.
pub(super) fn recorded(measurements: &[Measurement]) -> Result<String> {
    let date = output(&mut program("date", ["-u", "+%-d %B %Y"]))?;
    Ok(render(date.trim(), measurements))
}

fn render(date: &str, measurements: &[Measurement]) -> String {
    let mut text = format!(
        "# {date}\n# Written by `cargo xtask bench --peer DIR --record`: quantity, unit, Windlass, upstream.\n"
    );
    for Measurement { what, unit, ours, theirs } in measurements {
        let _ = writeln!(text, "{what}\t{unit}\t{ours}\t{theirs}");
    }
    text
}

/// Reads the date and the measurements of the file.
pub(crate) fn load(root: &Path) -> Result<(String, Vec<Measurement>)> {
    parse(&read(&root.join(PATH))?)
}

fn parse(text: &str) -> Result<(String, Vec<Measurement>)> {
    let date = text.lines().next().and_then(|line| line.strip_prefix("# "));
    let date = date.ok_or_else(|| format!("{PATH} does not begin with its date"))?;
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let measurements: Result<_> = lines.map(measurement).collect();
    Ok((date.to_owned(), measurements?))
}

fn measurement(line: &str) -> Result<Measurement> {
    let fields: Vec<&str> = line.split('\t').collect();
    let [what, unit, ours, theirs] = fields[..] else {
        return Err(format!("{PATH} has a line without four columns: {line:?}").into());
    };
    let number = |text: &str| text.parse::<f64>().during("parsing the number", text);
    let (what, unit) = (what.to_owned(), unit.to_owned());
    Ok(Measurement { what, unit, ours: number(ours)?, theirs: number(theirs)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_writes() {
        let measurement = |what: &str, ours| {
            let (what, unit) = (what.to_owned(), "a second".to_owned());
            Measurement { what, unit, ours, theirs: 2.5 }
        };
        let all = vec![measurement("list 10,000 Pods", 44.0), measurement("idle", 0.051)];
        let (date, read) = parse(&render("1 May 2026", &all)).unwrap();
        assert_eq!((date.as_str(), read), ("1 May 2026", all));
        for bad in ["", "a\tb\t1\t2\n", "# 1 May 2026\na\tb\t1\n", "# 1 May 2026\na\tb\t1\tx\n"] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }
}
