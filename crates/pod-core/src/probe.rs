//! The probes' state machine: runs of results become verdicts.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::api::core::v1::{Container, Probe};

use crate::{
    Timestamp,
    time::{after, since},
};

/// The three probes. Until the first has succeeded the other two wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProbeKind {
    Startup,
    Liveness,
    Readiness,
}

impl ProbeKind {
    /// All kinds, the startup probe first.
    pub const ALL: [Self; 3] = [Self::Startup, Self::Liveness, Self::Readiness];

    /// The word in Events and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Startup => "Startup",
            Self::Liveness => "Liveness",
            Self::Readiness => "Readiness",
        }
    }

    /// The container's probe of this kind, if it has one.
    pub fn of(self, container: &Container) -> Option<&Probe> {
        match self {
            Self::Startup => container.startup_probe.as_ref(),
            Self::Liveness => container.liveness_probe.as_ref(),
            Self::Readiness => container.readiness_probe.as_ref(),
        }
    }
}

/// The numbers of a probe, with the API's defaults where it comes from a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    pub initial_delay: Duration,
    pub period: Duration,
    pub timeout: Duration,
    success_threshold: u32,
    failure_threshold: u32,
}

impl Timing {
    /// Reads a probe with upstream's defaults; what is below the least allowed is raised to it.
    pub fn of(probe: &Probe) -> Self {
        let seconds = |value: Option<i32>, default: i32, least: i32| {
            let value = value.filter(|&v| v != 0).unwrap_or(default).max(least);
            Duration::from_secs(u64::from(value.unsigned_abs()))
        };
        let count = |value: Option<i32>, default| {
            value.filter(|&v| v > 0).map_or(default, i32::unsigned_abs)
        };
        Self {
            initial_delay: seconds(probe.initial_delay_seconds, 0, 0),
            period: seconds(probe.period_seconds, 10, 1),
            timeout: seconds(probe.timeout_seconds, 1, 1),
            success_threshold: count(probe.success_threshold, 1),
            failure_threshold: count(probe.failure_threshold, 3),
        }
    }

    /// When the first probe of a container is due that started at `started`.
    pub fn first(&self, started: Timestamp) -> Timestamp {
        after(started, self.initial_delay)
    }

    /// Whether enough time has passed since the start.
    pub fn is_due(&self, started: Timestamp, now: Timestamp) -> bool {
        since(started, now) >= self.initial_delay
    }
}

/// One probe of one container's run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Track {
    timing: Timing,
    last: Option<bool>,
    run: u32,
    verdict: Option<bool>,
}

impl Track {
    /// A probe that has not been made yet.
    pub fn new(timing: Timing) -> Self {
        Self { timing, last: None, run: 0, verdict: None }
    }

    /// When the probe is to be made, and how long it may take.
    pub fn timing(&self) -> &Timing {
        &self.timing
    }

    /// Notes a result and returns the verdict if this result changed it.
    pub fn record(&mut self, success: bool) -> Option<bool> {
        self.run = if self.last == Some(success) { self.run.saturating_add(1) } else { 1 };
        self.last = Some(success);
        let threshold =
            if success { self.timing.success_threshold } else { self.timing.failure_threshold };
        if self.run < threshold || self.verdict == Some(success) {
            return None;
        }
        self.verdict = Some(success);
        self.verdict
    }
}

/// The verdicts on running containers, by their id.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verdicts(BTreeMap<String, BTreeMap<ProbeKind, bool>>);

/// What a container's probes amount to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Health {
    /// The startup probe has succeeded, or there is none.
    pub started: bool,
    /// The startup probe has failed for good: the container is started anew.
    pub startup_failed: bool,
    /// The liveness probe has not failed for good.
    pub live: bool,
    /// The readiness probe lets traffic come.
    pub ready: bool,
}

impl Verdicts {
    /// Returns whether this says something new.
    pub fn set(&mut self, id: &str, kind: ProbeKind, verdict: bool) -> bool {
        self.0.entry(id.to_owned()).or_default().insert(kind, verdict) != Some(verdict)
    }

    /// Sets what holds until a probe says otherwise.
    pub fn suppose(&mut self, id: &str, kind: ProbeKind, verdict: bool) {
        self.0.entry(id.to_owned()).or_default().entry(kind).or_insert(verdict);
    }

    /// Forgets the runs whose IDs `keep` does not want.
    pub fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        self.0.retain(|id, _| keep(id));
    }

    /// The health of a running container: until a probe has spoken, it is live, not started and not ready.
    pub fn of(&self, id: &str, container: &Container) -> Health {
        let known = self.0.get(id);
        let said = |kind: ProbeKind| known.and_then(|k| k.get(&kind)).copied();
        let started = container.startup_probe.is_none() || said(ProbeKind::Startup) == Some(true);
        Health {
            started,
            startup_failed: container.startup_probe.is_some()
                && said(ProbeKind::Startup) == Some(false),
            live: container.liveness_probe.is_none() || said(ProbeKind::Liveness) != Some(false),
            ready: started
                && (container.readiness_probe.is_none()
                    || said(ProbeKind::Readiness) == Some(true)),
        }
    }
}
