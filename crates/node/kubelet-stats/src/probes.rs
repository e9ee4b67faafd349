//! The results of probes (`/metrics/probes`).

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use parking_lot::{Mutex, MutexGuard};
use telemetry::{
    exposition::{Exposition, Kind, Labels, Metric, counter, gauge},
    metrics::{USUAL_BOUNDS, unix_seconds},
};

const TOTAL: Metric = counter(
    "prober_probe_total",
    "[BETA] Cumulative number of a liveness, readiness or startup probe for a container by result.",
);
const DURATION: Metric = Metric {
    name: "prober_probe_duration_seconds",
    kind: Kind::Histogram,
    help: "[ALPHA] Duration in seconds for a probe response.",
};
const STARTED: Metric = gauge(
    "process_start_time_seconds",
    "[ALPHA] Start time of the process since unix epoch in seconds.",
);
const EDGES: [f64; 11] = *USUAL_BOUNDS;

/// The labels of a container's probe, for all runs of the container.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProbeLabels {
    /// The kind of probe.
    pub kind: &'static str,
    /// The Pod's namespace.
    pub namespace: String,
    /// The Pod's name.
    pub pod: String,
    /// The Pod's UID.
    pub uid: String,
    /// The container's name.
    pub container: String,
}

#[derive(Default)]
struct Counts {
    successful: u64,
    failed: u64,
    seconds: f64,
    /// The number of successes that took at most as long as each bound.
    within: [u64; EDGES.len()],
}

/// The results of the probes of this node's Pods.
pub struct Probes {
    started: SystemTime,
    counts: Mutex<BTreeMap<ProbeLabels, Counts>>,
}

impl Default for Probes {
    fn default() -> Self {
        Self { started: rt::now(), counts: Mutex::default() }
    }
}

impl Probes {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<ProbeLabels, Counts>> {
        self.counts.lock()
    }

    /// Counts one result. The duration of a failure is not recorded, as upstream.
    pub fn record(&self, probed: ProbeLabels, success: bool, took: Duration) {
        let mut all = self.lock();
        let counts = all.entry(probed).or_default();
        if !success {
            counts.failed += 1;
            return;
        }
        let seconds = took.as_secs_f64();
        counts.successful += 1;
        counts.seconds += seconds;
        for (count, _) in counts.within.iter_mut().zip(EDGES).filter(|(_, edge)| seconds <= *edge) {
            *count += 1;
        }
    }

    /// Forgets the probes of a Pod.
    pub fn forget(&self, uid: &str) {
        self.lock().retain(|probed, _| probed.uid != uid);
    }

    pub(crate) fn text(&self) -> String {
        let mut out = Exposition::default();
        out.add(STARTED, &Labels::default(), unix_seconds(self.started), None);
        for (probed, counts) in self.lock().iter() {
            let base = Labels::of(&[
                ("container", &probed.container),
                ("namespace", &probed.namespace),
                ("pod", &probed.pod),
            ]);
            let kind = [("probe_type", probed.kind)];
            for (result, count) in [("failed", counts.failed), ("successful", counts.successful)] {
                let labels =
                    base.and(&[("pod_uid", &probed.uid)]).and(&kind).and(&[("result", result)]);
                if count > 0 {
                    out.add(TOTAL, &labels, count as f64, None);
                }
            }
            let labels = base.and(&kind);
            if counts.successful == 0 {
                continue;
            }
            for (count, edge) in counts.within.iter().zip(EDGES) {
                let labels = labels.and(&[("le", &gotmpl::float(edge))]);
                out.line(DURATION, "_bucket", &labels, *count as f64, None);
            }
            let all = labels.and(&[("le", "+Inf")]);
            out.line(DURATION, "_bucket", &all, counts.successful as f64, None);
            out.line(DURATION, "_sum", &labels, counts.seconds, None);
            out.line(DURATION, "_count", &labels, counts.successful as f64, None);
        }
        out.text()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_results_and_forgets_them_with_their_pod() {
        let probes = Probes::default();
        let probed = ProbeLabels {
            kind: "Readiness",
            namespace: "default".to_owned(),
            pod: "web".to_owned(),
            uid: "u".to_owned(),
            container: "app".to_owned(),
        };
        probes.record(probed.clone(), false, Duration::from_secs(1));
        probes.record(probed.clone(), true, Duration::from_millis(20));
        probes.record(probed, true, Duration::from_secs(60));
        let text = probes.text();
        let who = "container=\"app\",namespace=\"default\",pod=\"web\"";
        for line in [
            format!(
                "prober_probe_total{{{who},pod_uid=\"u\",probe_type=\"Readiness\",result=\"successful\"}} 2"
            ),
            format!(
                "prober_probe_total{{{who},pod_uid=\"u\",probe_type=\"Readiness\",result=\"failed\"}} 1"
            ),
            format!(
                "prober_probe_duration_seconds_bucket{{{who},probe_type=\"Readiness\",le=\"0.01\"}} 0"
            ),
            format!(
                "prober_probe_duration_seconds_bucket{{{who},probe_type=\"Readiness\",le=\"10\"}} 1"
            ),
            format!(
                "prober_probe_duration_seconds_bucket{{{who},probe_type=\"Readiness\",le=\"+Inf\"}} 2"
            ),
            format!("prober_probe_duration_seconds_count{{{who},probe_type=\"Readiness\"}} 2"),
        ] {
            assert!(text.lines().any(|l| l == line), "{line}\n{text}");
        }
        probes.forget("u");
        assert!(!probes.text().contains("prober_probe"));
    }
}
