use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use api_meta::Tree as _;
use bytes::Bytes;
use client::{Body, Client, Error, Resource, Transport};
use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream};
use http::{Method, Request, Response};
use http_body_util::{BodyExt, StreamBody};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::objects::{ApiError, ApiResult, Key, Objects, ServedResource, api_error, selected};

/// An in-memory API server; clones share its objects.
#[derive(Clone)]
pub struct FakeApi {
    served: Arc<Mutex<Vec<ServedResource>>>,
    objects: Arc<Mutex<Objects>>,
    revision: watch::Sender<u64>,
    /// The successful writes, as `METHOD path`.
    writes: Arc<Mutex<Vec<String>>>,
    away: Arc<AtomicBool>,
    /// The resources whose reads fail.
    broken: Arc<Mutex<BTreeSet<String>>>,
}

macro_rules! served {
    ($($name:ident)*) => { vec![$(Resource::$name),*] };
}

impl Default for FakeApi {
    fn default() -> Self {
        let all = served![
            CONFIG_MAPS ENDPOINTS EVENTS LIMIT_RANGES NAMESPACES NODES PERSISTENT_VOLUMES
            PERSISTENT_VOLUME_CLAIMS PODS POD_TEMPLATES REPLICATION_CONTROLLERS RESOURCE_QUOTAS SECRETS
            SERVICES SERVICE_ACCOUNTS CONTROLLER_REVISIONS DAEMON_SETS DEPLOYMENTS REPLICA_SETS
            STATEFUL_SETS HORIZONTAL_POD_AUTOSCALERS VALIDATING_ADMISSION_POLICIES CRON_JOBS JOBS LEASES
            ENDPOINT_SLICES INGRESSES NETWORK_POLICIES
            POD_DISRUPTION_BUDGETS CLUSTER_ROLES CLUSTER_ROLE_BINDINGS ROLES ROLE_BINDINGS
            PRIORITY_CLASSES DEVICE_CLASSES RESOURCE_CLAIMS RESOURCE_CLAIM_TEMPLATES RESOURCE_SLICES
            STORAGE_CLASSES CSI_NODES CSI_DRIVERS CSI_STORAGE_CAPACITIES VOLUME_ATTACHMENTS
            CERTIFICATE_SIGNING_REQUESTS CUSTOM_RESOURCE_DEFINITIONS CLUSTER_TRUST_BUNDLES
            POD_CERTIFICATE_REQUESTS POD_GROUPS RESOURCE_POOL_STATUS_REQUESTS
            STORAGE_VERSION_MIGRATIONS DEVICE_TAINT_RULES
        ];
        let text = |cow: std::borrow::Cow<'static, str>| match cow {
            std::borrow::Cow::Borrowed(text) => text,
            std::borrow::Cow::Owned(text) => text.leak(),
        };
        let served = all.into_iter().map(|r| ServedResource {
            group: text(r.group),
            version: text(r.version),
            plural: text(r.plural),
            kind: text(r.kind),
            namespaced: r.namespaced,
        });
        Self {
            served: Arc::new(Mutex::new(served.collect())),
            objects: Arc::default(),
            revision: watch::Sender::new(0),
            writes: Arc::default(),
            away: Arc::default(),
            broken: Arc::default(),
        }
    }
}

/// A parsed request URL.
#[derive(Clone)]
struct Target {
    served: ServedResource,
    namespace: String,
    name: String,
    subresource: String,
    query: Vec<(String, String)>,
}

impl Target {
    fn key(&self) -> Key {
        (
            self.served.group.into(),
            self.served.plural.into(),
            self.namespace.clone(),
            self.name.clone(),
        )
    }

    fn query(&self, name: &str) -> &str {
        self.query.iter().find(|q| q.0 == name).map_or("", |q| &q.1)
    }
}

impl FakeApi {
    /// Returns a client of this API. Its requests stay in the process.
    pub fn client(&self, user_agent: &str) -> Client {
        Client::new(Arc::new(self.clone()), user_agent)
    }

    /// Serves another kind, as a CustomResourceDefinition would.
    pub fn serve(&self, served: ServedResource) {
        self.served.lock().push(served);
    }

    /// Makes requests fail as if no server listened. Open watches stay.
    pub fn set_away(&self, away: bool) {
        self.away.store(away, Ordering::Relaxed);
    }

    /// Makes reads of a resource fail, as when its conversion webhook does not answer.
    pub fn set_broken(&self, plural: &str, broken: bool) {
        let mut all = self.broken.lock();
        if broken {
            all.insert(plural.to_owned());
        } else {
            all.remove(plural);
        }
    }

