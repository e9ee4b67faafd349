//! The other API servers of the cluster: their resources ([`Peers`]), and the discovery that shows them ([`merge`]).
//!
//! A peer may serve resources that this server does not, such as during an upgrade. A request for such a resource is
//! forwarded. The answer 404 would tell controllers that its objects are deleted.
//!
//! Not responsible for: finding the peers, which is done by [`crate::reconcilers::peers`].
//!
//! Invariants:
//! - This server's own resources, custom kinds and aggregated API servers win over those of peers.
//! - A request is forwarded after it is authorized, and once only. The peer authorizes the same user again.
//! - Peers and their addresses come from keys in the store, which no API can write. A peer must have a certificate of
//!   the authorities in `--peer-ca-file`.

pub(crate) mod merge;

use std::{
    collections::{BTreeMap, HashSet},
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use api_meta::{Status, UserInfo};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use client::TlsMaterial;
use http::{HeaderMap, HeaderValue, Request, Response};
use parking_lot::{Mutex, RwLock};
use rt::FromFiles;
use serde_json::Value;
use serve::Body;
use telemetry::metrics::{IntCounter, IntCounterVec, Metrics};
use tokio::time::Instant;

use crate::{
    aggregation::{
        fetch::PeerDocument,
        proxy::{ProxyTimeout, forward},
    },
    config::Config,
    outbound::{
        aggregated::ConnectionMode,
        backends::Backends,
        peers::{PEER_PROXIED, PeerReference},
    },
    request::ResourcePath,
};

/// The error for settings with which no request can be forwarded to peers.
#[derive(Debug, thiserror::Error)]
pub enum PeersError {
    #[error("reading {path:?}: {source}; give a file of certificates in --peer-ca-file")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("using the authorities: {0}; give a file of certificates in --peer-ca-file")]
    Authorities(#[from] client::TlsError),
    #[error(
        "this server has no certificate that the other API servers trust; give --proxy-client-cert-file and \
         --proxy-client-key-file"
    )]
    NoIdentity,
}

/// Knows what the peers serve, and forwards requests to them.
pub(crate) struct Peers {
    /// The authorities of the peers' certificates, as base64 of PEM; `None` if no request is forwarded.
    authorities: Option<FromFiles<Arc<str>>>,
    /// This server's identity, which is no peer.
    pub(crate) identity: String,
    backends: Arc<Backends>,
    known: RwLock<Arc<KnownPeers>>,
    merged: Mutex<Option<MergedDocument>>,
    pub(crate) metrics: PeerMetrics,
}

/// The known peers.
#[derive(Clone, Default)]
pub(crate) struct KnownPeers {
    /// Increases whenever the discovery of a peer changes.
    generation: u64,
    pub(crate) servers: BTreeMap<String, Arc<Peer>>,
}

/// A peer and what it serves.
pub(crate) struct Peer {
    /// `None` while the peer has no key in the store: it has stopped, and may come back.
    pub(crate) reference: Option<PeerReference>,
    pub(crate) served: Arc<ServedByPeer>,
    /// `true` if the last fetch succeeded.
    pub(crate) fresh: bool,
    /// The time of the last fetch.
    pub(crate) fetched: Instant,
}

/// The resources that a peer serves.
#[derive(Default)]
pub(crate) struct ServedByPeer {
    /// The documents of `/api` and `/apis`.
    pub(crate) documents: [Arc<PeerDocument>; 2],
    /// All resources as group, version and plural name.
    resources: HashSet<(String, String, String)>,
}

/// The discovery of all servers, and the generations that it was built from: of kinds, APIServices and peers.
struct MergedDocument {
    from: (u64, u64, u64),
    body: Bytes,
}

/// The metrics of peers, with upstream's names.
pub(crate) struct PeerMetrics {
    rerouted: IntCounterVec,
    proxy_errors: IntCounterVec,
    sync_errors: IntCounterVec,
    cache_hits: IntCounter,
    cache_misses: IntCounter,
    no_peer_requests: IntCounter,
}

/// The peer that a request is forwarded to.
pub(crate) enum Route {
    To(PeerReference),
    /// Only peers that have stopped serve the resource.
    Unreachable,
}

/// The caller, the target and the limits of a forwarded request.
pub(crate) struct ForwardedRequest<'a> {
    pub(crate) path: &'a ResourcePath,
    pub(crate) user: &'a UserInfo,
    pub(crate) lane: ConnectionMode,
    pub(crate) timeout: ProxyTimeout,
}

