//! Measures how long Pods take to start, with upstream's metrics.
//!
//! A Pod that started before the kubelet is not measured, nor is a static Pod, whose creation time is not known.

use std::{collections::HashMap, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use parking_lot::{Mutex, MutexGuard};
use pod_core::{Observed, Role, Run, Timestamp, is_static, members};
use telemetry::metrics::{Histogram, Metrics};

/// Upstream's bounds: half a second to an hour.
const BOUNDS: [f64; 25] = [
    0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 20.0, 30.0, 45.0, 60.0, 120.0, 180.0, 240.0,
    300.0, 360.0, 480.0, 600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0,
];

/// The Pods that are starting, by UID, and the metrics of those that have started.
pub(crate) struct Startups {
    starting: Mutex<HashMap<String, Startup>>,
    since_seen: Histogram,
    sli: Histogram,
    total: Histogram,
}

/// The start of a Pod.
struct Startup {
    /// The time at which the kubelet saw the Pod.
    seen: Timestamp,
    pulls: Option<Interval>,
}

/// The time from the first begin to the last end.
#[derive(Clone, Copy)]
struct Interval {
    begin: Timestamp,
    end: Timestamp,
}

impl Startups {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        let histogram = |name: &str, help: &str| metrics.histogram(name, help, &BOUNDS);
        Self {
            starting: Mutex::default(),
            since_seen: histogram(
                "kubelet_pod_start_duration_seconds",
                "Duration in seconds from kubelet seeing a pod for the first time to the pod starting to run",
            ),
            sli: histogram(
                "kubelet_pod_start_sli_duration_seconds",
                "Duration in seconds to start a pod, excluding time to pull images and run init containers, measured \
                 from pod creation timestamp to when all its containers are reported as started and observed via watch",
            ),
            total: histogram(
                "kubelet_pod_start_total_duration_seconds",
                "Duration in seconds to start a pod since creation, including time to pull images and run init \
                 containers, measured from pod creation timestamp to when all its containers are reported as started \
                 and observed via watch",
            ),
        }
    }

    /// Begins to measure a Pod that the kubelet sees for the first time, unless it has started already.
    pub(crate) fn begin(&self, pod: &Pod, now: Timestamp) {
        let has_started = pod.status.as_ref().is_some_and(|status| status.start_time.is_some());
        let Some(uid) = pod.metadata.uid.clone().filter(|_| !has_started && !is_static(pod)) else {
            return;
        };
        self.starting().entry(uid).or_insert(Startup { seen: now, pulls: None });
    }

    /// Records a pull of an image of a Pod.
    pub(crate) fn pulled(&self, pod: &Pod, begin: Timestamp, end: Timestamp) {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        if let Some(startup) = self.starting().get_mut(uid) {
            let earlier = startup.pulls.map_or(begin, |pulls| pulls.begin.min(begin));
            startup.pulls = Some(Interval { begin: earlier, end });
        }
    }

    /// Measures a Pod once all of its containers run.
    pub(crate) fn observe(&self, pod: &Pod, observed: &Observed, now: Timestamp) {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        if !self.starting().contains_key(uid) || !is_running(pod, observed) {
            return;
        }
        let Some(startup) = self.starting().remove(uid) else { return };
        let seconds = |from: Timestamp, to: Timestamp| seconds(Interval { begin: from, end: to });
        self.since_seen.observe(seconds(startup.seen, now));
        let Some(created) = &pod.metadata.creation_timestamp else { return };
        let total = seconds(created.0, now);
        let excluded = union(startup.pulls, init_containers(pod, observed));
        self.total.observe(total);
        self.sli.observe((total - excluded).max(0.0));
    }

    /// Stops measuring a Pod that ends.
    pub(crate) fn forget(&self, uid: &str) {
        self.starting().remove(uid);
    }

    fn starting(&self) -> MutexGuard<'_, HashMap<String, Startup>> {
        self.starting.lock()
    }
}

/// Reports whether all application containers of a Pod run.
fn is_running(pod: &Pod, observed: &Observed) -> bool {
    let containers = pod.spec.as_ref().map_or(&[][..], |spec| &spec.containers);
    containers.iter().all(|container| {
        let newest = observed.newest(&container.name);
        newest.is_some_and(|container| matches!(container.run, Run::Running { .. }))
    })
}

/// Returns the time from the start of the first init container to the end of the last one.
fn init_containers(pod: &Pod, observed: &Observed) -> Option<Interval> {
    let all = members(pod);
    let runs = all.iter().filter(|member| member.role == Role::Init);
    let runs = runs.flat_map(|member| {
        observed.containers.iter().filter(|run| run.name == member.container.name)
    });
    let ended = runs.filter_map(|container| match &container.run {
        Run::Exited { started: Some(begin), finished: end, .. } => {
            Some(Interval { begin: *begin, end: *end })
        }
        _ => None,
    });
    ended.reduce(|one, other| Interval {
        begin: one.begin.min(other.begin),
        end: one.end.max(other.end),
    })
}

