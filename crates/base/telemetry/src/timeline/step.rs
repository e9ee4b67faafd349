//! A step, as it is stored in the timeline.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

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
