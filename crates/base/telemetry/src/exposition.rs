//! Values that are collected at each scrape, in the Prometheus text format, version 0.0.4.

use std::{
    collections::BTreeMap,
    fmt::{self, Write as _},
};

/// The type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        })
    }
}

/// The name, type and help of a metric.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// The name.
    pub name: &'static str,
    /// The type.
    pub kind: Kind,
    /// The help text.
    pub help: &'static str,
}

/// Returns a counter.
pub const fn counter(name: &'static str, help: &'static str) -> Metric {
    Metric { name, kind: Kind::Counter, help }
}

/// Returns a gauge.
pub const fn gauge(name: &'static str, help: &'static str) -> Metric {
    Metric { name, kind: Kind::Gauge, help }
}

/// Labels in the text format, without the braces.
#[derive(Clone, Debug, Default)]
pub struct Labels(String);

impl Labels {
    /// Returns the labels in the given order.
    pub fn of(labels: &[(&str, &str)]) -> Self {
        Self::default().and(labels)
    }

    /// Appends labels. Callers pass them in the order of their names, like Go's library.
    pub fn and(&self, labels: &[(&str, &str)]) -> Self {
        let mut all = self.0.clone();
        for (name, value) in labels {
            if !all.is_empty() {
                all.push(',');
            }
            let _ = write!(all, "{name}=\"{}\"", escaped(value));
        }
        Self(all)
    }
}

fn escaped(value: &str) -> String {
    let mut out = String::with_capacity(value.len());
    for c in value.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            c => out.push(c),
        }
    }
    out
}

#[derive(Debug)]
struct Family {
    metric: Metric,
    lines: Vec<String>,
}

/// Families of metrics, written in the order of their names.
#[derive(Debug, Default)]
pub struct Exposition(BTreeMap<&'static str, Family>);

impl Exposition {
    /// Adds a value. `at` is its time in milliseconds since 1970, if the text is to contain it.
    pub fn add(&mut self, metric: Metric, labels: &Labels, value: f64, at: Option<i64>) {
        self.line(metric, "", labels, value, at);
    }

    /// Adds a line of a metric. `suffix` names a part of a histogram.
    pub fn line(
        &mut self,
        metric: Metric,
        suffix: &str,
        labels: &Labels,
        value: f64,
        at: Option<i64>,
    ) {
        let name = metric.name;
        let mut line = format!("{name}{suffix}");
        if !labels.0.is_empty() {
            let _ = write!(line, "{{{}}}", labels.0);
        }
        let _ = write!(line, " {}", gotmpl::float(value));
        if let Some(at) = at {
            let _ = write!(line, " {}", at);
        }
        let family = self.0.entry(name).or_insert_with(|| Family { metric, lines: Vec::new() });
        family.lines.push(line);
    }

    /// Returns the text. The lines of a histogram keep their order, which is significant.
    pub fn text(self) -> String {
        let mut out = String::new();
        for (name, mut family) in self.0 {
            let Metric { kind, help, .. } = family.metric;
            let help = help.replace('\\', "\\\\").replace('\n', "\\n");
            let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
            if kind != Kind::Histogram {
                family.lines.sort_unstable();
            }
            for line in family.lines {
                out.push_str(&line);
                out.push('\n');
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_text_like_prometheus_library() {
        let mut all = Exposition::default();
        let used = counter("b_seconds_total", "Time\nof it.");
        let at = 1_700_000_000_123;
        all.add(used, &Labels::of(&[("pod", "z")]), 1_234_567.0, Some(at));
        all.add(used, &Labels::of(&[("pod", "a\"\\\n")]), 0.000_012, None);
        all.add(gauge("a", "An a."), &Labels::default(), f64::INFINITY, None);
        let wanted = "# HELP a An a.\n# TYPE a gauge\na +Inf\n# HELP b_seconds_total Time\\nof it.\n\
                      # TYPE b_seconds_total counter\nb_seconds_total{pod=\"a\\\"\\\\\\n\"} 1.2e-05\n\
                      b_seconds_total{pod=\"z\"} 1.234567e+06 1700000000123\n";
        assert_eq!(all.text(), wanted);
    }

    /// The names of containers cannot contain these characters, but image references come from the runtime.
    #[test]
    fn escapes_line_feeds_in_labels() {
        let mut all = Exposition::default();
        let evil = "x\"} 1\nnode_cpu_usage_seconds_total 0\n#";
        all.add(gauge("a", "h"), &Labels::of(&[("image", evil)]), 1.0, None);
        assert_eq!(all.text().lines().count(), 3);
    }
}
