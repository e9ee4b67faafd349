//! Coordinated leader election (KEP-4355): elects the holders of Leases that have LeaseCandidates.
//!
//! The API server that holds a Lease of its own elects. It pings the candidates of a Lease, waits
//! for their answers and writes the Lease. [`plan`] decides each step; this module observes and writes.

mod plan;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use api_meta::{GroupResource, ObjectMeta, Objects, Timestamp, Tree as _, validation};
use client::{
    Client, DeleteOptions, Error, Informer, LeaderElection, LeaderElectionConfig, ListOptions,
    NotFoundExt as _, PatchKind, PatchTarget, Preconditions, Resource,
};
use futures_util::{StreamExt as _, stream};
use serde_json::{Value, json};
use tokio::{sync::Notify, time::Instant};

use self::plan::{Candidate, Holder, Outcome, Step, next_step, write_outcome};
use crate::{
    config::{COORDINATION_GATE, Config},
    watch_cache::WatchCache,
};

/// The interval at which elections are considered without a change of a candidate.
const EVERY: Duration = Duration::from_secs(1);
/// The least time between two rounds, in which changes collect.
const PAUSE: Duration = Duration::from_millis(100);
/// The time after which a failed election is tried again.
const RETRY: Duration = Duration::from_secs(5);
/// The interval at which expired candidates are deleted.
const CLEANUP: Duration = Duration::from_secs(30 * 60);
/// The number of Leases, and of candidates of one Lease, that are written at the same time.
const PARALLEL: usize = 16;

/// Starts to elect leaders until shutdown, whenever this server holds the Lease for it.
pub(crate) fn follow(
    config: &Config,
    cache: &WatchCache,
    objects: Arc<dyn Objects>,
    client: &Client,
    tasks: &rt::Tasks,
) {
    let resource = Resource::LEASE_CANDIDATES;
    if cache.kinds().find(&resource.group, &resource.version, &resource.plural).is_none() {
        let (gate, version) = (COORDINATION_GATE, resource.api_version());
        tracing::warn!(
            "the gate {gate} elects no leaders, because {version} is not served; \
             set --runtime-config={version}=true"
        );
        return;
    }
    let changed = Arc::new(Notify::new());
    let wake = changed.clone();
    let options = ListOptions::default();
    let candidates = Informer::start(client, resource, options, tasks, move |_| wake.notify_one());
    let lease =
        LeaderElectionConfig { identity: config.identity(), ..config.election_lease.clone() };
    let elector = Arc::new(Elector { client: client.clone(), objects, candidates, changed, lease });
    tasks.keep("leader elections", move || elector.clone().contend());
}

/// A Lease by namespace and name.
type LeaseKey = (String, String);

struct Elector {
    client: Client,
    objects: Arc<dyn Objects>,
    candidates: Informer<Candidate>,
    /// Notified when a candidate changes.
    changed: Arc<Notify>,
    /// The Lease of the API server that elects.
    lease: LeaderElectionConfig,
}

/// The last seen state of an election's Lease.
struct ObservedLease {
    lease: Option<Arc<Value>>,
    /// The time since which the holder has not renewed, by this server's clock.
    since: Instant,
    /// The last failure of the election.
    failure: Option<Failure>,
}

/// A failed step of an election.
struct Failure {
    error: String,
    /// The time before which the election is not tried again.
    retry: Instant,
}

