//! Calls to webhooks: a review goes out by HTTPS to a URL or to a Service, and comes back answered. Conversion and
//! admission call alike.
//!
//! What a webhook says is not trusted: an answer is bounded in length and time, and a redirect is an answer that says
//! nothing. A Service's name becomes an address by the API's own objects; no text of a webhook's is read as one.

use std::{sync::Arc, time::Duration};

use api_meta::Tree as _;
use bytes::Bytes;
use client::Transport as _;
use http::{Method, Request, Uri, header};
use serde_json::Value;

use super::{
    backends::{At, Backends, Place, Shown, Trust},
    users::WebhookUsers,
};

/// What a webhook says when it refuses is shown up to here.
const WORDS_LIMIT: usize = 2 << 10;
/// A webhook, as a `clientConfig` describes it.
pub(crate) struct Webhook {
    target: Target,
    bundle: Arc<str>,
    backends: Arc<Backends>,
    /// Who this server is to webhooks, where it says so.
    users: Option<Arc<WebhookUsers>>,
}

enum Target {
    Url(String),
    Service { namespace: String, name: String, port: u16, path: String },
}

/// Why a call came to nothing, in the words of upstream's client.
#[derive(Debug, thiserror::Error)]
#[error("{words}")]
pub(crate) struct CallError {
    pub(super) words: String,
    /// The status that was answered, if one was.
    pub(crate) code: Option<u16>,
}

/// How far a call may go.
#[derive(Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) time: Duration,
    /// Bytes of the answer.
    pub(crate) answer: usize,
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

    /// The same, which is shown one of these users.
    pub(crate) fn known_to(self, users: Option<Arc<WebhookUsers>>) -> Self {
        Self { users, ..self }
    }

    fn shown(&self, target: &str) -> Shown {
        let user = self.users.as_ref().and_then(|users| users.of(target));
        user.map_or(Shown::Nobody, Shown::User)
    }

    /// Sends a review and returns what came back, unread.
    pub(crate) async fn call(&self, review: Vec<u8>, bounds: Bounds) -> Result<Bytes, CallError> {
        // A webhook is told how long it has, in whole seconds.
        let seconds = bounds.time.as_millis().div_ceil(1000);
        let url = self.url(&format!("timeout={seconds}s"));
        let failed =
            |cause: String| CallError { words: format!("Post \"{url}\": {cause}"), code: None };
        let sent = tokio::time::timeout(bounds.time, self.send(&url, review, bounds.answer));
        match sent.await {
            Ok(Ok((code, body))) => read(code, body),
            Ok(Err(cause)) => Err(failed(cause)),
            Err(_) => Err(failed("context deadline exceeded".to_owned())),
        }
    }

    async fn send(&self, url: &str, review: Vec<u8>, limit: usize) -> Result<(u16, Bytes), String> {
        let uri: Uri = url.parse().map_err(|e: http::uri::InvalidUri| e.to_string())?;
        let place = self.place(&uri)?;
        let way = self.backends.way(&place)?;
        let path = uri.path_and_query().map_or("/", |p| p.as_str());
        let request = Request::builder()
            .method(Method::POST)
            .uri(path)
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, "application/json, */*")
            .header(header::USER_AGENT, "kube-apiserver-admission")
            .header(header::CONTENT_LENGTH, review.len())
            .body(serve::full(review))
            .map_err(|e| e.to_string())?;
        let response = way.send(request).await.map_err(|e| place.cause(&e))?;
        let code = response.status().as_u16();
        let whole = client::read(path, response.into_body(), limit).await;
        let whole = whole.map_err(|error| match error {
            client::Error::TooLarge { limit, .. } => {
                format!("the answer is longer than {limit} bytes")
            }
            broken => broken.cause().to_string(),
        })?;
        Ok((code, whole))
    }

    /// The URL that messages name, with a query more.
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

    /// How to get there now: a Service's endpoints come and go.
    fn place(&self, uri: &Uri) -> Result<Place, String> {
        let trust = |target: &str| Trust {
            shown: self.shown(target),
            ..Trust::bundle(self.bundle.clone())
        };
        match &self.target {
            Target::Url(_) => {
                let authority = uri.authority().ok_or("it has no host")?;
                let name = authority.host().trim_matches(['[', ']']).to_owned();
                let at = At::Server(format!("https://{authority}"));
                let trust = trust(authority.as_str());
                Ok(Place { at, name, port: uri.port_u16().unwrap_or(443), trust })
            }
            Target::Service { namespace, name, port, .. } => {
                let at = self.backends.endpoint(namespace, name, *port)?;
                let name = format!("{name}.{namespace}.svc");
                let trust = trust(&format!("{name}:{port}"));
                Ok(Place { at, name, port: *port, trust })
            }
        }
    }
}

/// What was answered; what refuses is an error in the words of upstream's client.
pub(super) fn read(code: u16, body: Bytes) -> Result<Bytes, CallError> {
    if (200..300).contains(&code) {
        return Ok(body);
    }
    let error = |words: String| Err(CallError { words, code: Some(code) });
    // A webhook may refuse with a Status of its own.
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
        429 => "the server has received too many requests and has asked us to try again later".to_owned(),
        503 => "the server is currently unable to handle the request".to_owned(),
        504 => "the server was unable to return a response in the time allotted, but may still be processing the request".to_owned(),
        500.. => format!("an error on the server ({words:?}) has prevented the request from succeeding"),
        _ => format!("the server responded with the status code {code} but did not return more information"),
    })
}