/// The reason why the resources of the peers are unknown, as label of a metric.
#[derive(Clone, Copy)]
pub(crate) enum SyncError {
    /// The peers' keys cannot be read.
    Keys,
    /// A peer's key has no address.
    Address,
    /// A peer does not answer with its discovery.
    Fetch,
}

impl ServedByPeer {
    pub(crate) fn new(documents: [Arc<PeerDocument>; 2]) -> Self {
        let all = documents.iter().flat_map(|document| document.versions.iter());
        let resources = all.flat_map(|version| {
            version.resources.iter().filter_map(|resource| {
                let plural = resource["resource"].as_str()?.to_owned();
                Some((version.group.clone(), version.version.clone(), plural))
            })
        });
        let resources = resources.collect();
        Self { documents, resources }
    }
}

/// Reads the authorities of `--peer-ca-file` as base64. A file without certificates is an error: without a bundle, the
/// system's authorities would verify the peers.
fn read_authorities(path: &Path) -> Result<Arc<str>, PeersError> {
    let failed = |source| PeersError::Read { path: path.to_owned(), source };
    let ca = std::fs::read(path).map_err(failed)?;
    let encoded = STANDARD.encode(&ca).into();
    TlsMaterial { ca: Some(ca), ..TlsMaterial::default() }.client_config()?;
    Ok(encoded)
}

impl Peers {
    pub(crate) fn new(
        config: &Config,
        backends: Arc<Backends>,
        metrics: &Metrics,
    ) -> Result<Self, PeersError> {
        let authorities = config.peer_authorities().map(|path| {
            if config.proxy_client.is_none() {
                return Err(PeersError::NoIdentity);
            }
            let path = path.to_owned();
            FromFiles::new(vec![path.clone()], move || read_authorities(&path))
        });
        let authorities = authorities.transpose()?;
        Ok(Self {
            authorities,
            identity: config.identity(),
            backends,
            known: RwLock::default(),
            merged: Mutex::default(),
            metrics: PeerMetrics::new(metrics),
        })
    }

    /// Returns the authorities of the peers' certificates, as base64 of PEM. A file that has become unusable keeps the
    /// previous ones.
    pub(crate) fn authorities(&self) -> Option<Arc<str>> {
        self.authorities.as_ref().map(|authorities| (*authorities.current()).clone())
    }

    pub(crate) fn backends(&self) -> &Backends {
        &self.backends
    }

    pub(crate) fn known(&self) -> Arc<KnownPeers> {
        self.known.read().clone()
    }

    /// Replaces what is known. `changed` is `true` if the discovery of a peer has changed.
    pub(crate) fn learn(&self, servers: BTreeMap<String, Arc<Peer>>, changed: bool) {
        let mut known = self.known.write();
        let generation = known.generation + u64::from(changed);
        *known = Arc::new(KnownPeers { generation, servers });
    }

    /// Returns the peer for a request for a resource that this server does not serve. Returns `None` if no peer serves
    /// it either, and for a request that a peer has forwarded.
    pub(crate) fn route(&self, path: &ResourcePath, headers: &HeaderMap) -> Option<Route> {
        if headers.get(PEER_PROXIED).is_some_and(|value| value == "true") {
            return None;
        }
        let resource = (path.group.clone(), path.version.clone(), path.resource.clone());
        let known = self.known();
        let serving = known.servers.values().filter(|s| s.served.resources.contains(&resource));
        let serving: Vec<&Arc<Peer>> = serving.collect();
        if serving.is_empty() {
            return None;
        }
        let reachable = |fresh: bool| {
            let peers = serving.iter().filter(move |peer| !fresh || peer.fresh);
            peers.filter_map(|peer| peer.reference.clone()).collect::<Vec<_>>()
        };
        let mut candidates = reachable(true);
        if candidates.is_empty() {
            candidates = reachable(false);
        }
        if candidates.is_empty() {
            return Some(Route::Unreachable);
        }
        Some(Route::To(candidates.swap_remove(rt::random_in(0..candidates.len()))))
    }

