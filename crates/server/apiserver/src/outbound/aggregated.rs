//! Requests to aggregated API servers, which run behind Services that APIServices name. Requests to the peers of this
//! server are in [`super::peers`].
//!
//! A backend trusts the user headers of a request because of this server's client certificate. Its address is an
//! endpoint of the Service. As for every proxy, addresses of this machine and its link are rejected.

use std::{net::SocketAddr, time::Duration};

use api_meta::{GroupResource, Objects, Tree as _, UserInfo};
use auth::authn::forwarding::assert_identity;
use bytes::Bytes;
use client::Transport as _;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, header};
use serde_json::Value;
use serve::Body;

use super::{
    backends::{Backends, Credentials, Destination, Location, Trust},
    error::BackendError,
    target,
    webhook::CallLimits,
};
use crate::config::Network;

/// The server of an APIService.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reference {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) port: u16,
    trust: Trust,
}

/// The number of attempts of an availability check, and the timeout of each.
const CHECKS: usize = 5;
const CHECK_TIME: Duration = Duration::from_secs(5);

/// The error of a request.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RequestError {
    /// The Service has no usable endpoint.
    #[error(transparent)]
    Unresolvable(BackendError),
    #[error(transparent)]
    Failed(#[from] BackendError),
    #[error("the user name {0:?} cannot be sent in a header")]
    InvalidUser(String),
}

/// The failure of an availability check, in upstream's words.
#[derive(Debug, thiserror::Error)]
#[error("failing or missing response from {url}: {source}")]
pub(crate) struct AvailabilityError {
    url: String,
    source: CheckError,
}

/// The failure of one attempt of an availability check.
#[derive(Debug, thiserror::Error)]
enum CheckError {
    #[error("bad status from {url}: {code}")]
    Status { url: String, code: u16 },
    #[error("Get {url:?}: {source}")]
    Request { url: String, source: RequestError },
}

/// A request for a document of another API server.
#[derive(Clone, Copy)]
pub(crate) struct DocumentRequest<'a> {
    /// The user on whose behalf the document is read.
    pub(crate) user: &'a UserInfo,
    pub(crate) path: &'a str,
    /// Further headers; those with an empty value are not sent.
    pub(crate) headers: &'a [(HeaderName, &'a str)],
    pub(crate) limits: CallLimits,
}

/// A response with its whole body.
pub(crate) struct FetchedResponse {
    pub(crate) code: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// The connection of a request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionMode {
    /// Shared with other requests.
    Shared,
    /// Dedicated, for watches and connections: a server limits the concurrent streams of one connection.
    Own,
}

impl Reference {
    /// Returns `None` if the APIService names no Service, and this server serves it.
    pub(crate) fn of(spec: &Value) -> Option<Self> {
        let service = spec.at("service");
        service.is_object().then(|| Self {
            namespace: service.text("namespace").to_owned(),
            name: service.text("name").to_owned(),
            port: u16::try_from(service.opt_int("port").unwrap_or(443)).unwrap_or_default(),
            trust: Trust {
                bundle: spec.text("caBundle").into(),
                insecure: spec.flag("insecureSkipTLSVerify"),
                credentials: Credentials::Server,
            },
        })
    }