/// Returns the seconds that two intervals cover.
fn union(one: Option<Interval>, other: Option<Interval>) -> f64 {
    let all = [one, other].map(|interval| interval.map_or(0.0, seconds));
    let overlap = one.zip(other).map_or(0.0, |(one, other)| {
        seconds(Interval { begin: one.begin.max(other.begin), end: one.end.min(other.end) })
    });
    all[0] + all[1] - overlap
}

/// Returns the length of an interval; zero if it ends before it begins.
fn seconds(interval: Interval) -> f64 {
    let length = interval.end.duration_since(interval.begin);
    Duration::try_from(length).unwrap_or_default().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use pod_core::Container;
    use serde_json::json;
    use testkit::metrics::{assert_published, published};

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + second).unwrap()
    }

    fn pod(uid: &str) -> Pod {
        let spec = json!({
            "initContainers": [{"name": "init"}],
            "containers": [{"name": "a"}, {"name": "b"}],
        });
        let mut pod: Pod =
            serde_json::from_value(json!({"metadata": {"uid": uid, "name": "p"}, "spec": spec}))
                .unwrap();
        pod.metadata.creation_timestamp = Some(Time(at(0)));
        pod
    }

    fn run(name: &str, run: Run) -> Container {
        Container {
            id: name.to_owned(),
            name: name.to_owned(),
            sandbox: String::new(),
            attempt: 0,
            created: at(0),
            run,
            image: String::new(),
            image_id: String::new(),
            hash: String::new(),
            message: String::new(),
            recursive_read_only: Vec::new(),
            resources: None,
            shared: None,
        }
    }

    fn observed(names: &[&str]) -> Observed {
        let exited =
            Run::Exited { started: Some(at(5)), finished: at(9), code: 0, reason: String::new() };
        let running = |name: &&str| run(name, Run::Running { started: at(10) });
        let all = names.iter().map(running).chain([run("init", exited)]).collect();
        Observed::new(Vec::new(), all)
    }

    fn sums(metrics: &Metrics) -> Vec<String> {
        let text = metrics.text();
        let lines = text.lines().filter(|line| {
            line.starts_with("kubelet_pod_start_")
                && (line.contains("_sum") || line.contains("_count"))
        });
        lines.map(|line| line.trim_start_matches("kubelet_pod_start_").to_owned()).collect()
    }

    #[test]
    fn excludes_pulls_and_init_containers_from_sli() {
        let metrics = Metrics::default();
        let startups = Startups::new(&metrics);
        let pod = pod("1");
        startups.begin(&pod, at(1));
        startups.pulled(&pod, at(2), at(4));
        // The pull of an application container overlaps with the init container.
        startups.pulled(&pod, at(6), at(8));
        startups.observe(&pod, &observed(&["a"]), at(11));
        assert!(sums(&metrics).iter().all(|line| line.ends_with(" 0")));
        startups.observe(&pod, &observed(&["a", "b"]), at(12));
        startups.observe(&pod, &observed(&["a", "b"]), at(20));
        let wanted = [
            "duration_seconds_sum 11",
            "duration_seconds_count 1",
            // 12 seconds without 2 to 9.
            "sli_duration_seconds_sum 5",
            "sli_duration_seconds_count 1",
            "total_duration_seconds_sum 12",
            "total_duration_seconds_count 1",
        ];
        assert_eq!(sums(&metrics), wanted);
        assert_published(
            &metrics.text(),
            &[
                published("kubelet_pod_start_duration_seconds", "histogram", &[]),
                published("kubelet_pod_start_sli_duration_seconds", "histogram", &[]),
                published("kubelet_pod_start_total_duration_seconds", "histogram", &[]),
            ],
        );
    }

    #[test]
    fn measures_neither_old_nor_static_nor_ended_pods() {
        let metrics = Metrics::default();
        let startups = Startups::new(&metrics);
        let mut old = pod("old");
        old.status = serde_json::from_value(json!({"startTime": "2020-01-01T00:00:00Z"})).unwrap();
        let mut fixed = pod("static");
        let source = ("kubernetes.io/config.source".to_owned(), "file".to_owned());
        fixed.metadata.annotations = Some([source].into());
        let ended = pod("ended");
        for pod in [&old, &fixed, &ended] {
            startups.begin(pod, at(1));
        }
        startups.forget("ended");
        for pod in [&old, &fixed, &ended] {
            startups.observe(pod, &observed(&["a", "b"]), at(12));
        }
        assert!(sums(&metrics).iter().all(|line| line.ends_with(" 0")));
        assert!(startups.starting().is_empty());
    }
}
