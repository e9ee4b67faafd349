//! Calls to webhooks: a review goes out by HTTPS to a URL or to a Service, and comes back answered.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use api_meta::{Budget, Objects};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use client::{ClientTls, HttpTransport, TlsMaterial, Transport as _};
use http::{Method, Request, Uri, header};
use serde_json::Value;

use super::target;
use crate::request::body::{self, BodyError};

/// More than this a webhook cannot answer.
const ANSWER_LIMIT: usize = 64 << 20;
/// How deep the objects lie in a review.
const REVIEW_DEPTH: usize = 3;
/// What a webhook says when it refuses is shown up to here.
const WORDS_LIMIT: usize = 2 << 10;
/// Whom a webhook's certificate is checked against when nothing is said.
const SYSTEM_AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// A webhook, as a `clientConfig` describes it.
pub(crate) struct Webhook {
    config: Value,
    timeout: Duration,
    objects: Arc<dyn Objects>,
    /// Made from the bundle at the first call.
    tls: Mutex<Option<ClientTls>>,
}

#[derive(Debug, thiserror::Error)]
#[error("Post \"{url}\": {cause}")]
pub(crate) struct CallError {
    url: String,
    cause: String,
}

/// Where a webhook is: what is connected to, what its certificate must name, and the path there.
struct Place {
    server: String,
    name: String,
    path: String,
}

impl Webhook {
    pub(crate) fn new(config: Value, timeout: Duration, objects: Arc<dyn Objects>) -> Self {
        Self { config, timeout, objects, tls: Mutex::default() }
    }

    /// Sends a review and returns what came back.
    pub(crate) async fn call(&self, review: &Value) -> Result<Value, String> {
        let (url, found) = self.place();
        let failed = |cause: String| CallError { url: url.clone(), cause }.to_string();
        let place = found.map_err(failed)?;
        let answered = tokio::time::timeout(self.timeout, self.send(&place, review)).await;
        match answered {
            Ok(Ok(response)) => read(response).await,
            Ok(Err(cause)) => Err(failed(cause)),
            Err(_) => Err(failed("context deadline exceeded".to_owned())),
        }
    }

    async fn send(&self, place: &Place, review: &Value) -> Result<(u16, Bytes), String> {
        let tls = self.tls()?;
        let transport = HttpTransport::http1(&place.server, tls).map_err(|e| e.to_string())?;
        let transport = transport.with_server_name(&place.name);
        let body = serde_json::to_vec(review).map_err(|e| e.to_string())?;
        let request = Request::builder()
            .method(Method::POST)
            .uri(&place.path)
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, "application/json")
            .header(header::CONTENT_LENGTH, body.len())
            .body(serve::full(body))
            .map_err(|e| e.to_string())?;
        let response = transport.send(request).await.map_err(|e| cause(&e, &place.server))?;
        let code = response.status().as_u16();
        let whole = body::whole(response.into_body(), ANSWER_LIMIT).await;
        let whole = whole.map_err(|error| match error {
            BodyError::TooLong => format!("the answer is longer than {ANSWER_LIMIT} bytes"),
            BodyError::Broken(error) => error.to_string(),
        })?;
        Ok((code, whole))
    }

    fn tls(&self) -> Result<ClientTls, String> {
        let mut tls = self.tls.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tls) = &*tls {
            return Ok(tls.clone());
        }
        let bundle = self.config["caBundle"].as_str().unwrap_or_default();
        let ca = match bundle {
            "" => std::fs::read(SYSTEM_AUTHORITIES)
                .map_err(|e| format!("reading {SYSTEM_AUTHORITIES}, as no caBundle is given: {e}")),
            bundle => STANDARD.decode(bundle).map_err(|e| format!("reading the caBundle: {e}")),
        };
        let material = TlsMaterial { ca: Some(ca?), ..TlsMaterial::default() };
        let made: ClientTls = material.client_config().map_err(|e| e.to_string())?.into();
        *tls = Some(made.clone());
        Ok(made)
    }

    /// The URL that messages name, and how to get there now: a Service's endpoints come and go.
    fn place(&self) -> (String, Result<Place, String>) {
        let timeout = format!("timeout={}s", self.timeout.as_secs());
        let service = &self.config["service"];
        let Some(url) = self.config["url"].as_str() else {
            let text = |field: &str| service[field].as_str().unwrap_or_default();
            let name = format!("{}.{}.svc", text("name"), text("namespace"));
            let port = service["port"].as_u64().unwrap_or(443);
            let path = format!("/{}?{timeout}", text("path").trim_start_matches('/'));
            let url = format!("https://{name}:{port}{path}");
            let address = self.address(text("namespace"), text("name"), port);
            let server = address.map(|address| format!("https://{address}"));
            let place = server.map(|server| Place { server, name, path });
            return (url, place);
        };
        let joint = if url.contains('?') { '&' } else { '?' };
        let whole = format!("{url}{joint}{timeout}");
        let place = whole.parse::<Uri>().map_err(|e| e.to_string()).and_then(|uri| {
            let authority = uri.authority().ok_or("it has no host")?;
            let name = authority.host().trim_matches(['[', ']']).to_owned();
            let path = uri.path_and_query().map_or("/", |p| p.as_str()).to_owned();
            let server = format!("https://{authority}");
            Ok(Place { server, name, path })
        });
        (whole, place)
    }

    fn address(&self, namespace: &str, name: &str, port: u64) -> Result<String, String> {
        let service = self.objects.get(&api_meta::GroupResource::SERVICES, namespace, name);
        let service = service.ok_or_else(|| format!("service \"{name}\" not found"))?;
        if let Some(host) = service["spec"]["externalName"].as_str().filter(|h| !h.is_empty()) {
            return Ok(format!("{host}:{port}"));
        }
        let ports = service["spec"]["ports"].as_array().into_iter().flatten();
        if !ports.into_iter().any(|p| p["port"] == port) {
            return Err(format!("no service port {port} found for service \"{name}\""));
        }
        let port = u16::try_from(port).ok();
        port.and_then(|port| target::endpoint(&*self.objects, namespace, name, port))
            .map(|address| address.to_string())
            .ok_or_else(|| format!("no endpoints available for service \"{name}\""))
    }
}

/// The innermost cause, which is what went wrong with the connection, in upstream's words where people know those.
fn cause(error: &client::Error, server: &str) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    let address = server.trim_start_matches("https://");
    match cause.to_string() {
        words if words.contains("Connection refused") => {
            format!("dial tcp {address}: connect: connection refused")
        }
        words if words.contains("UnknownIssuer") => {
            "tls: failed to verify certificate: x509: certificate signed by unknown authority"
                .to_owned()
        }
        words => words,
    }
}

/// A review out of an answer; one that refuses is an error in the words of upstream's client.
async fn read((code, body): (u16, Bytes)) -> Result<Value, String> {
    if (200..300).contains(&code) {
        let tree = Budget::objects(usize::MAX, REVIEW_DEPTH).json(&body);
        return tree.map_err(|e| format!("reading the answer: {e}"));
    }
    // A webhook may refuse with a Status of its own.
    if let Ok(status) = serde_json::from_slice::<Value>(&body)
        && status["kind"] == "Status"
        && let Some(message) = status["message"].as_str()
    {
        return Err(message.to_owned());
    }
    let words = String::from_utf8_lossy(&body[..body.len().min(WORDS_LIMIT)]).trim().to_owned();
    Err(match code {
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
