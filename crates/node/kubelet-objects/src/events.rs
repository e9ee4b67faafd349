//! Records Events about Pods and the node.

use std::{borrow::Cow, collections::HashMap, sync::Arc};

use client::{PatchKind, PatchTarget, Resource};
use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolumeClaim, Pod};
use pod_core::{Timestamp, namespaced_name};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::rate::RateLimit;

/// The length of the queue. It fills up only while the API server does not answer; further Events are dropped.
const QUEUE_LENGTH: usize = 1000;
/// The number of distinct Events that are remembered, to count repetitions instead of creating new objects.
const CACHE_SIZE: usize = 4096;

/// The number of Events that an object may have at once. Later ones are limited to one every five minutes, as in
/// upstream's clients.
const BURST: f64 = 25.0;
const REFILL_SECONDS: f64 = 300.0;

/// A queue of Events. Recording an Event never blocks.
#[derive(Clone)]
pub struct Events {
    queue: Option<mpsc::Sender<Event>>,
    clock: Arc<dyn rt::Clock>,
}

struct Event {
    about: ObjectReference,
    kind: &'static str,
    reason: Cow<'static, str>,
    message: String,
    at: Timestamp,
}

impl Events {
    /// Starts to send Events to the API server at a limited rate. Without a client, Events are only logged.
    pub fn new(
        client: Option<client::Client>,
        node: &str,
        rate: RateLimit,
        clock: Arc<dyn rt::Clock>,
        tasks: &rt::Tasks,
    ) -> Self {
        let Some(client) = client else { return Self { queue: None, clock } };
        let (queue, waiting) = mpsc::channel(QUEUE_LENGTH);
        let node = node.to_owned();
        tasks.spawn_until_shutdown("kubelet events", send(client, node, rate, waiting));
        Self { queue: Some(queue), clock }
    }

    /// Records an Event of the type `Normal` about a Pod.
    pub fn normal(&self, pod: &Pod, reason: &'static str, message: String) {
        tracing::info!(pod = %namespaced_name(pod), reason, message);
        self.record(pod_reference(pod, None), "Normal", reason, message);
    }

    /// Records an Event of the type `Warning` about a Pod.
    pub fn warn(&self, pod: &Pod, reason: impl Into<Cow<'static, str>>, message: String) {
        let reason = reason.into();
        tracing::warn!(pod = %namespaced_name(pod), %reason, message);
        self.record(pod_reference(pod, None), "Warning", reason, message);
    }

    /// Records an Event about one container of a Pod.
    pub fn of_container(
        &self,
        pod: &Pod,
        container: &str,
        kind: &'static str,
        reason: &'static str,
        message: String,
    ) {
        tracing::info!(pod = %namespaced_name(pod), container, reason, message);
        self.record(pod_reference(pod, Some(container)), kind, reason, message);
    }

    /// Records an Event about the Node.
    pub fn of_node(&self, name: &str, kind: &'static str, reason: &'static str, message: String) {
        tracing::info!(node = name, reason, message);
        let about = ObjectReference {
            kind: Some("Node".to_owned()),
            name: Some(name.to_owned()),
            uid: Some(name.to_owned()),
            ..ObjectReference::default()
        };
        self.record(about, kind, reason, message);
    }

    /// Records an Event of the type `Normal` about a claim.
    pub fn of_claim(&self, claim: &PersistentVolumeClaim, reason: &'static str, message: String) {
        let meta = &claim.metadata;
        let about = ObjectReference {
            kind: Some("PersistentVolumeClaim".to_owned()),
            api_version: Some("v1".to_owned()),
            namespace: meta.namespace.clone(),
            name: meta.name.clone(),
            uid: meta.uid.clone(),
            ..ObjectReference::default()
        };
        self.record(about, "Normal", reason, message);
    }

    fn record(
        &self,
        about: ObjectReference,
        kind: &'static str,
        reason: impl Into<Cow<'static, str>>,
        message: String,
    ) {
        let Some(queue) = &self.queue else { return };
        let at = pod_core::timestamp(self.clock.now());
        let _ = queue.try_send(Event { about, kind, reason: reason.into(), message, at });
    }
}

fn pod_reference(pod: &Pod, container: Option<&str>) -> ObjectReference {
    // Events about a static Pod refer to its mirror Pod, which users see.
    let annotations = pod.metadata.annotations.as_ref();
    let mirror = annotations.and_then(|a| a.get("kubernetes.io/config.hash")).cloned();
    let role = pod_core::members(pod)
        .into_iter()
        .find(|m| Some(m.container.name.as_str()) == container)
        .map(|m| m.role);
    let list = match role {
        Some(pod_core::Role::Init | pod_core::Role::Sidecar) => "initContainers",
        Some(pod_core::Role::Ephemeral) => "ephemeralContainers",
        _ => "containers",
    };
    ObjectReference {
        kind: Some("Pod".to_owned()),
        api_version: Some("v1".to_owned()),
        namespace: pod.metadata.namespace.clone(),
        name: pod.metadata.name.clone(),
        uid: mirror.or_else(|| pod.metadata.uid.clone()),
        field_path: container.map(|name| format!("spec.{list}{{{name}}}")),
        resource_version: None,
    }
}

