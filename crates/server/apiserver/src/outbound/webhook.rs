//! Calls admission and conversion webhooks: sends a review by HTTPS to a URL or a Service, and returns the response.
//!
//! Webhooks are not trusted: responses are limited in size and time, and redirects are not followed. The API's objects
//! resolve a Service to an address; no data of a webhook is interpreted as one.

use std::{sync::Arc, time::Duration};

use api_meta::Tree as _;
use bytes::Bytes;
use client::Transport as _;
use http::{Method, Request, Uri, header};
use serde_json::Value;

use super::{
    backends::{Backends, Credentials, Destination, Location, Trust},
    error::BackendError,
    users::WebhookUsers,
};
use crate::config::Network;

/// The maximum length of a webhook's error message.
const WORDS_LIMIT: usize = 2 << 10;
/// A webhook of a `clientConfig`.
pub(crate) struct Webhook {
    target: Target,
    bundle: Arc<str>,
    backends: Arc<Backends>,
    /// The users whose credentials are sent to webhooks, if configured.
    users: Option<Arc<WebhookUsers>>,
}

enum Target {
    Url(String),
    Service { namespace: String, name: String, port: u16, path: String },
}

/// The failure of a call, in the words of upstream's client.
#[derive(Debug, thiserror::Error)]
#[error("{words}")]
pub(crate) struct CallError {
    pub(super) words: String,
    /// The HTTP status of the response, if there was one.
    pub(crate) code: Option<u16>,
}

/// The limits of a call.
#[derive(Clone, Copy)]
pub(crate) struct CallLimits {
    pub(crate) timeout: Duration,
    /// The maximum size of the response in bytes.
    pub(crate) response_bytes: usize,
}

impl Webhook {
    pub(crate) fn new(config: &Value, backends: Arc<Backends>) -> Self {
        let service = &config["service"];
        let target = match config["url"].as_str() {
            Some(url) => Target::Url(url.to_owned()),
            None => Target::Service {
                namespace: service.text("namespace").to_owned(),
                name: service.text("name").to_owned(),
                port: service["port"].as_u64().and_then(|p| u16::try_from(p).ok()).unwrap_or(443),
                path: format!("/{}", service.text("path").trim_start_matches('/')),
            },
        };
        let bundle = config.text("caBundle").into();
        Self { target, bundle, backends, users: None }
    }

    /// Sets the users whose credentials are sent.
    pub(crate) fn with_users(self, users: Option<Arc<WebhookUsers>>) -> Self {
        Self { users, ..self }
    }

    fn credentials(&self, target: &str) -> Credentials {
        let user = self.users.as_ref().and_then(|users| users.of(target));
        user.map_or(Credentials::Anonymous, Credentials::User)
    }

    /// Sends a review and returns the response undecoded.
    pub(crate) async fn call(
        &self,
        review: Vec<u8>,
        limits: CallLimits,
    ) -> Result<Bytes, CallError> {
        // Tell the webhook its timeout in whole seconds.
        let seconds = limits.timeout.as_millis().div_ceil(1000);
        let url = self.url(&format!("timeout={seconds}s"));
        let sent =
            tokio::time::timeout(limits.timeout, self.send(&url, review, limits.response_bytes));
        match sent.await.unwrap_or(Err(BackendError::Deadline)) {
            Ok((code, body)) => read(code, body),
            Err(error) => Err(CallError { words: format!("Post \"{url}\": {error}"), code: None }),
        }
    }

    /// Returns the status code and body of the response.
    async fn send(
        &self,
        url: &str,
        review: Vec<u8>,
        limit: usize,
    ) -> Result<(u16, Bytes), BackendError> {
        let uri: Uri = url.parse()?;
        let destination = self.destination(&uri)?;
        let transport = self.backends.pooled_transport(&destination)?;
        let path = uri.path_and_query().map_or("/", |p| p.as_str());
        let request = Request::builder()
            .method(Method::POST)
            .uri(path)
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, "application/json, */*")
            .header(header::USER_AGENT, "kube-apiserver-admission")
            .header(header::CONTENT_LENGTH, review.len())
            .body(serve::full(review))?;
        let response =
            transport.send(request).await.map_err(|e| destination.connection_error(&e))?;
        let code = response.status().as_u16();
        let body = client::read(path, response.into_body(), limit).await;
        Ok((code, body.map_err(|error| BackendError::body(&error))?))
    }

    /// Returns the URL for messages, with the query appended.
    fn url(&self, query: &str) -> String {
        match &self.target {
            Target::Url(url) => {
                let joint = if url.contains('?') { '&' } else { '?' };
                format!("{url}{joint}{query}")
            }
            Target::Service { namespace, name, port, path } => {
                format!("https://{name}.{namespace}.svc:{port}{path}?{query}")
            }
        }
    }

    /// Returns the current destination. A Service's endpoint is selected for each call.
    fn destination(&self, uri: &Uri) -> Result<Destination, BackendError> {
        let trust = |target: &str| Trust {
            credentials: self.credentials(target),
            ..Trust::bundle(self.bundle.clone())
        };
        match &self.target {
            Target::Url(_) => {
                let authority = uri.authority().ok_or(BackendError::NoHost)?;
                let name = authority.host().trim_matches(['[', ']']).to_owned();
                let at = Location::Server(format!("https://{authority}"));
                let trust = trust(authority.as_str());
                let (port, network) = (uri.port_u16().unwrap_or(443), Network::ControlPlane);
                Ok(Destination { at, name, port, trust, network })
            }
            Target::Service { namespace, name, port, .. } => {
                let at = self.backends.endpoint(namespace, name, *port)?;
                let name = format!("{name}.{namespace}.svc");
                let trust = trust(&format!("{name}:{port}"));
                Ok(Destination { at, name, port: *port, trust, network: Network::Cluster })
            }
        }
    }
}

/// Returns the body of a successful response, or an error in the words of upstream's client.
pub(super) fn read(code: u16, body: Bytes) -> Result<Bytes, CallError> {
    if (200..300).contains(&code) {
        return Ok(body);
    }
    let error = |words: String| Err(CallError { words, code: Some(code) });
    // A webhook may respond with a Status as its error.
    if let Ok(status) = serde_json::from_slice::<Value>(&body)
        && status["kind"] == "Status"
        && let Some(message) = status["message"].as_str()
    {
        return error(message.to_owned());
    }
    let words = String::from_utf8_lossy(&body[..body.len().min(WORDS_LIMIT)]).trim().to_owned();
    error(match code {
        400 => "the server rejected our request for an unknown reason".to_owned(),
        401 => "the server has asked for the client to provide credentials".to_owned(),
        403 => words,
        404 => "the server could not find the requested resource".to_owned(),
        429 => "the server has received too many requests and has asked us to try again later"
            .to_owned(),
        503 => "the server is currently unable to handle the request".to_owned(),
        504 => "the server was unable to return a response in the time allotted, but may still be \
                processing the request"
            .to_owned(),
        500.. => {
            format!("an error on the server ({words:?}) has prevented the request from succeeding")
        }
        _ => format!(
            "the server responded with the status code {code} but did not return more information"
        ),
    })
}
