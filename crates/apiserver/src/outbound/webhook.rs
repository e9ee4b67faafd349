//! Calls to webhooks: a review goes out by HTTPS to a URL or to a Service, and comes back answered. Conversion and
//! admission call alike.
//!
//! What a webhook says is not trusted: an answer is bounded in length and time, and a redirect is an answer that says
//! nothing. A Service's name becomes an address by the API's own objects; no text of a webhook's is read as one.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

use api_meta::{GroupResource, Objects, Tree as _};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use client::{HttpTransport, TlsMaterial, Transport as _};
use http::{Method, Request, Uri, header};
use serde_json::Value;

use super::target;

/// What a webhook says when it refuses is shown up to here.
const WORDS_LIMIT: usize = 2 << 10;
/// Whom a webhook's certificate is checked against when nothing is said.
const SYSTEM_AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";
/// How many ways to webhooks are kept, and for how long nobody may have gone one of them.
const WAYS: usize = 256;
const UNUSED: Duration = Duration::from_secs(90);

/// The ways to all webhooks. Those who call the same place share its connections, whichever object they have it from.
pub(crate) struct Backends {
    /// Where Services are looked for.
    objects: Arc<dyn Objects>,
    ways: Mutex<HashMap<Place, Way>>,
}

struct Way {
    transport: Arc<HttpTransport>,
    used: Instant,
}

/// Where a webhook is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Place {
    at: At,
    /// Whom its certificate must name, and what it is called in requests.
    name: String,
    port: u16,
    bundle: Arc<str>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum At {
    /// An endpoint of a Service.
    Address(SocketAddr),
    /// What a URL, or a Service that stands for a name outside, says.
    Server(String),
}

/// A webhook, as a `clientConfig` describes it.
pub(crate) struct Webhook {
    target: Target,
    bundle: Arc<str>,
    backends: Arc<Backends>,
}

enum Target {
    Url(String),
    Service { namespace: String, name: String, port: u16, path: String },
}

/// Why a call came to nothing, in the words of upstream's client.
#[derive(Debug, thiserror::Error)]
#[error("{words}")]
pub(crate) struct CallError {
    words: String,
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

impl Backends {
    pub(crate) fn new(objects: Arc<dyn Objects>) -> Arc<Self> {
        Arc::new(Self { objects, ways: Mutex::default() })
    }

    fn way(&self, place: &Place) -> Result<Arc<HttpTransport>, String> {
        let mut ways = self.ways.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(way) = ways.get_mut(place) {
            way.used = Instant::now();
            return Ok(way.transport.clone());
        }
        ways.retain(|_, way| way.used.elapsed() < UNUSED || Arc::strong_count(&way.transport) > 1);
        if ways.len() >= WAYS {
            ways.clear();
        }
        let transport = Arc::new(place.transport()?);
        let used = Instant::now();
        ways.insert(place.clone(), Way { transport: transport.clone(), used });
        Ok(transport)
    }

    fn endpoint(&self, namespace: &str, name: &str, port: u16) -> Result<At, String> {
        let service = self.objects.get(&GroupResource::SERVICES, namespace, name);
        let service = service.ok_or_else(|| format!("service \"{name}\" not found"))?;
        if let Some(host) = service["spec"]["externalName"].as_str().filter(|h| !h.is_empty()) {
            return Ok(At::Server(format!("https://{host}:{port}")));
        }
        if !service.items("spec.ports").iter().any(|p| p["port"] == port) {
            return Err(format!("no service port {port} found for service \"{name}\""));
        }
        let address = target::endpoint(&*self.objects, namespace, name, port);
        address
            .map(At::Address)
            .ok_or_else(|| format!("no endpoints available for service \"{name}\""))
    }
}

impl Place {
    fn transport(&self) -> Result<HttpTransport, String> {
        let ca = match &*self.bundle {
            "" => std::fs::read(SYSTEM_AUTHORITIES)
                .map_err(|e| format!("reading {SYSTEM_AUTHORITIES}, as no caBundle is given: {e}")),
            bundle => STANDARD.decode(bundle).map_err(|e| format!("reading the caBundle: {e}")),
        };
        let material = TlsMaterial { ca: Some(ca?), ..TlsMaterial::default() };
        let tls = material.client_config().map_err(|e| e.to_string())?;
        Ok(match &self.at {
            At::Address(address) => {
                HttpTransport::at(*address, tls).for_host(&self.name, self.port)
            }
            At::Server(server) => HttpTransport::new(server, tls, None)
                .map_err(|e| e.to_string())?
                .with_server_name(&self.name),
        })
    }
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
        Self { target, bundle, backends }
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
        let response = way.send(request).await.map_err(|e| cause(&e, &place))?;
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
        let bundle = self.bundle.clone();
        match &self.target {
            Target::Url(_) => {
                let authority = uri.authority().ok_or("it has no host")?;
                let name = authority.host().trim_matches(['[', ']']).to_owned();
                let at = At::Server(format!("https://{authority}"));
                Ok(Place { at, name, port: uri.port_u16().unwrap_or(443), bundle })
            }
            Target::Service { namespace, name, port, .. } => {
                let at = self.backends.endpoint(namespace, name, *port)?;
                Ok(Place { at, name: format!("{name}.{namespace}.svc"), port: *port, bundle })
            }
        }
    }
}

/// The innermost cause, which is what went wrong with the connection, in upstream's words where people know those.
fn cause(error: &client::Error, place: &Place) -> String {
    let address = match &place.at {
        At::Address(address) => address.to_string(),
        At::Server(server) => server.trim_start_matches("https://").to_owned(),
    };
    match error.cause().to_string() {
        words if words.contains("Connection refused") => {
            format!("dial tcp {address}: connect: connection refused")
        }
        words if words.contains("UnknownIssuer") => {
            "tls: failed to verify certificate: x509: certificate signed by unknown authority"
                .to_owned()
        }
        words if words.contains("not valid for name") || words.contains("NotValidForName") => {
            format!(
                "tls: failed to verify certificate: x509: certificate is not valid for {}: {words}",
                place.name
            )
        }
        words => words,
    }
}

/// What was answered; what refuses is an error in the words of upstream's client.
fn read(code: u16, body: Bytes) -> Result<Bytes, CallError> {
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
