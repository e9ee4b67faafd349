//! API servers of other groups, which stand behind Services that APIServices name.
//!
//! A backend sees whom it is asked for in headers that only this server may set, and believes them for its certificate.
//! Its address is an endpoint of the Service, judged like those of every proxy: it never leads back to this machine or to
//! the link that it is on.

use std::{net::SocketAddr, time::Duration};

use api_meta::{GroupResource, Objects, Tree as _, UserInfo};
use auth::authn::onward::assert_identity;
use bytes::Bytes;
use client::Transport as _;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, header};
use serde_json::Value;
use serve::Body;

use super::{
    backends::{At, Backends, Place, Shown, Trust},
    target,
};

/// What an APIService says of its server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reference {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) port: u16,
    trust: Trust,
}

/// How often discovery is asked for to find out whether a server is available, and how long each may take.
const CHECKS: usize = 5;
const CHECK_TIME: Duration = Duration::from_secs(5);

/// Why a request was not answered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unanswered {
    /// There is nothing to connect to.
    #[error("{0}")]
    Nowhere(String),
    #[error("{0}")]
    Failed(String),
    #[error("naming the user {0:?} in a header")]
    Unnameable(String),
}

/// An answer that was read whole.
pub(crate) struct Fetched {
    pub(crate) code: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// How a request goes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lane {
    /// Beside others on one connection.
    Shared,
    /// On a connection of its own, for what stays open: a server bounds what goes on at once on one connection.
    Own,
}

impl Reference {
    /// `None` if the APIService names no Service: this server itself is meant.
    pub(crate) fn of(spec: &Value) -> Option<Self> {
        let service = spec.at("service");
        service.is_object().then(|| Self {
            namespace: service.text("namespace").to_owned(),
            name: service.text("name").to_owned(),
            port: u16::try_from(service.opt_int("port").unwrap_or(443)).unwrap_or_default(),
            trust: Trust {
                bundle: spec.text("caBundle").into(),
                insecure: spec.flag("insecureSkipTLSVerify"),
                shown: Shown::Server,
            },
        })
    }

