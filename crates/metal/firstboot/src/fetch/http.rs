//! HTTP and HTTPS requests, one connection each. Follows redirects and retries transient errors.

use std::time::Duration;

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use client::{Body, Stream};
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, header,
};
use ignition::spec::Header;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::{Instant, sleep, timeout},
};

use super::{
    settings::{LIMIT, Settings},
    tpm::Signer,
};
use crate::error::{Error, FetchError};

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
const REDIRECTS: usize = 10;
/// The maximum length of a server's error text in bytes.
const ERROR_TEXT_LIMIT: usize = 4 << 10;
const ERROR_TEXT_TIMEOUT: Duration = Duration::from_secs(5);
const ACCEPT: &str = "application/vnd.coreos.ignition+json;version=3.6.0, */*;q=0.1";

/// The failure of one attempt.
enum Failure {
    /// A transient failure.
    Transient(String),
    Final(FetchError),
}

/// Fetches a URL and retries transient failures until the deadline.
pub(crate) async fn get(
    url: &str,
    headers: &[Header],
    settings: &Settings,
) -> Result<Vec<u8>, FetchError> {
    let address = parse(url)?;
    let headers = header_map(url, headers)?;
    let deadline = settings.total.map(|total| Instant::now() + total);
    let mut pause = FIRST_PAUSE;
    loop {
        let attempt = attempt(&address, &headers, settings);
        let outcome = match deadline {
            None => attempt.await,
            Some(deadline) => match tokio::time::timeout_at(deadline, attempt).await {
                Ok(outcome) => outcome,
                Err(_) => {
                    Err(Failure::Transient("the request did not end before its deadline".into()))
                }
            },
        };
        let reason = match outcome {
            Ok(bytes) => return Ok(bytes),
            Err(Failure::Final(error)) => return Err(error),
            Err(Failure::Transient(reason)) => reason,
        };
        if deadline.is_some_and(|deadline| Instant::now() + pause >= deadline) {
            let reason = format!("{reason}; giving up because of timeouts.httpTotal");
            return Err(FetchError::Transfer { url: url.to_owned(), reason });
        }
        tracing::warn!(url, reason, "fetching again in {pause:?}");
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Posts a text, without retries.
pub(crate) async fn post(url: &str, body: String, settings: &Settings) -> Result<(), FetchError> {
    let address = parse(url)?;
    let failed = |reason: String| FetchError::Transfer { url: url.to_owned(), reason };
    let response =
        match send(&address, Method::POST, &HeaderMap::new(), body.into(), settings).await {
            Ok(response) => response,
            Err(Failure::Final(error)) => return Err(error),
            Err(Failure::Transient(reason)) => return Err(failed(reason)),
        };
    match response.status() {
        status if status.is_success() => Ok(()),
        status => Err(status_error(url, status, response).await),
    }
}

fn parse(url: &str) -> Result<Uri, FetchError> {
    let invalid = |reason: &str| FetchError::Url { url: url.to_owned(), reason: reason.to_owned() };
    let uri: Uri =
        url.parse().map_err(|error: http::uri::InvalidUri| invalid(&error.to_string()))?;
    match (uri.scheme_str(), uri.host()) {
        (Some("http" | "https"), Some(host)) if !host.is_empty() => Ok(uri),
        _ => Err(invalid("a scheme and a host are needed")),
    }
}

fn header_map(url: &str, headers: &[Header]) -> Result<HeaderMap, FetchError> {
    let mut out = HeaderMap::new();
    out.insert(header::ACCEPT, HeaderValue::from_static(ACCEPT));
    // The hash applies to the received bytes, so the server must not compress them.
    out.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    out.insert(header::USER_AGENT, HeaderValue::from_static("Ignition/2.26.0"));
    for configured in headers {
        let invalid = || FetchError::Url {
            url: url.to_owned(),
            reason: format!("{:?} is not a valid HTTP header", configured.name),
        };
        let name = HeaderName::try_from(&configured.name).map_err(|_| invalid())?;
        let Some(value) = &configured.value else { continue };
        out.insert(name, HeaderValue::try_from(value).map_err(|_| invalid())?);
    }
    Ok(out)
}

async fn attempt(url: &Uri, headers: &HeaderMap, settings: &Settings) -> Result<Vec<u8>, Failure> {
    let mut at = url.clone();
    let mut headers = headers.clone();
    let mut signed = false;
    for _ in 0..REDIRECTS {
        let response = send(&at, Method::GET, &headers, Bytes::new(), settings).await?;
        let status = response.status();
        if status.is_redirection() && response.headers().contains_key(header::LOCATION) {
            let to = response.headers()[header::LOCATION].to_str().unwrap_or_default();
            at = resolve_location(&at, to).map_err(Failure::Final)?;
            // Headers for one server are not sent to another.
            headers = header_map("", &[]).map_err(Failure::Final)?;
            continue;
        }
        let signer =
            settings.tpm.as_ref().filter(|_| status == StatusCode::UNAUTHORIZED && !signed);
        if let Some(signer) = signer
            && let Some(challenge) = signer.challenge(&at, response.headers())
        {
            let signature = authorization(&at, signer, &challenge).map_err(Failure::Final)?;
            headers.insert(header::AUTHORIZATION, signature);
            signed = true;
            continue;
        }
        if status.is_server_error() {
            return Err(Failure::Transient(format!("the server answered {status}")));
        }
        if !status.is_success() {
            return Err(Failure::Final(status_error(&url.to_string(), status, response).await));
        }
        let body = client::read(at.path(), response.into_body(), LIMIT as usize).await;
        return body.map(Into::into).map_err(|error| Failure::Transient(error.to_string()));
    }
    let reason = format!("more than {REDIRECTS} redirects");
    Err(Failure::Final(FetchError::Transfer { url: url.to_string(), reason }))
}

/// Returns the signature of a challenge by the machine's TPM.
fn authorization(url: &Uri, signer: &Signer, challenge: &str) -> Result<HeaderValue, FetchError> {
    tracing::info!(%url, "the machine's TPM signs");
    let invalid = |source: Error| FetchError::Tpm { url: url.to_string(), source: source.into() };
    let signature = signer.authorize(challenge).map_err(invalid)?;
    HeaderValue::try_from(signature).map_err(|error| {
        let (what, reason) = ("the challenge".to_owned(), error.to_string());
        invalid(Error::Refused { what, reason })
    })
}

/// Returns the error for a status, with the server's text if it is short and printable.
async fn status_error(url: &str, status: StatusCode, response: Response<Body>) -> FetchError {
    let body =
        timeout(ERROR_TEXT_TIMEOUT, client::read(url, response.into_body(), ERROR_TEXT_LIMIT))
            .await;
    let body = body.ok().and_then(Result::ok);
    let text = body.and_then(|bytes| String::from_utf8(bytes.into()).ok()).unwrap_or_default();
    let printable = text.trim().chars().filter(|c| *c == '\n' || !c.is_control()).collect();
    FetchError::Status { url: url.to_owned(), status: status.as_u16(), text: printable }
}

fn resolve_location(base: &Uri, to: &str) -> Result<Uri, FetchError> {
    if to.contains("://") {
        return parse(to);
    }
    let origin = format!(
        "{}://{}",
        base.scheme_str().unwrap_or_default(),
        base.authority().map_or("", |a| a.as_str())
    );
    match to.strip_prefix('/') {
        Some(_) => parse(&format!("{origin}{to}")),
        None => {
            let directory = base.path().rsplit_once('/').map_or("", |(directory, _)| directory);
            parse(&format!("{origin}{directory}/{to}"))
        }
    }
}

/// Sends one request on a new connection.
async fn send(
    url: &Uri,
    method: Method,
    headers: &HeaderMap,
    body: Bytes,
    settings: &Settings,
) -> Result<Response<Body>, Failure> {
    let transient = |what: &'static str| {
        move |error: &dyn std::fmt::Display| Failure::Transient(format!("{what}: {error}"))
    };
    let exchange = async {
        let (stream, through_proxy) = connect(url, settings).await?;
        let path = url.path_and_query().map_or("/", |path| path.as_str());
        let target = if through_proxy { url.to_string() } else { path.to_owned() };
        let mut request = Request::builder().method(method).uri(target);
        if let Some(request_headers) = request.headers_mut() {
            request_headers.extend(headers.clone());
            let host =
                url.authority().map_or("", |a| a.as_str().rsplit('@').next().unwrap_or_default());
            if let Ok(host) = HeaderValue::try_from(host) {
                request_headers.entry(header::HOST).or_insert(host);
            }
        }
        let request =
            request.body(client::full(body)).map_err(|e| transient("making the request")(&e))?;
        client::exchange(stream, request).await.map_err(|e| transient("asking")(&e))
    };
    match settings.response_headers {
        None => exchange.await,
        Some(limit) => match timeout(limit, exchange).await {
            Ok(outcome) => outcome,
            Err(_) => Err(Failure::Transient(format!("no answer within {limit:?}"))),
        },
    }
}

/// Connects to the server. The flag is `true` if requests must contain the whole URL for a proxy.
async fn connect(url: &Uri, settings: &Settings) -> Result<(Box<dyn Stream>, bool), Failure> {
    let secure = url.scheme_str() == Some("https");
    let host = url.host().unwrap_or_default();
    let port = url.port_u16().unwrap_or(if secure { 443 } else { 80 });
    let proxy = settings.proxy.for_url(url);
    let mut stream = match proxy {
        None => tcp(host, port).await?,
        Some(proxy) => {
            // The proxy may be configured without a scheme.
            let proxy_url =
                if proxy.contains("://") { proxy.to_owned() } else { format!("http://{proxy}") };
            let proxy = parse(&proxy_url).map_err(Failure::Final)?;
            let proxy_port = proxy.port_u16().unwrap_or(80);
            let mut stream = tcp(proxy.host().unwrap_or_default(), proxy_port).await?;
            if secure {
                tunnel(&mut stream, &proxy, host, port).await?;
            }
            stream
        }
    };
    if secure {
        let name = host.trim_matches(['[', ']']);
        let encrypted = client::encrypt(stream, name, &settings.roots.client()).await;
        stream =
            encrypted.map_err(|error| Failure::Transient(format!("TLS with {host}: {error}")))?;
    }
    Ok((stream, proxy.is_some() && !secure))
}

async fn tcp(host: &str, port: u16) -> Result<Box<dyn Stream>, Failure> {
    let stream = client::connect((host.trim_matches(['[', ']']), port)).await;
    stream.map_err(|error| Failure::Transient(format!("connecting to {host}:{port}: {error}")))
}

async fn tunnel(
    stream: &mut Box<dyn Stream>,
    proxy: &Uri,
    host: &str,
    port: u16,
) -> Result<(), Failure> {
    let transient =
        |error: std::io::Error| Failure::Transient(format!("asking the proxy {proxy}: {error}"));
    let user = proxy.authority().and_then(|a| a.as_str().rsplit_once('@')).map(|(user, _)| user);
    let login =
        user.map(|user| format!("Proxy-Authorization: Basic {}\r\n", STANDARD.encode(user)));
    let login = login.unwrap_or_default();
    let request = format!("CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n{login}\r\n");
    stream.write_all(request.as_bytes()).await.map_err(transient)?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") && head.len() < 8192 {
        head.push(stream.read_u8().await.map_err(transient)?);
    }
    let line = String::from_utf8_lossy(&head).lines().next().unwrap_or_default().to_owned();
    match line.split(' ').nth(1) {
        Some("200") => Ok(()),
        _ => Err(Failure::Transient(format!("the proxy {proxy} answered {line:?}"))),
    }
}