/// The error of one step of an election.
#[derive(Debug, thiserror::Error)]
enum ElectionError {
    #[error(transparent)]
    Conflict(#[from] plan::StrategyConflict),
    #[error("failed to write the Lease or its candidates: {0}")]
    Write(#[from] Error),
}

impl Elector {
    async fn contend(self: Arc<Self>) {
        loop {
            let election = LeaderElection::new(self.client.clone(), self.lease.clone());
            if let Err(error) = election.run(|| self.elect()).await {
                tracing::warn!(%error, "this API server no longer elects leaders");
            }
        }
    }

    /// Elects leaders until the caller drops the future.
    async fn elect(&self) {
        self.candidates.synced().await;
        let mut observed = BTreeMap::new();
        let mut cleanup = Instant::now() + CLEANUP;
        loop {
            observed = self.round(observed).await;
            if cleanup <= Instant::now() {
                self.delete_expired().await;
                cleanup = Instant::now() + CLEANUP;
            }
            tokio::time::sleep(PAUSE).await;
            let _: Result<(), _> = tokio::time::timeout(EVERY, self.changed.notified()).await;
        }
    }

    /// Carries out the next step of each election and returns the observed Leases.
    async fn round(
        &self,
        mut observed: BTreeMap<LeaseKey, ObservedLease>,
    ) -> BTreeMap<LeaseKey, ObservedLease> {
        let mut elections: BTreeMap<LeaseKey, Vec<Arc<Candidate>>> = BTreeMap::new();
        for candidate in self.candidates.list() {
            let (namespace, name) = (&candidate.metadata.namespace, &candidate.spec.lease_name);
            if self.is_electable(namespace, name) {
                let key = (namespace.clone(), name.clone());
                elections.entry(key).or_default().push(candidate);
            }
        }
        let steps = elections.into_iter().map(|(key, candidates)| {
            let before = observed.remove(&key);
            self.step(key, candidates, before)
        });
        let steps: Vec<_> = steps.collect();
        stream::iter(steps).buffer_unordered(PARALLEL).collect().await
    }

    /// Reports whether candidates may stand for a Lease. Names are not validated when a candidate is stored, and the
    /// Lease of the elector itself is not elected.
    fn is_electable(&self, namespace: &str, name: &str) -> bool {
        validation::dns1123_subdomain(name).is_empty()
            && (namespace, name) != (&self.lease.namespace, &self.lease.name)
    }

    async fn step(
        &self,
        key: LeaseKey,
        candidates: Vec<Arc<Candidate>>,
        before: Option<ObservedLease>,
    ) -> (LeaseKey, ObservedLease) {
        let (namespace, name) = (&*key.0, &*key.1);
        let lease = self.objects.get(&GroupResource::LEASES, namespace, name);
        let mut observed = ObservedLease::after(before, lease);
        if observed.failure.as_ref().is_some_and(|failure| Instant::now() < failure.retry) {
            return (key, observed);
        }
        let failed = self.advance(&key, &candidates, &observed).await.err();
        let failure =
            failed.map(|error| Failure { error: error.to_string(), retry: Instant::now() + RETRY });
        // Log each cause once: users of a namespace may cause any number of failures.
        if let Some(Failure { error, .. }) = &failure
            && observed.failure.as_ref().is_none_or(|before| before.error != *error)
        {
            tracing::warn!(namespace, lease = name, error, "electing the holder failed; retrying");
        }
        observed.failure = failure;
        (key, observed)
    }

    async fn advance(
        &self,
        key: &LeaseKey,
        candidates: &[Arc<Candidate>],
        observed: &ObservedLease,
    ) -> Result<(), ElectionError> {
        let now = Timestamp::from(rt::now());
        let candidates = candidates.iter().map(|candidate| &**candidate);
        match next_step(candidates, observed.holder(), now)? {
            Step::Settled | Step::Wait => {}
            Step::Ping(candidates) => {
                let pings = candidates.into_iter().map(|candidate| self.ping(candidate, now));
                let pings: Vec<_> = pings.collect();
                let results: Vec<_> =
                    stream::iter(pings).buffer_unordered(PARALLEL).collect().await;
                results.into_iter().collect::<Result<(), Error>>()?;
            }
            Step::Elect(outcome) => self.write(key, outcome, observed, now).await?,
        }
        Ok(())
    }

    async fn ping(&self, candidate: &Candidate, now: Timestamp) -> Result<(), Error> {
        let ObjectMeta { namespace, name, resource_version, .. } = &candidate.metadata;
        let at = PatchTarget { namespace, name, subresource: "" };
        let patch = json!({"metadata": {"resourceVersion": resource_version},
            "spec": {"pingTime": now.micros()}});
        let resource = &Resource::LEASE_CANDIDATES;
        let pinged = self.client.patch::<Value>(resource, at, PatchKind::Merge, &patch).await;
        unless_outdated(pinged.or_none())
    }

    async fn write(
        &self,
        (namespace, name): &LeaseKey,
        outcome: Outcome<'_>,
        observed: &ObservedLease,
        now: Timestamp,
    ) -> Result<(), Error> {
        let mut lease = match &observed.lease {
            Some(lease) => (**lease).clone(),
            None => json!({"metadata": {"namespace": namespace, "name": name}}),
        };
        let mut spec = lease.at("spec").clone();
        write_outcome(&mut spec, outcome, observed.holder(), now);
        if &spec == lease.at("spec") {
            return Ok(());
        }
        lease.set("spec", spec);
        let Outcome { strategy, electee } = outcome;
        let resource = &Resource::LEASES;
        let written = if observed.lease.is_some() {
            self.client.update::<_, Value>(resource, namespace, name, &lease).await
        } else {
            self.client.create::<_, Value>(resource, namespace, &lease).await
        };
        if written.is_ok() {
            let electee = electee.unwrap_or_default();
            tracing::info!(%namespace, lease = %name, strategy, electee, "elected the holder");
        }
        unless_outdated(written)
    }

    /// Deletes the candidates that have not renewed for a long time.
    async fn delete_expired(&self) {
        let now = Timestamp::from(rt::now());
        let expired =
            self.candidates.list().into_iter().filter(|candidate| !candidate.is_valid(now));
        let deletions: Vec<_> = expired.map(|candidate| self.delete(candidate)).collect();
        let results: Vec<_> = stream::iter(deletions).buffer_unordered(PARALLEL).collect().await;
        if let Some(error) = results.into_iter().find_map(Result::err) {
            tracing::warn!(%error, "failed to delete expired LeaseCandidates; retrying later");
        }
    }

    async fn delete(&self, candidate: Arc<Candidate>) -> Result<(), Error> {
        let ObjectMeta { namespace, name, uid, resource_version, .. } = &candidate.metadata;
        let (uid, resource_version) = (Some(uid.clone()), Some(resource_version.clone()));
        let preconditions = Some(Preconditions { uid, resource_version });
        let options = DeleteOptions { preconditions, ..DeleteOptions::default() };
        let resource = &Resource::LEASE_CANDIDATES;
        let deleted = self.client.delete(resource, namespace, name, &options).await;
        unless_outdated(deleted.or_none())
    }
}

impl ObservedLease {
    /// Returns the state after the Lease was read again. Only a renewal restarts its time. A dead holder does not hold
    /// the Lease longer because the elector has set `preferredHolder`.
    fn after(before: Option<Self>, lease: Option<Arc<Value>>) -> Self {
        let renewal = |lease: &Option<Arc<Value>>| {
            let fields = ["spec.holderIdentity", "spec.renewTime"];
            lease.as_ref().map(|lease| fields.map(|field| lease.text(field).to_owned()))
        };
        let (since, failure) = match before {
            Some(before) if renewal(&before.lease) == renewal(&lease) => {
                (before.since, before.failure)
            }
            before => (Instant::now(), before.and_then(|before| before.failure)),
        };
        Self { lease, since, failure }
    }

    /// Returns the holder. A Lease expires when this server has seen no renewal for its duration, because the clocks of
    /// holders are not trusted.
    fn holder(&self) -> Holder<'_> {
        let Some(lease) = &self.lease else { return Holder::None };
        let spec = lease.at("spec");
        let duration = u64::try_from(spec.int("leaseDurationSeconds")).unwrap_or(0);
        let expired = self.since.elapsed() >= Duration::from_secs(duration);
        match spec.text("holderIdentity") {
            "" => Holder::None,
            _ if expired || spec.blank("renewTime") => Holder::None,
            holder => Holder::Named(holder),
        }
    }
}

/// Treats a write on an outdated version as success: the next round reads the new version.
fn unless_outdated<T>(written: Result<T, Error>) -> Result<(), Error> {
    match written {
        Err(error) if !error.is_conflict() && !error.is_already_exists() => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_renewals_keep_lease_from_expiring() {
        let lease = |renewed: &str, preferred: &str| {
            let spec = json!({"holderIdentity": "a", "leaseDurationSeconds": 15,
                "renewTime": renewed, "preferredHolder": preferred});
            Some(Arc::new(json!({"metadata": {"resourceVersion": preferred}, "spec": spec})))
        };
        let observed = ObservedLease::after(None, lease("1", "b"));
        tokio::time::advance(Duration::from_secs(10)).await;
        let observed = ObservedLease::after(Some(observed), lease("1", "c"));
        assert_eq!(observed.lease, lease("1", "c"));
        assert_eq!(observed.holder(), Holder::Named("a"));
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!(observed.holder(), Holder::None);
        let observed = ObservedLease::after(Some(observed), lease("2", "c"));
        assert_eq!(observed.holder(), Holder::Named("a"));
    }
}