    /// The address at which messages name it.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("https://{}.{}.svc:{}{path}", self.name, self.namespace, self.port)
    }

    /// Sends a request in a user's name; its headers are those that go on.
    pub(crate) async fn send(
        &self,
        backends: &Backends,
        user: &UserInfo,
        lane: Lane,
        mut request: Request<Body>,
    ) -> Result<Response<Body>, Unanswered> {
        assert_identity(request.headers_mut(), user)
            .map_err(|_| Unanswered::Unnameable(user.name.clone()))?;
        let place = self.place(backends).await.map_err(Unanswered::Nowhere)?;
        let way = backends.way(&place).map_err(Unanswered::Failed)?;
        let sent = match lane {
            Lane::Shared => way.send(request).await,
            Lane::Own => way.send_alone(request).await,
        };
        sent.map_err(|error| Unanswered::Failed(place.cause(&error)))
    }

    /// Reads a document of the server, within bounds of time and length.
    pub(crate) async fn fetch(
        &self,
        backends: &Backends,
        user: &UserInfo,
        path: &str,
        headers: &[(HeaderName, &str)],
        (time, limit): (Duration, usize),
    ) -> Result<Fetched, Unanswered> {
        let failed = |words: String| Unanswered::Failed(words);
        let mut request = Request::get(path).body(serve::full(Bytes::new()));
        let request = request.as_mut().map_err(|e| failed(e.to_string()))?;
        request
            .headers_mut()
            .insert(header::USER_AGENT, HeaderValue::from_static("kube-apiserver-aggregator"));
        for (name, value) in headers.iter().filter(|(_, value)| !value.is_empty()) {
            let value = HeaderValue::from_str(value).map_err(|e| failed(e.to_string()))?;
            request.headers_mut().insert(name, value);
        }
        let request = std::mem::replace(request, Request::new(serve::full(Bytes::new())));
        let fetched = tokio::time::timeout(time, async {
            let response = self.send(backends, user, Lane::Shared, request).await?;
            let (parts, body) = response.into_parts();
            let body = client::read(path, body, limit).await.map_err(|error| match error {
                client::Error::TooLarge { limit, .. } => {
                    failed(format!("the answer is longer than {limit} bytes"))
                }
                broken => failed(broken.cause().to_string()),
            })?;
            Ok(Fetched { code: parts.status.as_u16(), headers: parts.headers, body })
        });
        fetched.await.unwrap_or_else(|_| Err(failed("context deadline exceeded".to_owned())))
    }

    /// Whether there is something to connect to at all, as far as the API's objects tell: if not, why, in upstream's words.
    pub(crate) fn missing(&self, objects: &dyn Objects) -> Option<(&'static str, String)> {
        let (name, namespace) = (&self.name, &self.namespace);
        let Some(service) = objects.get(&GroupResource::SERVICES, namespace, name) else {
            let message = format!("service/{name} in {namespace:?} is not present");
            return Some(("ServiceNotFound", message));
        };
        // Those of other types lead to more than endpoints.
        if !matches!(service.text("spec.type"), "" | "ClusterIP") {
            return None;
        }
        let Some(port_name) = target::service_port(&service, self.port) else {
            let port = self.port;
            let message =
                format!("service/{name} in {namespace:?} is not listening on port {port}");
            return Some(("ServicePortError", message));
        };
        match target::endpoints(objects, namespace, name, &port_name) {
            None => {
                let message =
                    format!("cannot find endpointslices for service/{name} in {namespace:?}");
                Some(("EndpointsNotFound", message))
            }
            Some(found) if found.is_empty() => {
                let message = format!(
                    "endpointslices for service/{name} in {namespace:?} have no addresses with port name {port_name:?}"
                );
                Some(("MissingEndpoints", message))
            }
            Some(_) => None,
        }
    }

    /// Asks for discovery; an error in upstream's words. Endpoints are chosen anew each time, and one that answers will
    /// do, as any may be going away.
    pub(crate) async fn check(&self, backends: &Backends, path: &str) -> Result<(), String> {
        let url = self.url(path);
        let user = aggregator();
        let one = || async {
            let request = Request::get(path).body(serve::full(Bytes::new()));
            let request = request.map_err(|e| e.to_string())?;
            let sent = self.send(backends, &user, Lane::Shared, request);
            match tokio::time::timeout(CHECK_TIME, sent).await {
                Ok(Ok(response)) if response.status().is_success() => Ok(()),
                Ok(Ok(response)) => {
                    Err(format!("bad status from {url}: {}", response.status().as_u16()))
                }
                Ok(Err(error)) => Err(format!("Get {url:?}: {error}")),
                Err(_) => Err(format!("Get {url:?}: context deadline exceeded")),
            }
        };
        let mut done = one().await;
        // Nobody is left alone with an answer that is not wanted any more while the server is well.
        if done.is_err() {
            let others = std::iter::repeat_with(|| Box::pin(one())).take(CHECKS - 1);
            done = futures_util::future::select_ok(others).await.map(drop);
        }
        done.map_err(|error| format!("failing or missing response from {url}: {error}"))
    }

    async fn place(&self, backends: &Backends) -> Result<Place, String> {
        let address = match backends.endpoint(&self.namespace, &self.name, self.port)? {
            At::Address(address) => target::proxyable(address.ip())
                .map(|ip| SocketAddr::new(ip, address.port()))
                .ok_or_else(|| format!("the address {} is not allowed", address.ip()))?,
            // A Service that stands for a name outside: what it is looked up to is what is judged and connected to.
            At::Server(server) => {
                let host = server.trim_start_matches("https://");
                let host = host.rsplit_once(':').map_or(host, |(host, _)| host);
                let ip = target::looked_up(host).await.map_err(|status| status.message)?;
                SocketAddr::new(ip, self.port)
            }
        };
        Ok(Place {
            at: At::Address(address),
            name: format!("{}.{}.svc", self.name, self.namespace),
            port: self.port,
            trust: self.trust.clone(),
        })
    }
}

impl std::fmt::Debug for Fetched {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} and {} bytes", self.code, self.body.len())
    }
}

/// Who asks backends for what they serve.
pub(crate) fn aggregator() -> UserInfo {
    UserInfo::new("system:kube-aggregator", &[api_meta::user::GROUP_MASTERS])
}

/// Who reads their OpenAPI documents, which are for everybody who is known: nobody mighty asks for them.
pub(crate) fn open_api_reader() -> UserInfo {
    UserInfo::new("system:aggregator", &[api_meta::user::GROUP_AUTHENTICATED])
}
