//! Scrapes the kubelets while clients request metrics.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::{Duration, UNIX_EPOCH},
};

use client::{Client, ClientTls, HttpTransport, ListOptions, Resource, Transport as _};
use futures_util::{StreamExt, stream};
use http::Request;
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::{sync::Notify, time::Instant};

use crate::points::{KubeletMetrics, Node, RESOLUTION_MS, read};

const RESOLUTION: Duration = Duration::from_millis(RESOLUTION_MS as u64);
/// The time after the last request for which kubelets are still scraped.
const KEEP_SCRAPING: Duration = Duration::from_secs(60);
/// The age above which points are discarded.
const STALE: Duration = Duration::from_millis(2 * RESOLUTION_MS as u64);
/// The time between the first two scrapes. A kubelet reads its cgroups at most once a second.
const FIRST_INTERVAL: Duration = Duration::from_millis(1200);
/// The time limit for the response of a kubelet.
const SCRAPE_TIMEOUT: Duration = Duration::from_secs(5);
/// The number of kubelets that are scraped concurrently.
const CONCURRENCY: usize = 16;
/// The size limit of a response; a thousand containers need a tenth of it.
const MAX_RESPONSE: usize = 8 << 20;

/// The scrapes by node name.
pub(crate) type Nodes = HashMap<String, Node>;

struct State {
    nodes: Arc<Nodes>,
    /// The time of the last scrape after which two points were available.
    complete: Option<Instant>,
    /// The time of the last request of a client.
    requested: Option<Instant>,
}

/// The scraper and its results.
pub(crate) struct Scraper {
    client: Client,
    tls: ClientTls,
    state: Mutex<State>,
    /// Held during a scrape.
    turn: tokio::sync::Mutex<()>,
    interest: Notify,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct View {
    metadata: api_meta::ObjectMeta,
    status: Status,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Status {
    addresses: Vec<Address>,
    daemon_endpoints: Endpoints,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Address {
    #[serde(rename = "type")]
    kind: String,
    address: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Endpoints {
    kubelet_endpoint: Endpoint,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Endpoint {
    port: u16,
}

/// A kubelet whose metrics cannot be read.
#[derive(Debug, thiserror::Error)]
enum ScrapeError {
    #[error("no answer within the time limit")]
    Timeout,
    #[error("the Node's status has no usable address and port of the kubelet")]
    NoAddress,
    #[error(transparent)]
    Request(#[from] http::Error),
    #[error(transparent)]
    Client(#[from] client::Error),
    #[error("it answers {0}")]
    Status(http::StatusCode),
}

impl View {
    /// Returns the address of the kubelet.
    fn kubelet(&self) -> Option<SocketAddr> {
        let addresses = self.status.addresses.iter().filter(|a| a.kind == "InternalIP");
        let ip: IpAddr = addresses.into_iter().find_map(|a| a.address.parse().ok())?;
        // A client that may write a Node's status must not redirect this identity's requests to this machine.
        let away = ip.is_loopback() || ip.is_unspecified() || ip.is_multicast();
        let port = self.status.daemon_endpoints.kubelet_endpoint.port;
        (!away && port > 0).then(|| SocketAddr::new(ip, port))
    }
}

impl Scraper {
    pub(crate) fn new(client: Client, tls: ClientTls) -> Self {
        let state = State { nodes: Arc::default(), complete: None, requested: None };
        let (turn, interest) = (tokio::sync::Mutex::default(), Notify::new());
        Self { client, tls, state: Mutex::new(state), turn, interest }
    }

    /// Creates a scraper with known results.
    #[cfg(test)]
    pub(crate) fn with_results(client: Client, tls: ClientTls, nodes: Nodes) -> Self {
        let scraper = Self::new(client, tls);
        let state =
            State { nodes: Arc::new(nodes), complete: Some(Instant::now()), requested: None };
        *scraper.state() = state;
        scraper
    }

    fn state(&self) -> parking_lot::MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Returns the results, after two scrapes if there are no recent ones.
    pub(crate) async fn nodes(&self) -> Arc<Nodes> {
        let current = || {
            let mut state = self.state();
            state.requested = Some(Instant::now());
            state.complete.filter(|at| at.elapsed() < STALE).map(|_| state.nodes.clone())
        };
        if let Some(nodes) = current() {
            self.interest.notify_one();
            return nodes;
        }
        let turn = self.turn.lock().await;
        // Another request may have scraped in the meantime.
        if let Some(nodes) = current() {
            return nodes;
        }
        self.state().nodes = Arc::default();
        self.scrape().await;
        tokio::time::sleep(FIRST_INTERVAL).await;
        self.scrape().await;
        self.state().complete = Some(Instant::now());
        drop(turn);
        self.interest.notify_one();
        self.state().nodes.clone()
    }

    /// Scrapes periodically while clients request metrics, until it is dropped.
    pub(crate) async fn follow(self: Arc<Self>) {
        loop {
            self.interest.notified().await;
            while self.state().requested.is_some_and(|at| at.elapsed() < KEEP_SCRAPING) {
                tokio::time::sleep(RESOLUTION).await;
                let _turn = self.turn.lock().await;
                self.scrape().await;
                self.state().complete = Some(Instant::now());
            }
        }
    }

    /// Scrapes all kubelets once. Nodes that do not answer or no longer exist are dropped.
    async fn scrape(&self) {
        let listed = self.client.list::<View>(&Resource::NODES, "", &ListOptions::default()).await;
        let listed = match listed {
            Ok(listed) => listed.items,
            Err(error) => {
                tracing::warn!(%error, "cannot list nodes for scraping their kubelets");
                Vec::new()
            }
        };
        let scrapes = listed.into_iter().map(|node| async move {
            let scraped = tokio::time::timeout(SCRAPE_TIMEOUT, self.scrape_kubelet(&node)).await;
            let name = node.metadata.name;
            scraped
                .unwrap_or(Err(ScrapeError::Timeout))
                .inspect_err(|error| tracing::info!(node = name, %error, "cannot scrape a kubelet"))
                .ok()
                .map(|metrics| (name, metrics))
        });
        let scraped: Vec<(String, KubeletMetrics)> = stream::iter(scrapes)
            .buffer_unordered(CONCURRENCY)
            .filter_map(async |scraped| scraped)
            .collect()
            .await;
        let mut state = self.state();
        let mut nodes = (*state.nodes).clone();
        nodes.retain(|name, _| scraped.iter().any(|(node, _)| node == name));
        for (name, metrics) in scraped {
            nodes.entry(name).or_default().store(metrics);
        }
        state.nodes = Arc::new(nodes);
    }

    async fn scrape_kubelet(&self, node: &View) -> Result<KubeletMetrics, ScrapeError> {
        let address = node.kubelet().ok_or(ScrapeError::NoAddress)?;
        // The certificate must name the address, as for the API server's connections.
        let transport = HttpTransport::at(address, self.tls.clone());
        let request = Request::get("/metrics/resource").body(client::empty())?;
        let response = transport.send(request).await?;
        if response.status() != http::StatusCode::OK {
            return Err(ScrapeError::Status(response.status()));
        }
        let body = client::read("/metrics/resource", response.into_body(), MAX_RESPONSE).await?;
        let now = rt::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        Ok(read(&String::from_utf8_lossy(&body), i64::try_from(now).unwrap_or(i64::MAX)))
    }
}
