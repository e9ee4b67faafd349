//! The configuration of leader election.

use std::time::Duration;

use api_config::{FeatureGates, scheduler::LeaderElection as LeaderElectionSettings};
use api_meta::{ErrorList, FieldError, GoDuration, Path};

/// The configuration of leader election by a Lease.
#[derive(Clone, Debug)]
pub struct LeaderElectionConfig {
    /// The namespace of the Lease.
    pub namespace: String,
    /// The name of the Lease.
    pub name: String,
    /// The identity of this process, unique as `<host>_<uuid>` like upstream's.
    pub identity: String,
    /// The time without a renewal after which another contender may take the lease.
    pub lease_duration: Duration,
    /// The time without a successful renewal after which the holder gives up; less than `lease_duration`.
    pub renew_deadline: Duration,
    /// The time between two attempts.
    pub retry_period: Duration,
    /// The versions of this candidate in a coordinated election, in which the API server elects the holder. `None` if
    /// contenders acquire the lease themselves.
    pub candidate: Option<CandidateVersions>,
}

impl LeaderElectionConfig {
    /// Returns a configuration with upstream's times: a lease of 15 s, a renew deadline of 10 s, an attempt every 2 s.
    pub fn new(namespace: &str, name: &str, identity: String) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            identity,
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
            candidate: None,
        }
    }

    /// Returns the configuration of this process: with an identity of its own and, if the gate
    /// `CoordinatedLeaderElection` is on, as a candidate with the versions of this build.
    #[must_use]
    pub fn of_process(self, features: &FeatureGates) -> Self {
        let identity = format!("{}_{:032x}", rt::hostname(), rt::random::<u128>());
        let coordinated = features.is_enabled("CoordinatedLeaderElection");
        let candidate =
            self.candidate.or_else(|| coordinated.then(CandidateVersions::of_this_build));
        Self { identity, candidate, ..self }
    }

    /// Applies the settings of a configuration file or of flags, and validates the result like upstream.
    pub fn apply(
        &mut self,
        settings: &LeaderElectionSettings,
        path: &Path,
        errors: &mut ErrorList,
    ) {
        if let Some(other) = settings.resource_lock.as_deref().filter(|lock| *lock != "leases") {
            let detail = "resourceLock value must be \"leases\"";
            errors.push(FieldError::invalid(&path.child("resourceLock"), other, detail));
        }
        let names = [
            ("resourceName", &settings.resource_name, &mut self.name),
            ("resourceNamespace", &settings.resource_namespace, &mut self.namespace),
        ];
        for (field, value, name) in names {
            match value.as_deref() {
                None => {}
                Some("") => errors.push(FieldError::required(&path.child(field), "")),
                Some(value) => value.clone_into(name),
            }
        }
        let times = [
            ("leaseDuration", settings.lease_duration, &mut self.lease_duration),
            ("renewDeadline", settings.renew_deadline, &mut self.renew_deadline),
            ("retryPeriod", settings.retry_period, &mut self.retry_period),
        ];
        for (field, value, time) in times {
            let Some(value) = value else { continue };
            if value <= GoDuration::ZERO {
                let detail = "must be greater than zero";
                errors.push(FieldError::invalid(&path.child(field), value.to_string(), detail));
            }
            *time = value.to_std();
        }
        if self.lease_duration <= self.renew_deadline {
            let detail = "LeaseDuration must be greater than RenewDeadline";
            errors.push(FieldError::forbidden(&path.child("leaseDuration"), detail));
        }
        if self.renew_deadline <= self.retry_period.mul_f64(1.2) {
            let detail = "must be greater than 1.2 times retryPeriod";
            errors.push(FieldError::forbidden(&path.child("renewDeadline"), detail));
        }
    }

    /// Returns the timeout of one attempt. The renew deadline leaves time for a second attempt, so that one slow
    /// response does not cost the lease.
    pub(super) fn attempt_timeout(&self) -> Duration {
        self.renew_deadline / 2
    }
}

/// The versions of a candidate. The API server elects the candidate that emulates the oldest version.
#[derive(Clone, Debug)]
pub struct CandidateVersions {
    /// The version of the program, without `v`.
    pub binary: String,
    /// The version whose behaviour the program shows, without `v`.
    pub emulation: String,
}

impl CandidateVersions {
    /// Returns the versions of this build. As upstream, the emulated version has no patch number.
    pub fn of_this_build() -> Self {
        let binary = version::KUBERNETES_VERSION.trim_start_matches('v');
        let minor = binary.rsplit_once('.').map_or(binary, |(minor, _)| minor);
        Self { binary: binary.to_owned(), emulation: format!("{minor}.0") }
    }
}
