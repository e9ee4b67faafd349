//! Decides whether a quantity grows.

use std::time::Duration;

use super::samples::{Kind, Point, Series};

/// The fewest settled samples that show growth.
const FEWEST: usize = 5;

/// The judgement of one quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Growth {
    Flat,
    Grows,
    /// There are fewer than [`FEWEST`] settled samples: the run was too short, or the quantity could not be read.
    Unmeasured,
}

impl Growth {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Flat => "flat",
            Self::Grows => "grows",
            Self::Unmeasured => "unmeasured",
        }
    }
}

/// The result for one quantity.
pub(crate) struct Verdict {
    pub(crate) name: String,
    /// The growth per hour, by least squares.
    pub(crate) slope: f64,
    pub(crate) limit: f64,
    pub(crate) first: f64,
    pub(crate) last: f64,
    pub(crate) growth: Growth,
}

/// Returns the permitted growth per hour, and the change that is noise however short the run is.
fn limits(kind: Kind) -> (f64, f64) {
    match kind {
        Kind::Memory => (15.0, 8.0),
        Kind::Descriptors => (10.0, 8.0),
        Kind::Threads => (5.0, 6.0),
        // The store's log grows up to its limit before a snapshot makes it short again.
        Kind::Disk => (100.0, 70.0),
        Kind::Rules => (20.0, 10.0),
        Kind::Mounts => (3.0, 3.0),
        Kind::Cgroups => (3.0, 3.0),
    }
}

/// Judges the settled samples since `from`. Processes are not killed then, and the store's history is full.
pub(crate) fn judge(all: &[Series], from: Duration) -> Vec<Verdict> {
    all.iter().map(|series| verdict(series, from)).collect()
}

fn verdict(series: &Series, from: Duration) -> Verdict {
    let settled = series.points.iter().filter(|point| point.settled && point.at >= from);
    let points: Vec<Point> = settled.copied().collect();
    let slope = slope(&points);
    let (limit, noise) = limits(series.kind);
    let hours = match (points.first(), points.last()) {
        (Some(first), Some(last)) => (last.at - first.at).as_secs_f64() / 3600.0,
        _ => 0.0,
    };
    let growth = match points.len() {
        0..FEWEST => Growth::Unmeasured,
        _ if slope > limit && slope * hours > noise => Growth::Grows,
        _ => Growth::Flat,
    };
    Verdict {
        name: series.name.clone(),
        slope,
        limit,
        first: points.first().map_or(0.0, |point| point.value),
        last: points.last().map_or(0.0, |point| point.value),
        growth,
    }
}

/// Returns the slope of the least-squares line, per hour.
fn slope(points: &[Point]) -> f64 {
    let count = points.len() as f64;
    let hours = |point: &Point| point.at.as_secs_f64() / 3600.0;
    let mean = |of: &dyn Fn(&Point) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (x, y) = (mean(&hours), mean(&|point| point.value));
    let covariance: f64 = points.iter().map(|p| (hours(p) - x) * (p.value - y)).sum();
    let variance: f64 = points.iter().map(|p| (hours(p) - x).powi(2)).sum();
    if variance > 0.0 { covariance / variance } else { 0.0 }
}

pub(crate) fn print(verdicts: &[Verdict]) {
    let head = ["", "first", "last", "per hour", "limit"];
    println!("{:<32}{:>12}{:>12}{:>12}{:>12}", head[0], head[1], head[2], head[3], head[4]);
    for Verdict { name, slope, limit, first, last, growth } in verdicts {
        let result = growth.name();
        println!("{name:<32}{first:>12.1}{last:>12.1}{slope:>12.1}{limit:>12.1}  {result}");
    }
}
