//! The calls to one extender.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use bytes::Bytes;
use client::{Informer, Transport as _};
use http::{Method, Request, StatusCode, Uri, header};
use sched_core::{NodeVictims, Pod, RejectedNode};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::{
    settings::Extender,
    wire::{
        BindingArgs, BindingResult, ExtenderArgs, FilterResult, HostPriority, MetaVictims,
        PreemptionArgs, PreemptionResult, SentUid, Victims, shorten,
    },
};

/// The largest answer, beside twice the size of the request. An extender may return the nodes that it was sent.
const ANSWER_BASE: usize = 1 << 20;

/// The failure of a call, in upstream's words where it has some.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    #[error("get pod {pod} for extenders: {source}")]
    Pod { pod: String, source: client::Error },
    #[error("get pod {pod} for extenders: the pod was deleted and created again")]
    Recreated { pod: String },
    #[error("encode the request for extender {url}: {source}")]
    Encode { url: String, source: serde_json::Error },
    #[error("Post \"{url}\": {source}")]
    Request { url: String, source: http::Error },
    #[error("Post \"{url}\": {}", words(source, url))]
    Send { url: String, source: client::Error },
    #[error("Post \"{url}\": context deadline exceeded (Client.Timeout exceeded)")]
    Late { url: String },
    #[error("failed {verb} with extender at URL {url}, code {code}")]
    Code { verb: String, url: String, code: u16 },
    #[error("decode the answer of extender {url}: {source}")]
    Decode { url: String, source: serde_json::Error },
    #[error("{0}")]
    Reported(String),
    #[error(
        "extender {url:?} claims a filtered node {node:?} which is not found in the input node list"
    )]
    UnknownNode { url: String, node: String },
    #[error("extender {url:?} chose victims on node {node:?}, which does not exist")]
    NoNode { url: String, node: String },
    #[error(
        "extender: {url} claims to preempt pod (UID: {uid}) on node: {node}, but the pod is not found on that node"
    )]
    NoVictim { url: String, uid: String, node: String },
    #[error("expected at least one victim pod on node {node:?}")]
    NoVictims { node: String },
}

/// Returns a failure in upstream's words if it is a refused connection.
fn words(error: &client::Error, url: &str) -> String {
    let refused = error.cause().to_string().contains("Connection refused");
    match url.parse::<Uri>().ok().and_then(|uri| uri.into_parts().authority) {
        Some(address) if refused => format!("dial tcp {address}: connect: connection refused"),
        _ => error.to_string(),
    }
}

/// The nodes that an extender leaves, and those that it rejects.
pub(super) struct Filtered {
    pub(super) accepted: Vec<Arc<str>>,
    pub(super) rejected: Vec<RejectedNode>,
}

/// The victims that an extender chose on one node.
pub(super) struct ChosenVictims {
    pub(super) uids: Vec<String>,
    pub(super) violations: usize,
}

impl Extender {
    /// Filters nodes.
    pub(super) async fn filter(
        &self,
        pod: &Value,
        nodes: &[Arc<str>],
        informer: Option<&Informer<Value>>,
    ) -> Result<Filtered, CallError> {
        let objects = self.objects(nodes, informer);
        let request = ExtenderArgs::new(pod, nodes, objects.as_deref());
        let result: FilterResult = self.post(&self.filter_verb, &request).await?;
        if let Some(error) = result.error.filter(|error| !error.is_empty()) {
            return Err(CallError::Reported(shorten(error)));
        }
        let names = match (result.node_names, result.nodes) {
            (Some(names), _) if self.caches_nodes => names,
            (_, Some(list)) => {
                let items = list.items.unwrap_or_default();
                items.into_iter().map(|node| node.metadata.name).collect()
            }
            _ => Vec::new(),
        };
        let asked: HashMap<&str, &Arc<str>> = nodes.iter().map(|name| (&**name, name)).collect();
        let mut seen = HashSet::new();
        let mut accepted = Vec::with_capacity(names.len().min(nodes.len()));
        for name in names {
            let Some(known) = asked.get(&*name) else {
                let node = shorten(name);
                return Err(CallError::UnknownNode { url: self.url().to_owned(), node });
            };
            if seen.insert(*known) {
                accepted.push((*known).clone());
            }
        }
        let unresolvable = result.unresolvable.unwrap_or_default();
        let mut failed = result.failed.unwrap_or_default();
        failed.retain(|name, _| !unresolvable.contains_key(name));
        let rejections = |all: BTreeMap<String, String>, unresolvable: bool| {
            all.into_iter().filter_map({
                let asked = &asked;
                move |(name, message)| {
                    let name = (*asked.get(&*name)?).clone();
                    Some(RejectedNode { name, message: shorten(message), unresolvable })
                }
            })
        };
        let rejected = rejections(unresolvable, true).chain(rejections(failed, false)).collect();
        Ok(Filtered { accepted, rejected })
    }