#[derive(PartialEq, Eq, Hash)]
struct Key(String, Option<String>, Cow<'static, str>, String);

struct SentEvent {
    name: String,
    count: u32,
}

/// The remaining allowance of Events for one object.
struct Allowance {
    left: f64,
    at: Timestamp,
}

impl Allowance {
    fn take(&mut self, now: Timestamp) -> bool {
        let passed = now.duration_since(self.at).as_secs_f64().max(0.0);
        self.at = now;
        self.left = (self.left + passed / REFILL_SECONDS).min(BURST);
        let allowed = self.left >= 1.0;
        if allowed {
            self.left -= 1.0;
        }
        allowed
    }
}

async fn send(
    client: client::Client,
    node: String,
    rate: RateLimit,
    mut waiting: mpsc::Receiver<Event>,
) {
    let mut cache: HashMap<Key, SentEvent> = HashMap::new();
    let mut allowances: HashMap<String, Allowance> = HashMap::new();
    while let Some(event) = waiting.recv().await {
        rate.wait().await;
        let reason = event.reason.clone();
        let sent = send_one(&client, &node, &mut cache, &mut allowances, event);
        let _ = rt::catch("events", reason, sent).await;
    }
}

/// Sends one Event. An Event that panics is lost.
async fn send_one(
    client: &client::Client,
    node: &str,
    cache: &mut HashMap<Key, SentEvent>,
    allowances: &mut HashMap<String, Allowance>,
    event: Event,
) {
    if cache.len() >= CACHE_SIZE {
        cache.clear();
    }
    if allowances.len() >= CACHE_SIZE {
        allowances.clear();
    }
    let about = &event.about;
    let uid = about.uid.clone().unwrap_or_default();
    let allowance =
        allowances.entry(uid.clone()).or_insert(Allowance { left: BURST, at: event.at });
    if !allowance.take(event.at) {
        return;
    }
    let key = Key(uid, about.field_path.clone(), event.reason.clone(), event.message.clone());
    let namespace = about.namespace.clone().unwrap_or_else(|| "default".to_owned());
    if let Some(earlier) = cache.get_mut(&key) {
        earlier.count += 1;
        let patch = json!({ "count": earlier.count, "lastTimestamp": seconds(event.at) });
        let at = PatchTarget { namespace: &namespace, name: &earlier.name, subresource: "" };
        if client.patch::<Value>(&Resource::EVENTS, at, PatchKind::Merge, &patch).await.is_ok() {
            return;
        }
    }
    let name =
        format!("{}.{:x}", about.name.as_deref().unwrap_or_default(), event.at.as_nanosecond());
    let object = json!({
        "metadata": { "name": name, "namespace": namespace },
        "involvedObject": about,
        "reason": event.reason,
        "message": event.message,
        "type": event.kind,
        "source": { "component": "kubelet", "host": node },
        "firstTimestamp": seconds(event.at),
        "lastTimestamp": seconds(event.at),
        "count": 1,
        "reportingComponent": "kubelet",
        "reportingInstance": node,
    });
    match client.create::<_, Value>(&Resource::EVENTS, &namespace, &object).await {
        Ok(_) => drop(cache.insert(key, SentEvent { name, count: 1 })),
        Err(error) => tracing::debug!(%error, reason = %event.reason, "an Event was lost"),
    }
}

/// Formats a time in whole seconds, as the API requires.
fn seconds(at: Timestamp) -> String {
    Timestamp::from_second(at.as_second()).unwrap_or(at).to_string()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn sends_events_at_the_configured_rate() {
        let (api, tasks) = (testkit::FakeApi::default(), rt::Tasks::new(rt::Shutdown::new()));
        let (rate, clock) = (RateLimit::new(1, 2), Arc::new(rt::SystemClock));
        let events = Events::new(Some(api.client("kubelet")), "node", rate, clock, &tasks);
        let begin = tokio::time::Instant::now();
        for number in 0..5 {
            events.of_node("node", "Normal", "Test", format!("event {number}"));
        }
        let sent = |api: &testkit::FakeApi| api.list(&Resource::EVENTS, "").len();
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(sent(&api), 2, "the burst");
        api.until("all Events are sent", |api| sent(api) == 5).await;
        assert!(begin.elapsed() >= Duration::from_secs(3), "{:?}", begin.elapsed());
    }
}
