//! Authenticates and authorizes requests, and responds to them.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use api_meta::{
    FieldSelector, FieldSelectorError, GroupResource, ObjectMeta, Objects, Status, Tree as _,
    UserInfo, query_decode,
};
use auth::authn::{
    Anonymous, Authentication, AuthenticationResult, RequestCredentials, certificate::ClientCa,
    front_proxy::FrontProxy,
};
use client::{Client, ListOptions, Resource};
use futures_util::future::BoxFuture;
use http::{Method, Request, Response, StatusCode, header, request::Parts};
use serde::Deserialize;
use serde_json::{Value, json};
use serve::{Body, Connection, Handler, answer};

use crate::{
    documents::{self, Metrics, Subject},
    scrape::{Nodes, Scraper},
};

pub(crate) struct Server {
    client: Client,
    authentication: Authentication,
    pub(crate) scraper: Arc<Scraper>,
}

/// An empty object store, because no credential depends on objects here.
struct NoObjects;

impl Objects for NoObjects {
    fn get(&self, _: &GroupResource, _: &str, _: &str) -> Option<Arc<Value>> {
        None
    }

    fn list(&self, _: &GroupResource, _: &str) -> Vec<Arc<Value>> {
        Vec::new()
    }
}

/// The requested metrics.
#[derive(Debug, PartialEq, Eq)]
struct MetricsRequest<'a> {
    /// The resource: `nodes` or `pods`.
    resource: &'static str,
    /// The namespace; empty for all.
    namespace: &'a str,
    /// The name; empty for a list.
    name: &'a str,
}

impl<'a> MetricsRequest<'a> {
    fn of(path: &'a str) -> Option<Self> {
        let rest = path.strip_prefix("/apis/metrics.k8s.io/v1beta1/")?;
        let parts: Vec<&str> = rest.trim_end_matches('/').split('/').collect();
        let (resource, namespace, name) = match parts[..] {
            ["nodes"] => ("nodes", "", ""),
            ["nodes", name] => ("nodes", "", name),
            ["pods"] => ("pods", "", ""),
            ["namespaces", namespace, "pods"] => ("pods", namespace, ""),
            ["namespaces", namespace, "pods", name] => ("pods", namespace, name),
            _ => return None,
        };
        let part = |text: &str| {
            text.is_empty() || text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-.".contains(&b))
        };
        let named = part(namespace) && part(name) && ![namespace, name].contains(&"..");
        (named && !parts.contains(&"")).then_some(Self { resource, namespace, name })
    }

