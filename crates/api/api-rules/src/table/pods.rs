//! The table of Pods. Its STATUS column summarizes the states of the containers.

use std::collections::HashSet;

use api_meta::{Timestamp, Tree as _, human_duration};
use serde_json::{Value, json};

use super::{
    column::{AGE, NAME, Table, age, name, text},
    format,
};
use crate::conditions;

pub(super) static PODS: Table = Table {
    columns: &[
        NAME,
        text("Ready"),
        text("Status"),
        text("Restarts"),
        AGE,
        text("IP").wide(),
        text("Node").wide(),
        text("Nominated Node").wide(),
        text("Readiness Gates").wide(),
    ],
    cells,
};

fn cells(pod: &Value, now: Timestamp) -> Vec<Value> {
    let summary = Summary::of(pod);
    let ip = pod.items("status.podIPs").first().map_or("", |ip| ip.text("ip"));
    vec![
        name(pod),
        json!(format!("{}/{}", summary.ready, summary.total)),
        json!(summary.reason),
        json!(summary.restarts.format(now)),
        age(pod, now),
        json!(format::or(ip, "<none>")),
        json!(format::or(pod.text("spec.nodeName"), "<none>")),
        json!(format::or(pod.text("status.nominatedNodeName"), "<none>")),
        json!(readiness_gates(pod)),
    ]
}

/// The number of container restarts, and the time of the last one.
#[derive(Clone, Copy, Default)]
struct Restarts {
    count: i64,
    last: Option<Timestamp>,
}

impl Restarts {
    fn add(&mut self, status: &Value) {
        self.count += status.int("restartCount");
        let finished = status.text("lastState.terminated.finishedAt").parse().ok();
        self.last = self.last.max(finished);
    }

    fn format(self, now: Timestamp) -> String {
        match self.last {
            Some(last) if self.count != 0 => {
                format!("{} ({} ago)", self.count, human_duration(now.since(last)))
            }
            _ => self.count.to_string(),
        }
    }
}

struct Summary {
    reason: String,
    ready: usize,
    total: usize,
    restarts: Restarts,
}

impl Summary {
    fn of(pod: &Value) -> Self {
        let sidecars = pod.items("spec.initContainers").iter().filter(|c| is_sidecar(c)).count();
        let mut summary = Self {
            reason: format::or(pod.text("status.reason"), pod.text("status.phase")),
            ready: 0,
            total: pod.items("spec.containers").len() + sidecars,
            restarts: Restarts::default(),
        };
        let gated =
            |c: &Value| c.text("type") == "PodScheduled" && c.text("reason") == "SchedulingGated";
        if pod.items("status.conditions").iter().any(gated) {
            summary.reason = "SchedulingGated".to_owned();
        }
        let (initializing, sidecar_restarts) = summary.init_containers(pod);
        if !initializing || conditions::is_true(pod, "Initialized") {
            summary.restarts = sidecar_restarts;
            summary.containers(pod);
        }
        if pod.has("metadata.deletionTimestamp") {
            if pod.text("status.reason") == "NodeLost" {
                summary.reason = "Unknown".to_owned();
            } else if !matches!(pod.text("status.phase"), "Failed" | "Succeeded") {
                summary.reason = "Terminating".to_owned();
            }
        }
        summary
    }

    /// Processes init containers up to the first unfinished one. Returns whether there is one, and the restarts of the
    /// sidecars.
    fn init_containers(&mut self, pod: &Value) -> (bool, Restarts) {
        let specs = pod.items("spec.initContainers");
        let mut of_sidecars = Restarts::default();
        let sidecars: HashSet<&str> =
            specs.iter().filter(|c| is_sidecar(c)).map(|c| c.text("name")).collect();
        for (i, status) in pod.items("status.initContainerStatuses").iter().enumerate() {
            let sidecar = sidecars.contains(status.text("name"));
            self.restarts.add(status);
            if sidecar {
                of_sidecars.add(status);
            }
            let terminated = status.at("state.terminated");
            let waiting = status.text("state.waiting.reason");
            if !terminated.is_null() && terminated.int("exitCode") == 0 {
                continue;
            }
            if sidecar && status.flag("started") {
                self.ready += usize::from(status.flag("ready"));
                continue;
            }
            self.reason = if !terminated.is_null() {
                format!("Init:{}", termination_reason(terminated))
            } else if !waiting.is_empty() && waiting != "PodInitializing" {
                format!("Init:{waiting}")
            } else {
                format!("Init:{i}/{}", specs.len())
            };
            return (true, of_sidecars);
        }
        (false, of_sidecars)
    }

    fn containers(&mut self, pod: &Value) {
        let mut running = false;
        for status in pod.items("status.containerStatuses").iter().rev() {
            self.restarts.add(status);
            let terminated = status.at("state.terminated");
            let waiting = status.text("state.waiting.reason");
            if !waiting.is_empty() {
                self.reason = waiting.to_owned();
            } else if !terminated.is_null() {
                self.reason = termination_reason(terminated);
            } else if status.flag("ready") && status.has("state.running") {
                running = true;
                self.ready += 1;
            }
        }
        if self.reason == "Completed" && running {
            let ready = conditions::is_true(pod, "Ready");
            self.reason = if ready { "Running" } else { "NotReady" }.to_owned();
        }
    }
}

/// Returns the reason why a container terminated.
fn termination_reason(terminated: &Value) -> String {
    let reason = terminated.text("reason");
    match terminated.int("signal") {
        _ if !reason.is_empty() => reason.to_owned(),
        0 => format!("ExitCode:{}", terminated.int("exitCode")),
        signal => format!("Signal:{signal}"),
    }
}

fn is_sidecar(container: &Value) -> bool {
    container.text("restartPolicy") == "Always"
}

fn readiness_gates(pod: &Value) -> String {
    let gates = pod.items("spec.readinessGates");
    if gates.is_empty() {
        return "<none>".to_owned();
    }
    let open = gates.iter().filter(|g| conditions::is_true(pod, g.text("conditionType"))).count();
    format!("{open}/{}", gates.len())
}
