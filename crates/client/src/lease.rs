use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{Client, Error, Resource};

/// Leader election by a Lease, with upstream's default times.
#[derive(Clone, Debug)]
pub struct LeaderElectionConfig {
    pub namespace: String,
    pub name: String,
    /// Unique to this process, `<host>_<uuid>` as upstream's.
    pub identity: String,
    /// How long others leave a holder alone that does not renew.
    pub lease_duration: Duration,
    /// When a holder gives up that cannot renew; less than `lease_duration`.
    pub renew_deadline: Duration,
    /// How often the lease is looked at and renewed.
    pub retry_period: Duration,
}

impl LeaderElectionConfig {
    /// Upstream's times: 15 seconds of a lease, given up after 10 without renewal, and tried for every 2.
    pub fn new(namespace: &str, name: &str, identity: String) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            identity,
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        }
    }
}

/// A contender for one Lease.
pub struct LeaderElection {
    client: Client,
    config: LeaderElectionConfig,
    /// What was last seen of the lease, and when by our own clock: other machines' clocks are not trusted.
    observed: Option<(String, Instant)>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    holder_identity: Option<String>,
    lease_duration_seconds: Option<u64>,
    acquire_time: Option<String>,
    renew_time: Option<String>,
    lease_transitions: Option<u64>,
}

impl LeaderElection {
    /// A contender that has not looked at the lease yet.
    pub fn new(client: Client, config: LeaderElectionConfig) -> Self {
        Self { client, config, observed: None }
    }

    /// Waits until the lease is ours, runs `lead` while it is, and returns when it is lost or `lead` ends.
    /// `lead` is dropped before another holder can take the lease.
    pub async fn run<F: Future<Output = ()>>(
        mut self,
        lead: impl FnOnce() -> F,
    ) -> Result<(), Error> {
        let mut told = String::new();
        while let Some(trouble) = self.contend().await {
            // Said once, not every time: this may go on for as long as a cluster lacks its quorum.
            if trouble != told && !trouble.is_empty() {
                tracing::warn!(lease = %self.config.name, error = trouble, "asking for the lease; trying again");
            }
            told = trouble;
            tokio::time::sleep(self.config.retry_period.mul_f64(1.0 + rt::random::<f64>() * 0.2))
                .await;
        }
        tracing::info!(lease = %self.config.name, identity = %self.config.identity, "became leader");
        let leading = lead();
        tokio::pin!(leading);
        let result = tokio::select! {
            () = &mut leading => Ok(()),
            error = self.keep() => Err(error),
        };
        if result.is_ok() {
            self.release().await;
        }
        result
    }

    /// Tries once to get the lease; why it is not ours, and nothing where somebody else has it.
    async fn contend(&mut self) -> Option<String> {
        // A server that has gone silent must not be waited for: the next one to be asked may answer.
        match tokio::time::timeout(self.config.renew_deadline, self.try_acquire()).await {
            Ok(Ok(true)) => None,
            Ok(Ok(false)) => Some(String::new()),
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some(format!("no answer within {:?}", self.config.renew_deadline)),
        }
    }

    /// Renews until that has failed for the renew deadline.
    async fn keep(&mut self) -> Error {
        let mut renewed = Instant::now();
        loop {
            tokio::time::sleep(self.config.retry_period).await;
            // An answer that does not come must not take the time in which another may have the lease.
            let until = renewed + self.config.renew_deadline;
            let error = match tokio::time::timeout_at(until, self.try_acquire()).await {
                Ok(Ok(true)) => {
                    renewed = Instant::now();
                    continue;
                }
                Ok(Ok(false)) => "another holder has it".into(),
                Ok(Err(error)) => error.to_string(),
                Err(_) => "no answer in time".to_owned(),
            };
            if renewed.elapsed() >= self.config.renew_deadline || error.starts_with("another") {
                return Error::Transport {
                    operation: "renewing the lease",
                    target: format!("{}/{}", self.config.namespace, self.config.name),
                    source: error.into(),
                };
            }
        }
    }

    async fn try_acquire(&mut self) -> Result<bool, Error> {
        let (namespace, name) = (&self.config.namespace, &self.config.name);
        let mut lease: Value = match self.client.get(&Resource::LEASES, namespace, name).await {
            Ok(lease) => lease,
            Err(error) if error.is_not_found() => {
                let lease = json!({"metadata": {"name": name, "namespace": namespace}, "spec": self.spec(&Spec::default())});
                return created(
                    self.client.create::<_, Value>(&Resource::LEASES, namespace, &lease).await,
                );
            }
            Err(error) => return Err(error),
        };
        let spec: Spec = serde_json::from_value(lease["spec"].clone()).unwrap_or_default();
        let holder = spec.holder_identity.clone().unwrap_or_default();
        let record = lease["spec"].to_string();
        if self.observed.as_ref().is_none_or(|(seen, _)| *seen != record) {
            self.observed = Some((record, Instant::now()));
        }
        let held_for = Duration::from_secs(spec.lease_duration_seconds.unwrap_or(0));
        let fresh = self.observed.as_ref().is_some_and(|(_, at)| at.elapsed() < held_for);
        if !holder.is_empty() && holder != self.config.identity && fresh {
            return Ok(false);
        }
        if let Some(members) = lease.as_object_mut() {
            members.insert("spec".to_owned(), self.spec(&spec));
        }
        created(self.client.update::<_, Value>(&Resource::LEASES, namespace, name, &lease).await)
    }

    fn spec(&self, previous: &Spec) -> Value {
        let now = api_meta::Timestamp::from(rt::now()).micros();
        let ours = previous.holder_identity.as_deref() == Some(&self.config.identity);
        let transitions = previous.lease_transitions.unwrap_or(0);
        let first = previous.holder_identity.as_deref().unwrap_or("").is_empty();
        json!({
            "holderIdentity": self.config.identity,
            "leaseDurationSeconds": self.config.lease_duration.as_secs(),
            "acquireTime": if ours { previous.acquire_time.clone().unwrap_or_else(|| now.clone()) } else { now.clone() },
            "renewTime": now,
            "leaseTransitions": if ours || first { transitions } else { transitions + 1 },
        })
    }

    /// Lets the next contender in at once.
    async fn release(&mut self) {
        let (namespace, name) = (&self.config.namespace, &self.config.name);
        let Ok(mut lease) = self.client.get::<Value>(&Resource::LEASES, namespace, name).await
        else {
            return;
        };
        let spec = lease.get_mut("spec").and_then(Value::as_object_mut);
        if let Some(spec) = spec
            && spec.get("holderIdentity") == Some(&json!(self.config.identity))
        {
            spec.insert("holderIdentity".to_owned(), json!(""));
            spec.insert("leaseDurationSeconds".to_owned(), json!(1));
            let _: Result<Value, _> =
                self.client.update(&Resource::LEASES, namespace, name, &lease).await;
        }
    }
}

/// Losing a race is not an error: somebody else has the lease.
fn created(result: Result<Value, Error>) -> Result<bool, Error> {
    match result {
        Ok(_) => Ok(true),
        Err(error) if error.is_conflict() || error.is_already_exists() => Ok(false),
        Err(error) => Err(error),
    }
}
