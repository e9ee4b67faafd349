//! Finds the peers of this server, and fetches the list of resources that each serves.
//!
//! A peer is found by its key in the store, which expires when the peer stops. It is remembered as long as its identity
//! Lease lasts: requests for its resources fail with 503, because 404 would mean that the objects are gone.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::Duration,
};
use tokio::time::Instant;

use api_codec::protobuf;
use api_meta::Objects;
use api_schema::Schema;
use futures_util::future;
use store::KeyRange;

use super::{
    identity_lease,
    progress::{Progress, Step},
};
use crate::{
    aggregation::{
        Aggregation,
        fetch::{FetchError, PeerDocument, fetch_peer},
    },
    outbound::peers::PeerReference,
    peers::{Peer, Peers, ServedByPeer, SyncError, address},
    storage::PEER_LEASES,
    watch_cache::WatchCache,
};

/// The interval at which keys are read. New peers and those that have failed are queried each time.
const EVERY: Duration = Duration::from_secs(2);
/// The interval between conditional requests to a peer.
const AGAIN: Duration = Duration::from_secs(30);
/// The maximum number of API servers with a key, and of peers that are remembered. Further ones are ignored.
const MOST: usize = 32;

/// The loop's view of this server.
pub(crate) struct PeerSync {
    pub(crate) peers: Arc<Peers>,
    pub(crate) cache: Arc<WatchCache>,
    pub(crate) objects: Arc<dyn Objects>,
    pub(crate) aggregation: Arc<Aggregation>,
}

/// Keeps the peers' resources until shutdown.
pub(crate) async fn keep(sync: Arc<PeerSync>, progress: Progress) {
    let mut every = tokio::time::interval(EVERY);
    every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        every.tick().await;
        match sync.find().await {
            Ok(found) => sync.ask(found).await,
            Err(error) => {
                sync.peers.metrics.sync_error(SyncError::Keys);
                tracing::warn!(%error, "failed to read the keys of the other API servers; retrying");
            }
        }
        progress.done(Step::Peers);
    }
}

impl PeerSync {
    /// Returns the peers that have a key in the store.
    async fn find(&self) -> store::Result<BTreeMap<String, PeerReference>> {
        let Some(authorities) = self.peers.authorities() else { return Ok(BTreeMap::new()) };
        let store = &self.cache.main().store;
        let found = store.range(KeyRange::prefix(PEER_LEASES), MOST, 0).await?;
        if found.more {
            tracing::warn!(most = MOST, "ignoring further API servers of the cluster");
        }
        let mut peers = BTreeMap::new();
        for item in &found.items {
            let Some(name) = item.key.strip_prefix(PEER_LEASES) else { continue };
            if name == self.peers.identity {
                continue;
            }
            let endpoints = protobuf::from_protobuf(Schema::builtin(), &item.value);
            match endpoints.ok().as_ref().and_then(address) {
                Some(address) => {
                    let authorities = authorities.clone();
                    peers.insert(name.to_owned(), PeerReference { address, authorities });
                }
                None => {
                    self.peers.metrics.sync_error(SyncError::Address);
                    tracing::warn!(peer = name, "the key of an API server has no address");
                }
            }
        }
        Ok(peers)
    }

    /// Queries the peers that have not been queried recently, all at the same time.
    async fn ask(&self, found: BTreeMap<String, PeerReference>) {
        let (before, now) = (self.peers.known(), Instant::now());
        let asked = found.iter().map(|(name, reference)| {
            let known = before.servers.get(name);
            async move {
                let due = known.is_none_or(|peer| {
                    let moved = peer.reference.as_ref() != Some(reference);
                    moved || !peer.fresh || now - peer.fetched >= AGAIN
                });
                let peer = match known.filter(|_| !due) {
                    Some(known) => known.clone(),
                    None => self.learn(name, reference, known).await,
                };
                (name.clone(), peer)
            }
        });
        let mut servers: BTreeMap<String, Arc<Peer>> =
            future::join_all(asked).await.into_iter().collect();
        self.remember(&mut servers, &before.servers);
        let served = |servers: &BTreeMap<String, Arc<Peer>>| -> Vec<_> {
            servers.values().map(|peer| (Arc::as_ptr(&peer.served), peer.fresh)).collect()
        };
        let changed = served(&servers) != served(&before.servers);
        self.peers.learn(servers, changed);
    }

