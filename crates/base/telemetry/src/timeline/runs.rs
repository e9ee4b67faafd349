//! The runs of a timeline: steps between which no long pause lies.

use super::step::Step;

/// The pause in microseconds that separates two runs. Each run has its own scale, because otherwise a late step would
/// leave no room for the seconds of the others.
const PAUSE: u64 = 60_000_000;

/// Splits sorted steps into runs. Each has a title with the number and the time of its steps.
pub(super) fn runs(steps: &[Step]) -> Vec<(String, &[Step])> {
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
        let mut title = format!("{count} in {}", duration_text(end.saturating_sub(first.start)));
        if let Some(pause) = pause {
            title.push_str(&format!(", {} later", duration_text(pause)));
        }
        pause = later.first().map(|next| next.start.saturating_sub(end));
        runs.push((title, run));
        rest = later;
    }
    runs
}

/// Formats a duration in microseconds with at most three digits and a unit.
pub(crate) fn duration_text(micros: u64) -> String {
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
