//! Leader election by a Lease, as client-go does it: contenders acquire the lease themselves, or the API server elects
//! one of them (coordinated leader election, KEP-4355).

mod candidate;
mod config;

use std::time::Duration;

use api_meta::Tree as _;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::Instant;

use self::candidate::Candidacy;
pub use self::config::{CandidateVersions, LeaderElectionConfig};
use crate::{
    error::Error,
    metrics::{ClientMetrics, LeaseMetrics},
    request::Client,
    resource::Resource,
};

/// A contender for one Lease.
pub struct LeaderElection {
    client: Client,
    config: LeaderElectionConfig,
    observed: Option<ObservedLease>,
    /// The start of the last successful attempt. Other contenders count from the time they see its write, which is
    /// later. A holder that counts from here gives up before another contender may take the lease.
    renewed: Instant,
    metrics: Option<LeaseMetrics>,
}

/// The last version of the lease that this contender has read or written.
struct ObservedLease {
    lease: Value,
    spec: Spec,
    /// The time of the last change by this machine's clock; other machines' clocks are not trusted.
    since: Instant,
}

/// The holder of the lease after an attempt.
enum Holder {
    Us,
    Another,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    holder_identity: Option<String>,
    lease_duration_seconds: Option<u64>,
    acquire_time: Option<String>,
    renew_time: Option<String>,
    lease_transitions: Option<u64>,
    strategy: Option<String>,
    preferred_holder: Option<String>,
}

impl Spec {
    fn is_free(&self) -> bool {
        self.holder_identity.as_deref().unwrap_or("").is_empty()
    }

    /// Returns `true` if the holder has to give up for a candidate that is preferred.
    fn is_ending(&self) -> bool {
        let preferred = self.preferred_holder.as_deref().unwrap_or("");
        !preferred.is_empty() && self.holder_identity.as_deref() != Some(preferred)
    }
}

impl LeaderElection {
    /// Creates a contender that has not read the lease yet.
    pub fn new(client: Client, config: LeaderElectionConfig) -> Self {
        Self { client, config, observed: None, renewed: Instant::now(), metrics: None }
    }

    /// Reports in a component's metrics whether this contender holds the lease.
    #[must_use]
    pub fn measured(self, metrics: &ClientMetrics) -> Self {
        let metrics = Some(metrics.of_lease(&self.config.name));
        Self { metrics, ..self }
    }

    fn report_leading(&self, leads: bool) {
        if let Some(metrics) = &self.metrics {
            metrics.leading.set(f64::from(u8::from(leads)));
        }
    }

    /// Acquires the lease, runs `lead` while it is held, and returns when the lease is lost or `lead` ends.
    /// `lead` is dropped before another contender can take the lease. Meanwhile a candidate answers the pings of the
    /// API server.
    ///
    /// # Errors
    ///
    /// Returns an error if the lease is lost.
    pub async fn run<F: Future<Output = ()>>(self, lead: impl FnOnce() -> F) -> Result<(), Error> {
        let Some(candidacy) = Candidacy::new(&self.client, &self.config) else {
            return self.contend_and_lead(lead).await;
        };
        tokio::select! {
            result = self.contend_and_lead(lead) => result,
            never = candidacy.keep() => match never {},
        }
    }

    async fn contend_and_lead<F: Future<Output = ()>>(
        mut self,
        lead: impl FnOnce() -> F,
    ) -> Result<(), Error> {
        let mut logged = String::new();
        while let Some(trouble) = self.contend().await {
            // Log each cause once: a cluster may lack its quorum for a long time.
            if trouble != logged && !trouble.is_empty() {
                tracing::warn!(lease = %self.config.name, error = trouble, "acquiring the lease failed; trying again");
            }
            logged = trouble;
            tokio::time::sleep(self.config.retry_period.mul_f64(1.0 + rt::random::<f64>() * 0.2))
                .await;
        }
        tracing::info!(lease = %self.config.name, identity = %self.config.identity, "became leader");
        self.report_leading(true);
        let leading = lead();
        tokio::pin!(leading);
        let result = tokio::select! {
            () = &mut leading => Ok(()),
            error = self.keep() => Err(error),
        };
        self.report_leading(false);
        if result.is_ok() {
            self.release().await;
        }
        result
    }

    /// Tries once to acquire the lease. Returns `None` if it is held now, the cause if that failed, and an empty string
    /// if another contender holds it.
    async fn contend(&mut self) -> Option<String> {
        match self.attempt(self.config.attempt_timeout()).await {
            Ok(Holder::Us) => None,
            Ok(Holder::Another) => Some(String::new()),
            // Another contender was faster.
            Err(error) if error.is_conflict() || error.is_already_exists() => Some(String::new()),
            Err(error) => Some(error.to_string()),
        }
    }

    /// Renews the lease until renewals have failed for the renew deadline or another contender holds it.
    async fn keep(&mut self) -> Error {
        let mut began = Instant::now();
        loop {
            tokio::time::sleep_until(began + self.config.retry_period).await;
            began = Instant::now();
            let left = self.config.renew_deadline.saturating_sub(self.renewed.elapsed());
            match self.attempt(left.min(self.config.attempt_timeout())).await {
                Ok(Holder::Us) => {}
                Ok(Holder::Another) => {
                    return self.lease_error("another holder has it or is preferred");
                }
                // Retry conflicts too: a writer may have changed the lease without taking it.
                Err(error) if self.renewed.elapsed() >= self.config.renew_deadline => return error,
                Err(error) => {
                    tracing::warn!(lease = %self.config.name, %error, "renewing the lease failed; trying again");
                }
            }
        }
    }