    /// Forwards an authorized request. Headers with credentials and identities must already have been removed.
    pub(crate) async fn proxy(
        &self,
        tasks: &rt::Tasks,
        route: Route,
        forwarded: ForwardedRequest<'_>,
        request: Request<Body>,
    ) -> Result<Response<Body>, Box<Status>> {
        let ForwardedRequest { path, user, lane, timeout } = forwarded;
        let labels = [path.group.as_str(), path.version.as_str(), path.resource.as_str()];
        let peer = match route {
            Route::To(peer) => peer,
            Route::Unreachable => {
                let [group, version, resource] = labels;
                let of = ["endpoint_resolution", group, version, resource];
                self.metrics.proxy_errors.with_label_values(&of).inc();
                let message = "Error getting ip and port info of the remote server while proxying";
                return Err(Box::new(Status::service_unavailable(message)));
            }
        };
        let send = async |mut request: Request<Body>| {
            request.headers_mut().insert(PEER_PROXIED, HeaderValue::from_static("true"));
            peer.destination().send(&self.backends, user, lane, request).await
        };
        let response = forward(tasks, request, timeout, send).await;
        self.metrics.rerouted(response.status().as_u16(), labels);
        Ok(response)
    }

    /// Returns the body of aggregated discovery with the resources of all peers, or `None` if no peer is known. `own`
    /// returns this server's groups; `encode` encodes all groups.
    pub(crate) fn discovery(
        &self,
        own_generations: (u64, u64),
        own: impl FnOnce() -> Vec<Value>,
        encode: impl FnOnce(Vec<Value>) -> Bytes,
    ) -> Option<Bytes> {
        let known = self.known();
        if known.servers.is_empty() {
            return None;
        }
        let from = (own_generations.0, own_generations.1, known.generation);
        if let Some(merged) = self.merged.lock().as_ref().filter(|merged| merged.from == from) {
            self.metrics.cache_hits.inc();
            return Some(merged.body.clone());
        }
        self.metrics.cache_misses.inc();
        let mut groups = own();
        for peer in known.servers.values() {
            merge::add_peer(&mut groups, &peer.served.documents[1].versions, peer.fresh);
        }
        let body = encode(groups);
        *self.merged.lock() = Some(MergedDocument { from, body: body.clone() });
        Some(body)
    }

    /// Counts a request for discovery without peers.
    pub(crate) fn count_no_peer_request(&self) {
        self.metrics.no_peer_requests.inc();
    }
}

impl PeerMetrics {
    fn new(metrics: &Metrics) -> Self {
        Self {
            rerouted: metrics.counters(
                "apiserver_rerouted_request_total",
                "Requests that were forwarded to a peer, by code and resource. Without a resource: requests for the \
                 peer's discovery.",
                &["code", "group", "version", "resource"],
            ),
            proxy_errors: metrics.counters(
                "apiserver_peer_proxy_errors_total",
                "Requests that could not be forwarded to a peer, by the reason.",
                &["type", "group", "version", "resource"],
            ),
            sync_errors: metrics.counters(
                "apiserver_peer_discovery_sync_errors_total",
                "Failures to learn what the peers serve, by the reason.",
                &["type"],
            ),
            cache_hits: metrics.counter(
                "aggregator_discovery_peer_aggregated_cache_hits_total",
                "Requests for discovery with peers that were answered from the cache.",
            ),
            cache_misses: metrics.counter(
                "aggregator_discovery_peer_aggregated_cache_misses_total",
                "Requests for discovery with peers for which it was merged.",
            ),
            no_peer_requests: metrics.counter(
                "aggregator_discovery_nopeer_requests_total",
                "Requests for discovery without peers.",
            ),
        }
    }

    /// Counts a forwarded request by group, version and resource. They are empty for the discovery of a peer.
    pub(crate) fn rerouted(&self, code: u16, [group, version, resource]: [&str; 3]) {
        let code = code.to_string();
        self.rerouted.with_label_values(&[&code, group, version, resource]).inc();
    }

    pub(crate) fn sync_error(&self, error: SyncError) {
        let label = match error {
            SyncError::Keys => "lease_list",
            SyncError::Address => "hostport_resolution",
            SyncError::Fetch => "fetch_discovery",
        };
        self.sync_errors.with_label_values(&[label]).inc();
    }
}

/// Returns the address in the value of a peer's key.
pub(crate) fn address(endpoints: &Value) -> Option<SocketAddr> {
    let subset = endpoints["subsets"].get(0)?;
    let ip = subset["addresses"].get(0)?["ip"].as_str()?.parse().ok()?;
    let port = subset["ports"].get(0)?["port"].as_u64()?;
    let port = u16::try_from(port).ok().filter(|port| *port > 0)?;
    Some(SocketAddr::new(ip, port))
}