    /// Returns the scores of nodes.
    pub(super) async fn prioritize(
        &self,
        pod: &Value,
        nodes: &[Arc<str>],
        informer: Option<&Informer<Value>>,
    ) -> Result<Vec<(Arc<str>, i64)>, CallError> {
        let objects = self.objects(nodes, informer);
        let request = ExtenderArgs::new(pod, nodes, objects.as_deref());
        let result: Vec<HostPriority> = self.post(&self.prioritize_verb, &request).await?;
        let asked: HashSet<&Arc<str>> = nodes.iter().collect();
        let scores = result.into_iter().map(|node| (Arc::from(node.host), node.score));
        Ok(scores.filter(|(name, _)| asked.contains(name)).collect())
    }

    /// Returns the victims that the extender chooses, by the name of the node.
    pub(super) async fn preempt(
        &self,
        pod: &Value,
        victims: &[NodeVictims],
        objects: &HashMap<Arc<str>, Value>,
    ) -> Result<Vec<(String, ChosenVictims)>, CallError> {
        let request = if self.caches_nodes {
            let all = by_node(victims, |pod| Some(SentUid { uid: &pod.id.uid }));
            PreemptionArgs { pod, node_name_to_victims: None, node_name_to_meta_victims: Some(all) }
        } else {
            let all = by_node(victims, |pod| objects.get(&pod.id.uid));
            PreemptionArgs { pod, node_name_to_victims: Some(all), node_name_to_meta_victims: None }
        };
        let result: PreemptionResult = self.post(&self.preempt_verb, &request).await?;
        let chosen = |victims: Option<MetaVictims>| {
            let victims = victims.unwrap_or_default();
            let uids = victims.pods.unwrap_or_default().into_iter().map(|pod| pod.uid).collect();
            ChosenVictims { uids, violations: usize::try_from(victims.violations).unwrap_or(0) }
        };
        let victims = result.victims.unwrap_or_default().into_iter();
        Ok(victims.map(|(node, victims)| (shorten(node), chosen(victims))).collect())
    }

    /// Binds a Pod.
    pub(super) async fn bind(&self, pod: &Pod, node: &str) -> Result<(), CallError> {
        let request = BindingArgs {
            pod_name: &pod.id.name,
            pod_namespace: &pod.id.namespace,
            pod_uid: &pod.id.uid,
            node,
        };
        let result: BindingResult = self.post(&self.bind_verb, &request).await?;
        match result.error.filter(|error| !error.is_empty()) {
            Some(error) => Err(CallError::Reported(shorten(error))),
            None => Ok(()),
        }
    }

    /// Returns the objects to send; `None` if the extender needs only names.
    fn objects(
        &self,
        nodes: &[Arc<str>],
        informer: Option<&Informer<Value>>,
    ) -> Option<Vec<Arc<Value>>> {
        let informer = informer.filter(|_| !self.caches_nodes)?;
        Some(nodes.iter().filter_map(|name| informer.get(name)).collect())
    }

    /// Sends a request and decodes the answer. An answer of `null` is an empty one.
    async fn post<T: DeserializeOwned + Default>(
        &self,
        verb: &str,
        request: &impl Serialize,
    ) -> Result<T, CallError> {
        let url = format!("{}/{verb}", self.url());
        let body = serde_json::to_vec(request)
            .map_err(|source| CallError::Encode { url: url.clone(), source })?;
        let sent = tokio::time::timeout(self.timeout, self.exchange(&url, verb, body)).await;
        let answer = sent.unwrap_or_else(|_| Err(CallError::Late { url: url.clone() }))?;
        let decoded = serde_json::from_slice::<Option<T>>(&answer);
        Ok(decoded.map_err(|source| CallError::Decode { url, source })?.unwrap_or_default())
    }

    async fn exchange(&self, url: &str, verb: &str, body: Vec<u8>) -> Result<Bytes, CallError> {
        let limit = ANSWER_BASE + 2 * body.len();
        let path = format!("{}/{verb}", self.path);
        let request = Request::builder()
            .method(Method::POST)
            .uri(&path)
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::CONTENT_LENGTH, body.len())
            .body(client::full(body))
            .map_err(|source| CallError::Request { url: url.to_owned(), source })?;
        let failed = |source| CallError::Send { url: url.to_owned(), source };
        let response = self.transport.send(request).await.map_err(failed)?;
        if response.status() != StatusCode::OK {
            let code = response.status().as_u16();
            return Err(CallError::Code { verb: verb.to_owned(), url: url.to_owned(), code });
        }
        client::read(&path, response.into_body(), limit).await.map_err(failed)
    }
}

fn by_node<'a, P>(
    victims: &'a [NodeVictims],
    send: impl Fn(&'a Pod) -> Option<P>,
) -> BTreeMap<&'a str, Victims<P>> {
    let of = |node: &'a NodeVictims| {
        let pods = node.pods.iter().filter_map(|pod| send(pod)).collect();
        (&*node.node, Victims { pods, violations: node.violations })
    };
    victims.iter().map(of).collect()
}
