//! What webhooks cost and how they failed, as `/metrics` tells it under upstream's names.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    sync::{Mutex, PoisonError},
};
use tokio::time::Instant;

use admission::{
    Request,
    webhook::{Failure, Webhook},
};

const BUCKETS: [f64; 8] = [0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 25.0];
/// Higher codes are counted as this one.
const HIGHEST_CODE: u16 = 600;

/// By labels, as they are written.
#[derive(Default)]
pub(crate) struct Figures(Mutex<Counted>);

#[derive(Default)]
struct Counted {
    durations: BTreeMap<String, Duration>,
    rejections: BTreeMap<String, u64>,
    fail_open: BTreeMap<String, u64>,
    requests: BTreeMap<String, u64>,
}

#[derive(Default)]
struct Duration {
    count: u64,
    sum: f64,
    buckets: [u64; BUCKETS.len()],
}

impl Figures {
    /// Counts a call that began then; `phase` is `admit` or `validating`.
    pub(super) fn record(
        &self,
        webhook: &Webhook,
        phase: &str,
        request: &Request<'_>,
        began: Instant,
        failure: Option<&Failure>,
    ) {
        let of = format!("name=\"{}\",type=\"{phase}\"", webhook.name);
        let asked = format!("{of},operation=\"{}\"", request.operation);
        let passes = |failure: &&Failure| webhook.settle((*failure).clone()).is_ok();
        let rejected = failure.filter(|failure| !passes(failure));
        let seconds = began.elapsed().as_secs_f64();
        let mut counted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let labels = format!("{asked},rejected=\"{}\"", rejected.is_some());
        let duration = counted.durations.entry(labels).or_default();
        duration.count += 1;
        duration.sum += seconds;
        let edges = duration.buckets.iter_mut().zip(BUCKETS);
        edges.filter(|(_, edge)| seconds <= *edge).for_each(|(bucket, _)| *bucket += 1);
        let code = failure.map_or(200, |failure| failure.kind().1).min(HIGHEST_CODE);
        let labels = format!("{asked},code=\"{code}\",rejected=\"{}\"", rejected.is_some());
        *counted.requests.entry(labels).or_default() += 1;
        if let Some((error, code)) = rejected.map(Failure::kind) {
            let code = code.min(HIGHEST_CODE);
            let labels = format!("{asked},error_type=\"{error}\",rejection_code=\"{code}\"");
            *counted.rejections.entry(labels).or_default() += 1;
        } else if failure.is_some() {
            *counted.fail_open.entry(of).or_default() += 1;
        }
    }

    /// The text of all series; none where no webhook was called.
    pub(crate) fn text(&self) -> String {
        const PREFIX: &str = "apiserver_admission_webhook";
        let counted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut out = String::new();
        if !counted.durations.is_empty() {
            let _ = writeln!(out, "# TYPE {PREFIX}_admission_duration_seconds histogram");
        }
        for (labels, duration) in &counted.durations {
            let name = format!("{PREFIX}_admission_duration_seconds");
            for (edge, count) in BUCKETS.iter().zip(duration.buckets) {
                let _ = writeln!(out, "{name}_bucket{{{labels},le=\"{edge}\"}} {count}");
            }
            let Duration { count, sum, .. } = duration;
            let _ = writeln!(out, "{name}_bucket{{{labels},le=\"+Inf\"}} {count}");
            let _ = writeln!(out, "{name}_sum{{{labels}}} {sum}");
            let _ = writeln!(out, "{name}_count{{{labels}}} {count}");
        }
        for (name, series) in [
            ("rejection_count", &counted.rejections),
            ("fail_open_count", &counted.fail_open),
            ("request_total", &counted.requests),
        ] {
            if !series.is_empty() {
                let _ = writeln!(out, "# TYPE {PREFIX}_{name} counter");
            }
            for (labels, count) in series {
                let _ = writeln!(out, "{PREFIX}_{name}{{{labels}}} {count}");
            }
        }
        out
    }
}