    /// Returns the URL for messages.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("https://{}.{}.svc:{}{path}", self.name, self.namespace, self.port)
    }

    /// Sends a request on behalf of a user. Its headers must be those of the proxied request.
    pub(crate) async fn send(
        &self,
        backends: &Backends,
        user: &UserInfo,
        lane: ConnectionMode,
        request: Request<Body>,
    ) -> Result<Response<Body>, RequestError> {
        let destination = self.destination(backends).await.map_err(RequestError::Unresolvable)?;
        destination.send(backends, user, lane, request).await
    }

    /// Fetches a document, within a timeout and a maximum size.
    pub(crate) async fn fetch(
        &self,
        backends: &Backends,
        document: DocumentRequest<'_>,
    ) -> Result<FetchedResponse, RequestError> {
        let fetched = tokio::time::timeout(document.limits.timeout, async {
            let destination =
                self.destination(backends).await.map_err(RequestError::Unresolvable)?;
            destination.fetch(backends, document).await
        });
        fetched.await.unwrap_or(Err(RequestError::Failed(BackendError::Deadline)))
    }

    /// Checks with the API's objects whether the Service has endpoints. Returns the reason and message otherwise, in
    /// upstream's words.
    pub(crate) fn missing(&self, objects: &dyn Objects) -> Option<(&'static str, String)> {
        let (name, namespace) = (&self.name, &self.namespace);
        let Some(service) = objects.get(&GroupResource::SERVICES, namespace, name) else {
            let message = format!("service/{name} in {namespace:?} is not present");
            return Some(("ServiceNotFound", message));
        };
        // Services of other types may route to more than endpoints.
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

    /// Checks that the server answers discovery. Each attempt picks an endpoint, and one success is enough, because
    /// single endpoints may be shutting down.
    pub(crate) async fn check(
        &self,
        backends: &Backends,
        path: &str,
    ) -> Result<(), AvailabilityError> {
        let url = self.url(path);
        let user = aggregator();
        let one = || async {
            let get =
                async { self.send(backends, &user, ConnectionMode::Shared, get(path)?).await };
            let sent = tokio::time::timeout(CHECK_TIME, get).await;
            match sent.unwrap_or(Err(RequestError::Failed(BackendError::Deadline))) {
                Ok(response) if response.status().is_success() => Ok(()),
                Ok(response) => {
                    Err(CheckError::Status { url: url.clone(), code: response.status().as_u16() })
                }
                Err(source) => Err(CheckError::Request { url: url.clone(), source }),
            }
        };
        let mut done = one().await;
        // Retry concurrently, so that a single bad endpoint does not make the server unavailable.
        if done.is_err() {
            let others = std::iter::repeat_with(|| Box::pin(one())).take(CHECKS - 1);
            done = futures_util::future::select_ok(others).await.map(drop);
        }
        done.map_err(|source| AvailabilityError { url, source })
    }

    async fn destination(&self, backends: &Backends) -> Result<Destination, BackendError> {
        let address = match backends.endpoint(&self.namespace, &self.name, self.port)? {
            Location::Address(address) => target::proxyable(address.ip())
                .map(|ip| SocketAddr::new(ip, address.port()))
                .ok_or_else(|| BackendError::ForbiddenAddress(address.ip()))?,
            // An ExternalName Service: its name is resolved once, and the validated address is the one that is
            // connected to.
            Location::Server(server) => {
                let host = server.trim_start_matches("https://");
                let host = host.rsplit_once(':').map_or(host, |(host, _)| host);
                let ip = target::look_up(host).await;
                let ip = ip.map_err(|status| BackendError::Lookup { message: status.message })?;
                SocketAddr::new(ip, self.port)
            }
        };
        Ok(Destination {
            at: Location::Address(address),
            name: format!("{}.{}.svc", self.name, self.namespace),
            port: self.port,
            trust: self.trust.clone(),
            network: Network::Cluster,
        })
    }
}

impl Destination {
    /// Sends a request on behalf of a user to an API server that trusts this one.
    pub(crate) async fn send(
        &self,
        backends: &Backends,
        user: &UserInfo,
        lane: ConnectionMode,
        mut request: Request<Body>,
    ) -> Result<Response<Body>, RequestError> {
        assert_identity(request.headers_mut(), user)
            .map_err(|_| RequestError::InvalidUser(user.name.clone()))?;
        let transport = backends.pooled_transport(self)?;
        let sent = match lane {
            ConnectionMode::Shared => transport.send(request).await,
            ConnectionMode::Own => transport.send_alone(request).await,
        };
        Ok(sent.map_err(|error| self.connection_error(&error))?)
    }

    /// Fetches a document, within a timeout and a maximum size.
    pub(crate) async fn fetch(
        &self,
        backends: &Backends,
        document: DocumentRequest<'_>,
    ) -> Result<FetchedResponse, RequestError> {
        let DocumentRequest { user, path, headers, limits } = document;
        let mut request = get(path)?;
        request
            .headers_mut()
            .insert(header::USER_AGENT, HeaderValue::from_static("kube-apiserver-aggregator"));
        for (name, value) in headers.iter().filter(|(_, value)| !value.is_empty()) {
            let value = HeaderValue::from_str(value).map_err(BackendError::Header)?;
            request.headers_mut().insert(name, value);
        }
        let fetched = tokio::time::timeout(limits.timeout, async {
            let response = self.send(backends, user, ConnectionMode::Shared, request).await?;
            let (parts, body) = response.into_parts();
            let body = client::read(path, body, limits.response_bytes).await;
            let body = body.map_err(|error| BackendError::body(&error))?;
            Ok(FetchedResponse { code: parts.status.as_u16(), headers: parts.headers, body })
        });
        fetched.await.unwrap_or(Err(RequestError::Failed(BackendError::Deadline)))
    }
}

impl std::fmt::Debug for FetchedResponse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} and {} bytes", self.code, self.body.len())
    }
}

fn get(path: &str) -> Result<Request<Body>, BackendError> {
    Ok(Request::get(path).body(serve::full(Bytes::new()))?)
}

/// The user of discovery requests.
pub(crate) fn aggregator() -> UserInfo {
    UserInfo::new("system:kube-aggregator", &[api_meta::user::GROUP_MASTERS])
}

/// The user of OpenAPI requests. The documents are readable by every authenticated user, so no privileged user is
/// needed.
pub(crate) fn open_api_reader() -> UserInfo {
    UserInfo::new("system:aggregator", &[api_meta::user::GROUP_AUTHENTICATED])
}