    /// Acquires or renews the lease within `timeout`. It must not wait for a silent server any longer, because the next
    /// attempt may reach another one.
    async fn attempt(&mut self, timeout: Duration) -> Result<Holder, Error> {
        let began = Instant::now();
        let result = tokio::time::timeout(timeout, self.try_acquire()).await;
        let holder = result
            .unwrap_or_else(|_| Err(self.lease_error(format!("no answer within {timeout:?}"))))?;
        if matches!(holder, Holder::Us) {
            self.renewed = began;
        }
        Ok(holder)
    }

    fn lease_error(&self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
        Error::Transport {
            operation: "getting or renewing the lease",
            target: format!("{}/{}", self.config.namespace, self.config.name),
            source: source.into(),
        }
    }

    async fn try_acquire(&mut self) -> Result<Holder, Error> {
        // A holder writes without reading first; the resource version rejects the write if the lease has changed.
        if let Some(observed) =
            self.observed.as_ref().filter(|observed| self.may_keep(&observed.spec))
        {
            if let Ok(renewed) = self.write(observed).await {
                self.observe(renewed);
                return Ok(Holder::Us);
            }
            self.metrics.iter().for_each(|metrics| metrics.slow_paths.inc());
        }
        let (namespace, name) = (&self.config.namespace, &self.config.name);
        match self.client.get(&Resource::LEASES, namespace, name).await {
            Ok(lease) => self.observe(lease),
            Err(error) if error.is_not_found() && self.config.candidate.is_some() => {
                self.observed = None;
            }
            Err(error) if error.is_not_found() => {
                let spec = self.spec(&Spec::default());
                let lease =
                    json!({"metadata": {"name": name, "namespace": namespace}, "spec": spec});
                let created = self.client.create(&Resource::LEASES, namespace, &lease).await?;
                self.observe(created);
                return Ok(Holder::Us);
            }
            Err(error) => return Err(error),
        }
        let Some(observed) = &self.observed else { return Ok(Holder::Another) };
        if !self.may_acquire(observed) {
            return Ok(Holder::Another);
        }
        let ours = self.write(observed).await?;
        self.observe(ours);
        Ok(Holder::Us)
    }

    /// Reports whether this contender may write the lease. A candidate waits until it is elected. It may still acquire
    /// a lease that has expired since then, because the write fails if another one has been elected.
    fn may_acquire(&self, observed: &ObservedLease) -> bool {
        let ObservedLease { spec, since, .. } = observed;
        let duration = Duration::from_secs(spec.lease_duration_seconds.unwrap_or(0));
        let is_free = || spec.is_free() || since.elapsed() >= duration;
        self.may_keep(spec) || (self.config.candidate.is_none() && is_free())
    }

    /// Reports whether this contender holds the lease and need not give it up for a preferred candidate.
    fn may_keep(&self, spec: &Spec) -> bool {
        self.is_ours(spec) && (self.config.candidate.is_none() || !spec.is_ending())
    }

    fn is_ours(&self, spec: &Spec) -> bool {
        spec.holder_identity.as_deref() == Some(&self.config.identity)
    }

    fn observe(&mut self, lease: Value) {
        let spec = Spec::deserialize(&lease["spec"]).unwrap_or_default();
        let since = match &self.observed {
            Some(observed) if observed.spec == spec => observed.since,
            _ => Instant::now(),
        };
        self.observed = Some(ObservedLease { lease, spec, since });
    }

    /// Replaces the observed version by one that this contender holds.
    async fn write(&self, observed: &ObservedLease) -> Result<Value, Error> {
        let mut lease = observed.lease.clone();
        if let Some(members) = lease.as_object_mut() {
            members.insert("spec".to_owned(), self.spec(&observed.spec));
        }
        let (namespace, name) = (&self.config.namespace, &self.config.name);
        self.client.update(&Resource::LEASES, namespace, name, &lease).await
    }

    fn spec(&self, previous: &Spec) -> Value {
        let now = api_meta::Timestamp::from(rt::now()).micros();
        let ours = self.is_ours(previous);
        let transitions = previous.lease_transitions.unwrap_or(0);
        let acquired = if ours { previous.acquire_time.clone() } else { None };
        let mut spec = json!({
            "holderIdentity": self.config.identity,
            "leaseDurationSeconds": self.config.lease_duration.as_secs(),
            "acquireTime": acquired.unwrap_or_else(|| now.clone()),
            "renewTime": now,
            "leaseTransitions": if ours || previous.is_free() { transitions } else { transitions + 1 },
        });
        if self.config.candidate.is_some()
            && let Some(strategy) = &previous.strategy
        {
            spec.set("strategy", strategy.as_str());
        }
        spec
    }

    /// Releases the lease, so that the next contender need not wait until it expires.
    async fn release(&mut self) {
        let timeout = self.config.attempt_timeout();
        let released = tokio::time::timeout(timeout, self.try_release()).await;
        if let Err(error) = released.unwrap_or_else(|_| Err(self.lease_error("no answer in time")))
        {
            tracing::warn!(lease = %self.config.name, %error, "releasing the lease failed; it expires by itself");
        }
    }

    async fn try_release(&self) -> Result<(), Error> {
        let (namespace, name) = (&self.config.namespace, &self.config.name);
        let mut lease: Value = self.client.get(&Resource::LEASES, namespace, name).await?;
        let spec = lease.get_mut("spec").and_then(Value::as_object_mut);
        if let Some(spec) = spec
            && spec.get("holderIdentity") == Some(&json!(self.config.identity))
        {
            spec.insert("holderIdentity".to_owned(), json!(""));
            spec.insert("leaseDurationSeconds".to_owned(), json!(1));
            self.client.update::<_, Value>(&Resource::LEASES, namespace, name, &lease).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