    /// Returns the writes so far, such as `POST /api/v1/namespaces/default/pods`.
    pub fn writes(&self) -> Vec<String> {
        self.writes.lock().clone()
    }

    /// Returns the objects of a namespace, or of all namespaces if `namespace` is empty.
    pub fn list(&self, resource: &Resource, namespace: &str) -> Vec<Value> {
        self.objects.lock().list(&resource.group, &resource.plural, namespace)
    }

    /// Returns an object as a client would read it.
    pub fn get(&self, resource: &Resource, namespace: &str, name: &str) -> Option<Value> {
        let key = (
            resource.group.to_string(),
            resource.plural.to_string(),
            namespace.to_owned(),
            name.to_owned(),
        );
        self.objects.lock().get(&key).ok()
    }

    /// Creates an object as a user would.
    pub async fn create(&self, resource: &Resource, object: Value) -> Value {
        let namespace = object.namespace().to_owned();
        let done = self.client("user").create(resource, &namespace, &object).await;
        done.unwrap_or_else(|error| panic!("creating {}: {error}", object["metadata"]["name"]))
    }

    /// Merges a patch into an object as a user would.
    pub async fn merge(
        &self,
        resource: &Resource,
        at: client::PatchTarget<'_>,
        patch: Value,
    ) -> Value {
        let done = self.client("user").patch(resource, at, client::PatchKind::Merge, &patch).await;
        done.unwrap_or_else(|error| panic!("patching {}: {error}", at.name))
    }

    /// Waits until the condition is true. Panics with `what` after ten seconds.
    pub async fn until(&self, what: &str, mut condition: impl FnMut(&FakeApi) -> bool) {
        let mut revision = self.revision.subscribe();
        let waiting = async {
            while !condition(self) {
                // Also poll, for conditions that depend on more than objects.
                let pause = std::time::Duration::from_millis(50);
                let _ = tokio::time::timeout(pause, revision.changed()).await;
            }
        };
        if tokio::time::timeout(std::time::Duration::from_secs(10), waiting).await.is_err() {
            panic!("timed out waiting for: {what}\nwrites: {:#?}", self.writes());
        }
    }

    fn target(&self, uri: &http::Uri) -> ApiResult<Target> {
        let parts: Vec<&str> = uri.path().trim_matches('/').split('/').collect();
        let (group, rest) = match parts.as_slice() {
            ["api", _, rest @ ..] => ("", rest),
            ["apis", group, _, rest @ ..] => (*group, rest),
            _ => return Err(api_error(404, "NotFound", "no such path")),
        };
        let (namespace, rest) = match rest {
            ["namespaces", namespace, rest @ ..]
                if !rest.is_empty() && !["status", "finalize"].contains(&rest[0]) =>
            {
                (*namespace, rest)
            }
            rest => ("", rest),
        };
        let plural = rest.first().copied().unwrap_or_default();
        let served = self.served.lock();
        let served = served.iter().find(|s| s.group == group && s.plural == plural);
        let missing =
            || api_error(404, "NotFound", "the server could not find the requested resource");
        let unescape = |text: &str| api_meta::query_decode(text).unwrap_or_default();
        let pairs =
            uri.query().unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
        Ok(Target {
            served: served.cloned().ok_or_else(missing)?,
            namespace: namespace.to_owned(),
            name: rest.get(1).copied().unwrap_or_default().to_owned(),
            subresource: rest.get(2).copied().unwrap_or_default().to_owned(),
            query: pairs.map(|(k, v)| (unescape(k), unescape(v))).collect(),
        })
    }

    async fn respond(&self, request: Request<Body>) -> Response<Body> {
        let (parts, body) = request.into_parts();
        let bytes = body.collect().await.map(|b| b.to_bytes()).unwrap_or_default();
        let body: Value = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        if let Some(document) = self.discovery(parts.uri.path()) {
            return json_response(200, &document);
        }
        let content_type = parts.headers.get(http::header::CONTENT_TYPE);
        let content_type = content_type.and_then(|v| v.to_str().ok()).unwrap_or_default();
        match self.target(&parts.uri) {
            Ok(target)
                if parts.method == Method::GET
                    && self.broken.lock().contains(target.served.plural) =>
            {
                status_response(&api_error(500, "InternalError", "conversion webhook failed"))
            }
            Ok(target) if parts.method == Method::GET && target.query("watch") == "true" => {
                self.watch(target)
            }
            Ok(target) => match self.act(&parts.method, &target, body, content_type) {
                Ok((code, value)) => {
                    if parts.method != Method::GET {
                        self.writes.lock().push(format!("{} {}", parts.method, parts.uri.path()));
                    }
                    self.revision.send_replace(self.objects.lock().revision);
                    json_response(code, &value)
                }
                Err(api_error) => status_response(&api_error),
            },
            Err(api_error) => status_response(&api_error),
        }
    }

