//! The bootstrap timeline: the start and duration of each step, what it waited for, and which files it read and wrote.
//!
//! Each process appends JSON lines to `<root>/timeline/<component>.jsonl`; [`load`] merges them.

mod chart;
mod html;
mod record;
mod runs;
mod step;

use std::{
    fs,
    path::{Path, PathBuf},
};

pub use chart::chart;
pub use html::html;
pub use record::{Recorder, RunningStep, directory};
pub(crate) use runs::duration_text;
pub use step::{Outcome, Step};

/// The error of reading a timeline.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the timeline at {}: {source}", path.display())]
pub struct LoadError {
    path: PathBuf,
    source: std::io::Error,
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

#[cfg(test)]
mod tests;
