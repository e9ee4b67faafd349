//! The LeaseCandidate of a process in a coordinated election: created at the start and renewed when the API server
//! requests it.

use std::{convert::Infallible, time::Duration};

use api_meta::{Timestamp, Tree as _};
use serde::Deserialize;
use serde_json::{Value, json};

use super::config::{CandidateVersions, LeaderElectionConfig};
use crate::{error::Error, request::Client, resource::Resource};

/// The time after which a candidate renews without a request. The API server deletes candidates after half an hour.
const RENEWAL: Duration = Duration::from_secs(5 * 60);

/// The LeaseCandidate that a contender maintains.
pub(super) struct Candidacy {
    client: Client,
    config: LeaderElectionConfig,
    versions: CandidateVersions,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Times {
    ping_time: Option<Timestamp>,
    renew_time: Option<Timestamp>,
}

impl Candidacy {
    /// Returns the candidacy of a contender, or `None` if it acquires the lease itself.
    pub(super) fn new(client: &Client, config: &LeaderElectionConfig) -> Option<Self> {
        let versions = config.candidate.clone()?;
        Some(Self { client: client.clone(), config: config.clone(), versions })
    }

    /// Creates the candidate and renews it in time.
    pub(super) async fn keep(&self) -> Infallible {
        let mut logged = String::new();
        loop {
            let timeout = self.config.attempt_timeout();
            let kept = tokio::time::timeout(timeout, self.renew()).await;
            let trouble = match kept {
                Ok(Ok(())) => String::new(),
                Ok(Err(error)) => error.to_string(),
                Err(_) => format!("no answer within {timeout:?}"),
            };
            // Log each cause once: an API server may lack the kind for a long time.
            if trouble != logged && !trouble.is_empty() {
                tracing::warn!(
                    candidate = %self.config.identity, error = trouble,
                    "creating or renewing the LeaseCandidate failed; trying again"
                );
            }
            logged = trouble;
            tokio::time::sleep(self.config.retry_period).await;
        }
    }

    async fn renew(&self) -> Result<(), Error> {
        let LeaderElectionConfig { namespace, identity, .. } = &self.config;
        let resource = &Resource::LEASE_CANDIDATES;
        let now = Timestamp::from(rt::now());
        let mut candidate: Value = match self.client.get(resource, namespace, identity).await {
            Ok(found) => found,
            Err(error) if error.is_not_found() => {
                let created = self.new_object(now);
                return self
                    .client
                    .create::<_, Value>(resource, namespace, &created)
                    .await
                    .map(drop);
            }
            Err(error) => return Err(error),
        };
        let times = Times::deserialize(&candidate["spec"]).unwrap_or_default();
        let Some(renewed) = times.renewal(now) else { return Ok(()) };
        candidate.set("spec.renewTime", renewed.micros());
        self.client.update::<_, Value>(resource, namespace, identity, &candidate).await.map(drop)
    }

    fn new_object(&self, now: Timestamp) -> Value {
        let LeaderElectionConfig { namespace, name, identity, .. } = &self.config;
        json!({
            "metadata": {"namespace": namespace, "name": identity},
            "spec": {
                "leaseName": name,
                "binaryVersion": self.versions.binary,
                "emulationVersion": self.versions.emulation,
                "strategy": "OldestEmulationVersion",
                "renewTime": now.micros(),
            },
        })
    }
}

impl Times {
    /// Returns the time to write as the renewal, or `None` if it is not due. A ping is answered by a time that is not
    /// before it, even if the clocks differ.
    fn renewal(&self, now: Timestamp) -> Option<Timestamp> {
        let Some(renewed) = self.renew_time else { return Some(now) };
        match self.ping_time {
            Some(ping) if ping > renewed => Some(now.max(ping)),
            _ => (now.since(renewed) >= RENEWAL).then_some(now),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renews_when_asked_and_every_five_minutes() {
        let at = |seconds| Some(Timestamp::from_unix(seconds, 0));
        for (ping_time, renew_time, now, want) in [
            (None, None, 100, at(100)),
            (None, at(100), 101, None),
            (None, at(100), 400, at(400)),
            (at(100), at(100), 101, None),
            (at(102), at(100), 103, at(103)),
            (at(102), at(100), 90, at(102)),
            (at(50), at(100), 90, None),
        ] {
            let times = Times { ping_time, renew_time };
            let found = times.renewal(Timestamp::from_unix(now, 0));
            assert_eq!(found, want, "{ping_time:?} {renew_time:?} {now}");
        }
    }

    #[test]
    fn names_versions_without_prefix() {
        let versions = CandidateVersions::of_this_build();
        assert!(version::KUBERNETES_VERSION.ends_with(&versions.binary));
        assert!(versions.emulation.starts_with("1.") && versions.emulation.ends_with(".0"));
    }
}