    /// Keeps the peers whose key has expired, but not their Lease.
    fn remember(
        &self,
        servers: &mut BTreeMap<String, Arc<Peer>>,
        before: &BTreeMap<String, Arc<Peer>>,
    ) {
        let gone: Vec<_> = before.iter().filter(|(name, _)| !servers.contains_key(*name)).collect();
        if gone.is_empty() {
            return;
        }
        let leased = identity_lease::servers(&*self.objects);
        for (name, peer) in gone {
            if !leased.contains(name) || servers.len() >= MOST {
                tracing::info!(peer = name, "an API server has left the cluster");
                continue;
            }
            if peer.reference.is_some() {
                tracing::warn!(peer = name, "an API server has stopped");
            }
            let (served, fetched) = (peer.served.clone(), peer.fetched);
            let stopped = Peer { reference: None, served, fresh: false, fetched };
            servers.insert(name.clone(), Arc::new(stopped));
        }
    }

    /// Asks a peer what it serves. If it does not answer, what it served before is kept.
    async fn learn(
        &self,
        name: &str,
        reference: &PeerReference,
        before: Option<&Arc<Peer>>,
    ) -> Arc<Peer> {
        let served = self.fetch(reference, before.map(|peer| &peer.served)).await;
        let (served, fresh) = match served {
            Ok(served) => (served, true),
            Err(error) => {
                self.peers.metrics.sync_error(SyncError::Fetch);
                let address = reference.address;
                if before.is_none_or(|peer| peer.fresh) {
                    tracing::warn!(
                        peer = name, %address, %error,
                        "failed to learn what another API server serves; retrying"
                    );
                } else {
                    tracing::debug!(peer = name, %address, %error, "an API server still fails");
                }
                (before.map(|peer| peer.served.clone()).unwrap_or_default(), false)
            }
        };
        let (reference, fetched) = (Some(reference.clone()), Instant::now());
        Arc::new(Peer { reference, served, fresh, fetched })
    }

    async fn fetch(
        &self,
        reference: &PeerReference,
        before: Option<&Arc<ServedByPeer>>,
    ) -> Result<Arc<ServedByPeer>, FetchError> {
        let none = ServedByPeer::default();
        let old = before.map_or(&none, |before| before);
        let [legacy, named] = &old.documents;
        let (new_legacy, new_named) = future::try_join(
            self.document(reference, "/api", legacy),
            self.document(reference, "/apis", named),
        )
        .await?;
        let is_same = Arc::ptr_eq(legacy, &new_legacy) && Arc::ptr_eq(named, &new_named);
        match before.filter(|_| is_same) {
            Some(before) => Ok(before.clone()),
            None => Ok(Arc::new(ServedByPeer::new([new_legacy, new_named]))),
        }
    }

    async fn document(
        &self,
        reference: &PeerReference,
        path: &str,
        old: &Arc<PeerDocument>,
    ) -> Result<Arc<PeerDocument>, FetchError> {
        let fetched = fetch_peer(reference, self.peers.backends(), path, &old.etag).await;
        let code = match &fetched {
            Ok(Some(_)) => 200,
            Ok(None) => 304,
            Err(FetchError::Status { code, .. }) => *code,
            Err(_) => 503,
        };
        self.peers.metrics.rerouted(code, [""; 3]);
        fetched.map(|new| match new {
            Some(new) => Arc::new(self.without_shared(new)),
            None => old.clone(),
        })
    }

    /// Removes custom kinds and the APIs of aggregated API servers, which all API servers share through the store. The
    /// peer's document may still show one that has been deleted.
    fn without_shared(&self, mut document: PeerDocument) -> PeerDocument {
        let (kinds, known) = (self.cache.kinds(), self.aggregation.snapshot());
        let custom = kinds.all.iter().filter(|resource| resource.definition.custom.is_some());
        let custom: HashSet<(&str, &str)> = custom
            .flat_map(|resource| &resource.definition.served)
            .map(|served| (&*served.group, &*served.version))
            .collect();
        document.versions.retain(|version| {
            let (group, version) = (version.group.as_str(), version.version.as_str());
            !custom.contains(&(group, version)) && known.remote(group, version).is_none()
        });
        document
    }
}