    fn group_resource(&self) -> GroupResource {
        GroupResource::new(documents::GROUP, self.resource)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct View {
    metadata: ObjectMeta,
    spec: Spec,
    status: Phase,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    node_name: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Phase {
    phase: String,
}

impl View {
    /// Returns the usage; `None` if it is unknown. For a Pod, only the kubelet of its own node counts.
    fn metrics(self, nodes: &Nodes, is_pod: bool) -> Option<Metrics> {
        let ObjectMeta { namespace, name, labels, .. } = self.metadata;
        let parts = if is_pod {
            let running = self.status.phase == "Running";
            nodes.get(&self.spec.node_name).filter(|_| running)?.pod(&namespace, &name)?
        } else {
            vec![(String::new(), nodes.get(&name)?.used()?)]
        };
        Some(Metrics { subject: Subject { namespace, name, labels }, parts })
    }
}

fn error_response(status: &Status) -> Response<Body> {
    let code = StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    json_response(code, &serde_json::to_value(status).unwrap_or_default())
}

fn json_response(code: StatusCode, value: &Value) -> Response<Body> {
    answer(code, "application/json", value.to_string())
}

/// Converts an error of the API server. A bad request is passed on, because the caller's selector may be wrong.
fn to_status(error: &client::Error) -> Status {
    match error.status().filter(|status| (400..500).contains(&status.code) && status.code != 403) {
        Some(status) if status.code == 400 => Status::bad_request(status.message.clone()),
        _ => Status::internal(error),
    }
}

impl Handler for Server {
    fn handle(&self, request: Request<Body>) -> BoxFuture<'_, Response<Body>> {
        Box::pin(async move {
            let (parts, _) = request.into_parts();
            match self.respond(&parts).await {
                Ok(value) => json_response(StatusCode::OK, &value),
                Err(status) => error_response(&status),
            }
        })
    }
}

impl Server {
    /// Creates a server. `authority` signs the client certificate of the front proxy, whose common name is `proxy`.
    pub(crate) fn new(
        client: Client,
        authority: ClientCa,
        proxy: String,
        scraper: Arc<Scraper>,
    ) -> Self {
        let headers = |name: &str| vec![name.to_owned()];
        let front_proxy = FrontProxy {
            ca: authority,
            allowed_names: vec![proxy],
            username_headers: headers("X-Remote-User"),
            uid_headers: headers("X-Remote-Uid"),
            group_headers: headers("X-Remote-Group"),
            extra_prefixes: headers("X-Remote-Extra-"),
        };
        let authentication = Authentication {
            client_ca: None,
            front_proxy: Some(front_proxy),
            tokens: Vec::new(),
            api_audiences: Vec::new(),
            anonymous: Anonymous::Off,
        };
        Self { client, authentication, scraper }
    }

    async fn respond(&self, parts: &Parts) -> Result<Value, Status> {
        let user = self.user(parts, rt::now())?;
        let path = parts.uri.path();
        if parts.method != Method::GET {
            return Err(Status::method_not_allowed());
        }
        if let Some(document) = documents::discovery(path.trim_end_matches('/')) {
            return Ok(document);
        }
        let request = MetricsRequest::of(path).ok_or_else(Status::no_such_resource)?;
        let query = query(parts.uri.query().unwrap_or_default());
        if query.get("watch").is_some_and(|watch| !matches!(watch.as_str(), "" | "0" | "false")) {
            return Err(Status::method_not_supported(&request.group_resource(), "watch"));
        }
        self.authorize(&user, &request).await?;
        self.metrics(&request, &query, wants_table(parts)).await
    }

    fn user(&self, parts: &Parts, now: SystemTime) -> Result<UserInfo, Status> {
        let chain =
            parts.extensions.get::<Arc<Connection>>().map(|c| c.client_certificates.as_slice());
        let peer = self.authentication.peer(chain.unwrap_or_default(), now);
        let presented = RequestCredentials {
            peer: &peer,
            headers: &parts.headers,
            path: parts.uri.path(),
            now,
        };
        match self.authentication.authenticate(&presented, &NoObjects) {
            Ok(AuthenticationResult::Authenticated(identity)) => Ok(identity.user),
            Ok(AuthenticationResult::UnknownToken(_)) | Err(_) => Err(Status::unauthorized()),
        }
    }

    /// Checks with the API server that the user is authorized. The API server has authorized the request already, but
    /// an aggregated server must do it again.
    async fn authorize(&self, user: &UserInfo, request: &MetricsRequest<'_>) -> Result<(), Status> {
        const REVIEWS: Resource = Resource::constant(
            "authorization.k8s.io",
            "v1",
            "subjectaccessreviews",
            "SubjectAccessReview",
            false,
        );
        let verb = if request.name.is_empty() { "list" } else { "get" };
        let review = json!({ "spec": {
            "user": user.name, "uid": user.uid, "groups": user.groups, "extra": user.extra,
            "resourceAttributes": {
                "group": documents::GROUP, "version": "v1beta1", "resource": request.resource, "verb": verb,
                "namespace": request.namespace, "name": request.name,
            },
        } });
        let review: Value =
            self.client.create(&REVIEWS, "", &review).await.map_err(Status::internal)?;
        if review.flag("status.allowed") {
            return Ok(());
        }
        let cause = format!(
            "User {:?} cannot {verb} resource {:?} in API group \"metrics.k8s.io\"",
            user.name, request.resource
        );
        Err(Status::forbidden(&request.group_resource(), request.name, cause))
    }

    async fn metrics(
        &self,
        request: &MetricsRequest<'_>,
        query: &BTreeMap<String, String>,
        table: bool,
    ) -> Result<Value, Status> {
        let is_pod = request.resource == "pods";
        let resource = if is_pod { &Resource::PODS } else { &Resource::NODES };
        let now = || {
            let now = rt::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
            i64::try_from(now).unwrap_or(i64::MAX)
        };
        if !request.name.is_empty() {
            let response = self.client.get::<View>(resource, request.namespace, request.name).await;
            let view = response.map_err(|error| {
                if error.is_not_found() {
                    Status::not_found(&GroupResource::new("", request.resource), request.name)
                } else {
                    to_status(&error)
                }
            })?;
            let metrics = view.metrics(&*self.scraper.nodes().await, is_pod);
            let full = if is_pod {
                format!("{}/{}", request.namespace, request.name)
            } else {
                request.name.to_owned()
            };
            let usage =
                metrics.ok_or_else(|| Status::not_found(&request.group_resource(), &full))?;
            return Ok(if table { documents::table(&[usage], now()) } else { usage.object(now()) });
        }
        let of = |name: &str| query.get(name).cloned().unwrap_or_default();
        let options = ListOptions {
            label_selector: of("labelSelector"),
            field_selector: validated_fields(&of("fieldSelector"))?,
            ..ListOptions::default()
        };
        let listed = self.client.list::<View>(resource, request.namespace, &options).await;
        let listed = listed.map_err(|error| to_status(&error))?;
        let nodes = self.scraper.nodes().await;
        let metrics: Vec<Metrics> =
            listed.items.into_iter().filter_map(|view| view.metrics(&nodes, is_pod)).collect();
        let kind = if is_pod { "PodMetricsList" } else { "NodeMetricsList" };
        Ok(if table {
            documents::table(&metrics, now())
        } else {
            documents::list(kind, &metrics, now())
        })
    }
}

/// Validates a field selector and returns it. It is evaluated under this server's identity: other fields would reveal
/// data that only readers of Pods and Nodes may see.
fn validated_fields(text: &str) -> Result<String, Status> {
    let selector: FieldSelector =
        text.parse().map_err(|error: FieldSelectorError| Status::bad_request(error.to_string()))?;
    let is_selectable = |field: &str| matches!(field, "metadata.name" | "metadata.namespace");
    match selector.terms.iter().find(|term| !is_selectable(&term.field)) {
        None => Ok(text.to_owned()),
        Some(term) => Err(Status::bad_request(format!(
            "{:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\"",
            term.field
        ))),
    }
}

fn query(text: &str) -> BTreeMap<String, String> {
    let pairs = text.split('&').filter_map(|pair| pair.split_once('='));
    pairs.filter_map(|(name, value)| Some((query_decode(name)?, query_decode(value)?))).collect()
}

/// Reports whether the client prefers a Table.
fn wants_table(parts: &Parts) -> bool {
    let accepted = parts.headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
    let first = accepted.unwrap_or_default().split(',').next().unwrap_or_default();
    let mut parameters = first.split(';').map(str::trim);
    parameters.next() == Some("application/json") && parameters.any(|p| p == "as=Table")
}

#[cfg(test)]
mod tests;