    fn act(
        &self,
        method: &Method,
        target: &Target,
        body: Value,
        kind: &str,
    ) -> ApiResult<(u16, Value)> {
        let mut objects = self.objects.lock();
        let (key, served) = (target.key(), &target.served);
        match (method.as_str(), target.name.as_str(), target.subresource.as_str()) {
            ("GET", "", _) => {
                let mut items = objects.list(served.group, served.plural, &target.namespace);
                let (labels, fields) =
                    (target.query("labelSelector"), target.query("fieldSelector"));
                items.retain(|item| selected(item, labels, fields));
                let revision = objects.revision.to_string();
                Ok((200, json!({"metadata": {"resourceVersion": revision}, "items": items})))
            }
            ("GET", ..) => objects.get(&key).map(|v| (200, v)),
            ("POST", "", _) => objects.create(served, &target.namespace, body).map(|v| (201, v)),
            ("POST", _, "binding") => {
                objects.bind(&key, &body).map(|_| (201, json!({"kind": "Status"})))
            }
            ("POST", _, "eviction") => objects.delete(&key, &Value::Null).map(|v| (201, v)),
            ("PUT", ..) => objects.update(&key, &target.subresource, body).map(|v| (200, v)),
            ("PATCH", ..) => {
                let mut object = objects.get(&key)?;
                patch(&mut object, body, kind)?;
                objects.update(&key, &target.subresource, object).map(|v| (200, v))
            }
            ("DELETE", "", _) => {
                let labels = target.query("labelSelector");
                for item in objects.list(served.group, served.plural, &target.namespace) {
                    if selected(&item, labels, target.query("fieldSelector")) {
                        let mut key = key.clone();
                        key.2 = item.namespace().to_owned();
                        key.3 = item.name().to_owned();
                        objects.delete(&key, &body)?;
                    }
                }
                Ok((200, json!({"kind": "Status"})))
            }
            ("DELETE", ..) => objects.delete(&key, &body).map(|v| (200, v)),
            _ => Err(api_error(405, "MethodNotAllowed", "the method is not allowed")),
        }
    }

    fn watch(&self, target: Target) -> Response<Body> {
        let from: u64 = target.query("resourceVersion").parse().unwrap_or(0);
        let (api, revision) = (self.clone(), self.revision.subscribe());
        let events = stream::unfold((from, revision), move |(from, mut revision)| {
            let (api, target) = (api.clone(), target.clone());
            async move {
                loop {
                    let (now, frames) = api.frames_since(from, &target);
                    if !frames.is_empty() {
                        return Some((stream::iter(frames), (now, revision)));
                    }
                    revision.changed().await.ok()?;
                }
            }
        });
        let frames = events.flatten().map(|bytes| Ok(http_body::Frame::data(bytes)));
        let mut response = Response::new(StreamBody::new(frames).boxed_unsync());
        let json = http::HeaderValue::from_static("application/json");
        response.headers_mut().insert(http::header::CONTENT_TYPE, json);
        response
    }

    fn frames_since(&self, from: u64, target: &Target) -> (u64, Vec<Bytes>) {
        let objects = self.objects.lock();
        let start = objects.log.partition_point(|entry| entry.0 <= from);
        let (labels, fields) = (target.query("labelSelector"), target.query("fieldSelector"));
        let matching = objects.log[start..].iter().filter(|(_, key, _, object)| {
            key.0 == target.served.group
                && key.1 == target.served.plural
                && (target.namespace.is_empty() || key.2 == target.namespace)
                && selected(object, labels, fields)
        });
        let frame = |(_, _, change, object): &(u64, Key, &str, Value)| {
            Bytes::from(format!("{}\n", json!({"type": change, "object": object})))
        };
        (objects.revision, matching.map(frame).collect())
    }

    fn discovery(&self, path: &str) -> Option<Value> {
        let served = self.served.lock();
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let (group, version) = match parts.as_slice() {
            ["api"] => return Some(json!({"kind": "APIVersions", "versions": ["v1"]})),
            ["apis"] => return Some(aggregated(&served)),
            ["api", version] => ("", *version),
            ["apis", group, version] => (*group, *version),
            _ => return None,
        };
        let of = served.iter().filter(|s| s.group == group && s.version == version).map(
            |s| json!({"name": s.plural, "kind": s.kind, "namespaced": s.namespaced, "verbs": VERBS}),
        );
        let name = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
        Some(
            json!({"kind": "APIResourceList", "groupVersion": name, "resources": of.collect::<Vec<_>>()}),
        )
    }
}

