//! Asks the kubelets, while somebody wants to know.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, UNIX_EPOCH},
};

use client::{Client, ClientTls, HttpTransport, ListOptions, Resource, Transport as _};
use futures_util::{StreamExt, stream};
use http::Request;
use serde::Deserialize;
use tokio::{sync::Notify, time::Instant};

use crate::points::{Node, RESOLUTION_MS, Said, read};

const RESOLUTION: Duration = Duration::from_millis(RESOLUTION_MS as u64);
/// How long after the last question kubelets are still asked.
const INTEREST: Duration = Duration::from_secs(60);
/// Points that are older than this are of an earlier time of interest.
const STALE: Duration = Duration::from_millis(2 * RESOLUTION_MS as u64);
/// Between the two questions that a first answer is made of: a kubelet reads its groups once a second at most.
const APART: Duration = Duration::from_millis(1200);
/// How long a kubelet may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// So many kubelets are asked at once.
const AT_ONCE: usize = 16;
/// More a kubelet does not say: a thousand containers take a tenth of it.
const ANSWER: usize = 8 << 20;

/// What is known of each node.
pub(crate) type Nodes = HashMap<String, Node>;

struct State {
    nodes: Arc<Nodes>,
    /// When there were two points last.
    complete: Option<Instant>,
    asked: Option<Instant>,
}

/// The points, and who brings them.
pub(crate) struct Scraper {
    client: Client,
    tls: ClientTls,
    state: Mutex<State>,
    /// Whoever asks kubelets has this.
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

impl View {
    /// Where the kubelet listens.
    fn kubelet(&self) -> Option<SocketAddr> {
        let addresses = self.status.addresses.iter().filter(|a| a.kind == "InternalIP");
        let ip: IpAddr = addresses.into_iter().find_map(|a| a.address.parse().ok())?;
        // Whoever may write a Node's status shall not send this identity to what listens here.
        let away = ip.is_loopback() || ip.is_unspecified() || ip.is_multicast();
        let port = self.status.daemon_endpoints.kubelet_endpoint.port;
        (!away && port > 0).then(|| SocketAddr::new(ip, port))
    }
}

impl Scraper {
    pub(crate) fn new(client: Client, tls: ClientTls) -> Self {
        let state = State { nodes: Arc::default(), complete: None, asked: None };
        let (turn, interest) = (tokio::sync::Mutex::default(), Notify::new());
        Self { client, tls, state: Mutex::new(state), turn, interest }
    }

    /// One that knows what it needs to know.
    #[cfg(test)]
    pub(crate) fn knowing(client: Client, tls: ClientTls, nodes: Nodes) -> Self {
        let scraper = Self::new(client, tls);
        let known = State { nodes: Arc::new(nodes), complete: Some(Instant::now()), asked: None };
        *scraper.state() = known;
        scraper
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known; if that is of an earlier time, kubelets are asked first.
    pub(crate) async fn nodes(&self) -> Arc<Nodes> {
        let known = || {
            let mut state = self.state();
            state.asked = Some(Instant::now());
            state.complete.filter(|at| at.elapsed() < STALE).map(|_| state.nodes.clone())
        };
        if let Some(nodes) = known() {
            self.interest.notify_one();
            return nodes;
        }
        let turn = self.turn.lock().await;
        // Somebody else may have done it meanwhile.
        if let Some(nodes) = known() {
            return nodes;
        }
        self.state().nodes = Arc::default();
        self.scrape().await;
        tokio::time::sleep(APART).await;
        self.scrape().await;
        self.state().complete = Some(Instant::now());
        drop(turn);
        self.interest.notify_one();
        self.state().nodes.clone()
    }

    /// Goes on asking for as long as somebody is interested, until it is dropped.
    pub(crate) async fn follow(self: Arc<Self>) {
        loop {
            self.interest.notified().await;
            while self.state().asked.is_some_and(|at| at.elapsed() < INTEREST) {
                tokio::time::sleep(RESOLUTION).await;
                let _turn = self.turn.lock().await;
                self.scrape().await;
                self.state().complete = Some(Instant::now());
            }
        }
    }

    /// Asks all kubelets once. A node that does not answer, or is there no more, is not known any longer.
    async fn scrape(&self) {
        let listed = self.client.list::<View>(&Resource::NODES, "", &ListOptions::default()).await;
        let listed = match listed {
            Ok(listed) => listed.items,
            Err(error) => {
                tracing::warn!(%error, "list nodes to ask their kubelets what is used");
                Vec::new()
            }
        };
        let asked = listed.into_iter().map(|node| async move {
            let said = tokio::time::timeout(PATIENCE, self.ask(&node)).await;
            let said = said.unwrap_or_else(|_| Err("it does not answer".to_owned()));
            let name = node.metadata.name;
            said.inspect_err(|error| {
                tracing::info!(node = name, error, "ask a kubelet what is used")
            })
            .ok()
            .map(|said| (name, said))
        });
        let answers: Vec<(String, Said)> = stream::iter(asked)
            .buffer_unordered(AT_ONCE)
            .filter_map(async |answer| answer)
            .collect()
            .await;
        let mut state = self.state();
        let mut known = (*state.nodes).clone();
        known.retain(|name, _| answers.iter().any(|(node, _)| node == name));
        for (name, said) in answers {
            known.entry(name).or_default().store(said);
        }
        state.nodes = Arc::new(known);
    }

    async fn ask(&self, node: &View) -> Result<Said, String> {
        let address = node.kubelet().ok_or("its status names no address and port of a kubelet")?;
        // The certificate is the kubelet's if it names the address, as the API server has it.
        let transport = HttpTransport::at(address, self.tls.clone());
        let request = Request::get("/metrics/resource").body(client::empty());
        let request = request.map_err(|error| error.to_string())?;
        let response = transport.send(request).await.map_err(|error| error.to_string())?;
        if response.status() != http::StatusCode::OK {
            return Err(format!("it answers {}", response.status()));
        }
        let body = client::read("/metrics/resource", response.into_body(), ANSWER).await;
        let body = body.map_err(|error| error.to_string())?;
        let now = rt::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        Ok(read(&String::from_utf8_lossy(&body), i64::try_from(now).unwrap_or(i64::MAX)))
    }
}
