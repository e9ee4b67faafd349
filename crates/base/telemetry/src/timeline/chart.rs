//! The timeline as a chart for terminals.

use std::fmt::Write;

use super::{
    runs::{duration_text, runs},
    step::{Outcome, Step},
};

const LABEL: usize = 40;

/// Renders the steps as a chart for a terminal of `width` columns: one line per step, with a bar at its time. Each run
/// has its own chart.
pub fn chart(steps: &[Step], width: usize) -> String {
    if steps.is_empty() {
        return "No steps are recorded yet.\n".to_owned();
    }
    let charts =
        runs(steps).into_iter().map(|(title, run)| format!("{title}\n{}", bars(run, width)));
    charts.collect::<Vec<_>>().join("\n")
}

fn bars(steps: &[Step], width: usize) -> String {
    let first = steps.iter().map(|s| s.start).min().unwrap_or(0);
    let end = steps.iter().map(Step::end).max().unwrap_or(first);
    let span = (end - first).max(1);
    let label = steps.iter().map(|s| step_label(s).chars().count()).max().unwrap_or(0).min(LABEL);
    // Label, a gap, the bar, a gap, and a duration such as "12 min 34 s".
    let room = width.saturating_sub(label + 2 + 16).max(10);
    let mut out = String::new();
    for step in steps {
        let from = ((step.start - first) as u128 * room as u128 / span as u128) as usize;
        let until = ((step.end() - first) as u128 * room as u128 / span as u128) as usize;
        let from = from.min(room - 1);
        let bar = "█".repeat((until.saturating_sub(from)).clamp(1, room - from));
        let line = format!("{}{bar}", " ".repeat(from));
        let _ = write!(
            out,
            "{:<label$}  {line:<room$}  {}",
            clip(&step_label(step), label),
            duration_text(step.duration)
        );
        let _ = match &step.outcome {
            Outcome::Done => Ok(()),
            Outcome::Skipped(why) => write!(out, "  skipped: {why}"),
            Outcome::Failed(cause) => {
                write!(out, "  failed: {}", cause.lines().next().unwrap_or_default())
            }
        };
        if !step.waited_for.is_empty() {
            let _ = write!(out, "  after {}", step.waited_for.join(", "));
        }
        out.push('\n');
    }
    out
}

fn step_label(step: &Step) -> String {
    format!("{} {}", step.component, step.step)
}

fn clip(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}