const VERBS: [&str; 8] =
    ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];

/// Returns the aggregated discovery document, which clients request.
fn aggregated(served: &[ServedResource]) -> Value {
    let mut groups: Vec<_> =
        served.iter().filter(|s| !s.group.is_empty()).map(|s| (s.group, s.version)).collect();
    groups.sort_unstable();
    groups.dedup();
    let items = groups.into_iter().map(|(group, version)| {
        let of = served.iter().filter(|s| s.group == group && s.version == version).map(|s| {
            let scope = if s.namespaced { "Namespaced" } else { "Cluster" };
            json!({"resource": s.plural, "responseKind": {"kind": s.kind}, "scope": scope, "verbs": VERBS})
        });
        let of = json!({"version": version, "freshness": "Current", "resources": of.collect::<Vec<_>>()});
        json!({"metadata": {"name": group}, "versions": [of]})
    });
    json!({"kind": "APIGroupDiscoveryList", "items": items.collect::<Vec<_>>()})
}

impl Transport for FakeApi {
    fn send(&self, request: Request<Body>) -> BoxFuture<'_, Result<Response<Body>, Error>> {
        async move {
            if self.away.load(Ordering::Relaxed) {
                Err(Error::Transport {
                    operation: "connecting to",
                    target: request.uri().to_string(),
                    source: "connection refused".into(),
                })
            } else {
                Ok(self.respond(request).await)
            }
        }
        .boxed()
    }
}

fn json_response(code: u16, value: &Value) -> Response<Body> {
    let mut response = Response::new(client::full(value.to_string()));
    *response.status_mut() = http::StatusCode::from_u16(code).unwrap_or_default();
    response
}

fn status_response(api_error: &ApiError) -> Response<Body> {
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": api_error.code,
        "reason": api_error.reason, "message": api_error.message});
    json_response(api_error.code, &status)
}

fn patch(object: &mut Value, patch: Value, kind: &str) -> ApiResult<()> {
    match kind {
        "application/json-patch+json" => {
            let bad = |error: String| api_error(422, "Invalid", error);
            let patch: json_patch::Patch =
                serde_json::from_value(patch).map_err(|error| bad(error.to_string()))?;
            json_patch::patch(object, &patch).map_err(|error| bad(error.to_string()))
        }
        "application/merge-patch+json" => {
            json_patch::merge(object, &patch);
            Ok(())
        }
        _ => {
            strategic(object, patch);
            Ok(())
        }
    }
}

/// Applies a strategic merge patch, as far as tests need it. Lists of objects with a type, uid or name are merged by
/// that field. Lists of strings are united. The rest is a merge patch.
fn strategic(object: &mut Value, patch: Value) {
    let Value::Object(patch) = patch else {
        *object = patch;
        return;
    };
    if !object.is_object() {
        *object = json!({});
    }
    for (field, value) in patch {
        if let Some(field) = field.strip_prefix("$deleteFromPrimitiveList/") {
            if let (Value::Array(list), Value::Array(gone)) = (&mut object[field], value) {
                list.retain(|item| !gone.contains(item));
            }
            continue;
        }
        match value {
            Value::Null => {
                object.as_object_mut().map(|map| map.remove(&field));
            }
            // Container statuses are replaced as a whole.
            Value::Array(items) if !field.ends_with("Statuses") => {
                if !object[&field].is_array() {
                    object[&field] = json!([]);
                }
                merge_list(&mut object[&field], items)
            }
            Value::Object(_) => strategic(&mut object[&field], value),
            value => object[&field] = value,
        }
    }
}

fn merge_list(list: &mut Value, items: Vec<Value>) {
    let Value::Array(list) = list else { return };
    for item in items {
        if item["$patch"] == "replace" {
            list.clear();
            continue;
        }
        let key = ["type", "uid", "name"].into_iter().find(|key| item[*key].is_string());
        let at = match key {
            Some(key) => list.iter().position(|old| old[key] == item[key]),
            None => list.iter().position(|old| *old == item),
        };
        match at {
            Some(at) if item["$patch"] == "delete" => drop(list.remove(at)),
            Some(at) => strategic(&mut list[at], item),
            None if item["$patch"] == "delete" => {}
            None => {
                let mut new = Value::Null;
                strategic(&mut new, item);
                list.push(new);
            }
        }
    }
}
