//! The connections to etcd's members, and the choice of the member for a request.

use std::{
    future::Future,
    path::Path,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use client::Proxy;
use hyper_util::rt::TokioIo;
use otlp::Traced;
use rt::Backoff;
use store::{Error, Result};
use tonic::{
    Response, Status,
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity, Uri},
};

use crate::{
    options::{Options, TlsFiles},
    status::{self, RequestFailure},
};

const CONNECT: Duration = Duration::from_secs(2);
/// The time limit of one attempt, which may transfer a page of large objects over a slow network.
const ATTEMPT: Duration = Duration::from_secs(15);
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(30);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// The condition for repeating a failed request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// The request is idempotent.
    Always,
    /// Only if the failed request certainly did not reach etcd.
    IfUnsent,
}

/// The connection to a member. Its calls are parts of the traces of requests.
pub(crate) type Connection = Traced<Channel>;

/// A lazy connection per member. All requests go to one member until it fails.
pub(crate) struct Channels {
    members: Vec<(String, Connection)>,
    current: AtomicUsize,
    patience: Duration,
    /// `true` if TLS is used without a client certificate, a likely cause of broken connections.
    is_anonymous: bool,
}

impl Channels {
    pub(crate) fn new(options: &Options) -> Result<Self> {
        let tls = options.tls.as_ref().map(read_tls).transpose()?;
        let members: Vec<_> = options
            .endpoints
            .iter()
            .map(|url| Ok((url.clone(), connect_lazily(url, tls.as_ref(), options.proxy.clone())?)))
            .collect::<Result<_>>()?;
        if members.is_empty() {
            let detail = "no endpoints are configured; name at least one".to_owned();
            return Err(Error::Unavailable { operation: "connect to etcd", detail });
        }
        Ok(Self {
            members,
            current: AtomicUsize::new(0),
            patience: options.patience,
            is_anonymous: options.tls.as_ref().is_some_and(|tls| tls.identity.is_none()),
        })
    }

    /// Returns the current member.
    pub(crate) fn current(&self) -> (usize, Connection) {
        let at = self.current.load(Ordering::Relaxed) % self.members.len();
        (at, self.members[at].1.clone())
    }

    /// Switches to the next member, unless another request already did.
    pub(crate) fn leave(&self, member: usize) {
        let next = (member + 1) % self.members.len();
        let turned = self
            .current
            .compare_exchange(member, next, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok();
        if turned && self.members.len() > 1 {
            tracing::info!(
                from = %self.members[member].0, to = %self.members[next].0,
                "switched to another etcd member"
            );
        }
    }

    pub(crate) fn failed(&self, member: usize, status: Status) -> RequestFailure {
        let hint = if self.is_anonymous { " (no client certificate is configured)" } else { "" };
        RequestFailure { status, member: format!("{}{hint}", self.members[member].0) }
    }

    /// Sends a request until it is answered, must not be repeated, or `patience` is over.
    pub(crate) async fn call<T, F, A>(&self, repeat: Repeat, send: F) -> Result<T, RequestFailure>
    where
        F: Fn(Connection) -> A,
        A: Future<Output = Result<Response<T>, Status>>,
    {
        let end = tokio::time::Instant::now() + self.patience;
        let mut backoff = Backoff::new(Duration::from_millis(25), Duration::from_millis(500));
        loop {
            let (member, channel) = self.current();
            let attempt = tokio::time::timeout(ATTEMPT, send(channel)).await;
            let status = match attempt {
                Ok(Ok(response)) => return Ok(response.into_inner()),
                Ok(Err(status)) => status,
                Err(_) => Status::deadline_exceeded(format!("no answer within {ATTEMPT:?}")),
            };
            let pause = backoff.next(rt::random());
            let passing = status::is_passing(&status);
            if passing {
                self.leave(member);
            }
            let again = passing && (repeat == Repeat::Always || status::is_unsent(&status));
            if !again || tokio::time::Instant::now() + pause > end {
                return Err(self.failed(member, status));
            }
            tokio::time::sleep(pause).await;
        }
    }
}

fn connect_lazily(
    url: &str,
    tls: Option<&ClientTlsConfig>,
    proxy: Option<Proxy>,
) -> Result<Connection> {
    let bad = |detail: String| Error::Unavailable { operation: "connect to etcd", detail };
    let mut endpoint = Endpoint::from_shared(url.to_owned())
        .map_err(|error| bad(format!("the endpoint {url:?} is not a URL: {error}")))?
        .connect_timeout(CONNECT)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(KEEP_ALIVE_EVERY)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        .keep_alive_while_idle(true);
    match (endpoint.uri().scheme_str(), tls) {
        (Some("http"), _) => {}
        (Some("https"), Some(tls)) => {
            endpoint = endpoint.tls_config(tls.clone()).map_err(|error| {
                bad(format!(
                    "the TLS files do not fit {url}: {error}; check CA, certificate and key"
                ))
            })?;
        }
        (Some("https"), None) => {
            return Err(bad(format!("{url} needs a CA file; name one, or use http://")));
        }
        (scheme, _) => {
            return Err(bad(format!(
                "the endpoint {url:?} has scheme {scheme:?}; use http or https"
            )));
        }
    }
    let Some(proxy) = proxy else { return Ok(Traced::new(endpoint.connect_lazy())) };
    let dial = tower::service_fn(move |member: Uri| {
        let proxy = proxy.clone();
        async move {
            let port = member.port_u16().unwrap_or(match member.scheme_str() {
                Some("https") => 443,
                _ => 80,
            });
            let target = format!("{}:{port}", member.host().unwrap_or_default());
            proxy.open(&target).await.map(TokioIo::new)
        }
    });
    Ok(Traced::new(endpoint.connect_with_connector_lazy(dial)))
}

fn read_tls(files: &TlsFiles) -> Result<ClientTlsConfig> {
    let config = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read(&files.ca)?));
    Ok(match &files.identity {
        Some((certificate, key)) => {
            config.identity(Identity::from_pem(read(certificate)?, read(key)?))
        }
        None => config,
    })
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|source| Error::Io {
        operation: "read the file for etcd's TLS",
        path: path.display().to_string(),
        source,
    })
}
