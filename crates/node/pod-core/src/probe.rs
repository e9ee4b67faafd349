//! The state machine of probes: consecutive results become verdicts.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::api::core::v1::{Container, Probe};

use crate::time::{Timestamp, after, since};

/// The kinds of probes. The other two wait until the startup probe has succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProbeKind {
    /// The startup probe.
    Startup,
    /// The liveness probe.
    Liveness,
    /// The readiness probe.
    Readiness,
}

impl ProbeKind {
    /// All kinds, the startup probe first.
    pub const ALL: [Self; 3] = [Self::Startup, Self::Liveness, Self::Readiness];

    /// Returns the kind's name in Events and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Startup => "Startup",
            Self::Liveness => "Liveness",
            Self::Readiness => "Readiness",
        }
    }

    /// Returns the container's probe of this kind, if it has one.
    pub fn of(self, container: &Container) -> Option<&Probe> {
        match self {
            Self::Startup => container.startup_probe.as_ref(),
            Self::Liveness => container.liveness_probe.as_ref(),
            Self::Readiness => container.readiness_probe.as_ref(),
        }
    }
}

/// The parameters of a probe, with the API's defaults for static Pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// The delay before the first run.
    pub initial_delay: Duration,
    /// The interval between two runs.
    pub period: Duration,
    /// The timeout of a run.
    pub timeout: Duration,
    success_threshold: u32,
    failure_threshold: u32,
}

impl Timing {
    /// Reads a probe's parameters. Missing values get upstream's defaults, and too small ones are raised.
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

    /// Returns the time of the first run for a container that started at `started`.
    pub fn first(&self, started: Timestamp) -> Timestamp {
        after(started, self.initial_delay)
    }

    /// Reports whether the initial delay has passed.
    pub fn is_due(&self, started: Timestamp, now: Timestamp) -> bool {
        since(started, now) >= self.initial_delay
    }
}

/// The state of one probe of one container's run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Track {
    timing: Timing,
    last: Option<bool>,
    run: u32,
    verdict: Option<bool>,
}

impl Track {
    /// Creates the state of a probe without results.
    pub fn new(timing: Timing) -> Self {
        Self { timing, last: None, run: 0, verdict: None }
    }

    /// Returns the probe's parameters.
    pub fn timing(&self) -> &Timing {
        &self.timing
    }

    /// Records a result. Returns the verdict if this result changed it.
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

/// The verdicts on running containers by container ID.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verdicts(BTreeMap<String, BTreeMap<ProbeKind, bool>>);

/// The health of a container according to its probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Health {
    /// `true` if the startup probe has succeeded or does not exist.
    pub started: bool,
    /// `true` if the startup probe has failed and the container must restart.
    pub startup_failed: bool,
    /// `false` if the liveness probe has failed.
    pub live: bool,
    /// `true` if the container may receive traffic.
    pub ready: bool,
}

impl Verdicts {
    /// Sets a verdict. Returns `true` if it has changed.
    pub fn set(&mut self, id: &str, kind: ProbeKind, verdict: bool) -> bool {
        self.0.entry(id.to_owned()).or_default().insert(kind, verdict) != Some(verdict)
    }

    /// Sets a verdict unless a probe has set one.
    pub fn suppose(&mut self, id: &str, kind: ProbeKind, verdict: bool) {
        self.0.entry(id.to_owned()).or_default().entry(kind).or_insert(verdict);
    }

    /// Keeps the verdicts on containers for whose IDs `keep` returns `true`.
    pub fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        self.0.retain(|id, _| keep(id));
    }

    /// Returns the health of a running container. Before the first results it is live, not started and not ready.
    pub fn of(&self, id: &str, container: &Container) -> Health {
        let verdicts = self.0.get(id);
        let verdict = |kind: ProbeKind| verdicts.and_then(|k| k.get(&kind)).copied();
        let started =
            container.startup_probe.is_none() || verdict(ProbeKind::Startup) == Some(true);
        Health {
            started,
            startup_failed: container.startup_probe.is_some()
                && verdict(ProbeKind::Startup) == Some(false),
            live: container.liveness_probe.is_none() || verdict(ProbeKind::Liveness) != Some(false),
            ready: started
                && (container.readiness_probe.is_none()
                    || verdict(ProbeKind::Readiness) == Some(true)),
        }
    }
}
