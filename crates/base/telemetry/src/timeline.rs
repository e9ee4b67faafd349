//! The bootstrap timeline: the start and duration of each step, what it waited for, and which files it read and wrote.
//!
//! Each process appends JSON lines to `<root>/timeline/<component>.jsonl`; [`load`] merges them.

mod chart;
mod html;
mod record;

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

pub use chart::chart;
pub use html::html;
pub use record::{Recorder, RunningStep};

/// A completed step of a component.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// The component, which is the name of its file.
    pub component: String,
    /// The name of the step.
    pub step: String,
    /// The start, in microseconds since 1970.
    pub start: u64,
    /// The duration, in microseconds.
    pub duration: u64,
    /// The dependencies that the step waited for, such as a Ready Pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waited_for: Vec<String>,
    /// The files that the step read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub read: Vec<PathBuf>,
    /// The files that the step wrote.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub written: Vec<PathBuf>,
    /// The outcome.
    pub outcome: Outcome,
}

/// The outcome of a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Outcome {
    /// The step succeeded.
    Done,
    /// The step was not needed. Contains the reason.
    Skipped(String),
    /// The step failed. Contains the cause.
    Failed(String),
}

impl Step {
    /// Returns the end, in microseconds since 1970.
    pub fn end(&self) -> u64 {
        self.start.saturating_add(self.duration)
    }
}

/// The error of reading a timeline.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the timeline at {}: {source}", path.display())]
pub struct LoadError {
    path: PathBuf,
    source: std::io::Error,
}

/// Returns the directory of the timeline files under a cluster's root.
pub fn directory(root: &Path) -> PathBuf {
    root.join("timeline")
}

/// Loads all steps under `root`, sorted by start. Incomplete lines, as after a crash, are skipped. A missing timeline
/// is empty.
pub fn load(root: &Path) -> Result<Vec<Step>, LoadError> {
    let dir = directory(root);
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| LoadError { path, source }
    };
    let entries = match fs::read_dir(&dir) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(failed(&dir))?,
    };
    let mut steps = Vec::new();
    for entry in entries {
        let path = entry.map_err(failed(&dir))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.ends_with(".jsonl") || name.ends_with(".jsonl.1") {
            let text = fs::read_to_string(&path).map_err(failed(&path))?;
            steps.extend(text.lines().filter_map(|line| serde_json::from_str::<Step>(line).ok()));
        }
    }
    steps.sort_by(|a, b| (a.start, &a.component, &a.step).cmp(&(b.start, &b.component, &b.step)));
    Ok(steps)
}

/// The pause in microseconds that separates two runs. Each run has its own scale, because otherwise a late step would
/// leave no room for the seconds of the others.
const PAUSE: u64 = 60_000_000;

/// Splits sorted steps into runs. Each has a title with the number and the time of its steps.
pub(crate) fn runs(steps: &[Step]) -> Vec<(String, &[Step])> {
    let mut runs: Vec<(String, &[Step])> = Vec::new();
    let (mut rest, mut pause) = (steps, None);
    while let Some(first) = rest.first() {
        let mut end = first.end();
        let length = rest.iter().take_while(|step| {
            let near = step.start.saturating_sub(end) < PAUSE;
            end = end.max(if near { step.end() } else { 0 });
            near
        });
        let (run, later) = rest.split_at(length.count());
        let count =
            if run.len() == 1 { "1 step".to_owned() } else { format!("{} steps", run.len()) };
        let mut title = format!("{count} in {}", spoken(end.saturating_sub(first.start)));
        if let Some(pause) = pause {
            title.push_str(&format!(", {} later", spoken(pause)));
        }
        pause = later.first().map(|next| next.start.saturating_sub(end));
        runs.push((title, run));
        rest = later;
    }
    runs
}

/// Formats a duration in microseconds with at most three digits and a unit.
pub(crate) fn spoken(micros: u64) -> String {
    match micros {
        0..1_000 => format!("{micros} µs"),
        1_000..10_000 => format!("{:.1} ms", micros as f64 / 1e3),
        10_000..1_000_000 => format!("{} ms", micros / 1_000),
        1_000_000..100_000_000 => format!("{:.1} s", micros as f64 / 1e6),
        100_000_000..7_200_000_000 => {
            format!("{} min {} s", micros / 60_000_000, micros / 1_000_000 % 60)
        }
        _ => format!("{} h {} min", micros / 3_600_000_000, micros / 60_000_000 % 60),
    }
}

#[cfg(test)]
mod tests;
