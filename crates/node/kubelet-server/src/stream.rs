//! Exec, attach and port-forward. The runtime's streaming server does the work, and the kubelet joins client and
//! runtime.
//!
//! A SPDY connection is copied byte by byte, and so is the SPDY of a port-forward tunnelled in a WebSocket. The
//! channels of other WebSockets are translated to SPDY, because not every runtime's server supports the latest
//! WebSocket protocol.

use client::{ClientTls, HttpTransport, Transport as _};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Uri, header};
use hyper_util::rt::TokioIo;
use pod_core::Observed;
use serve::Body;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::{
    backend::Backend,
    idle::ActivityStream,
    protocol::{CHANNELS, Dialect, Options, PORTS, ports},
    query::Query,
    response::{ErrorResponse, text},
    websocket::{self, Channel},
};

const PROTOCOL_HEADER: &str = "x-stream-protocol-version";
const TUNNEL: &str = "SPDY/3.1+portforward.k8s.io";

/// The Pod that a client names.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    pub(crate) namespace: &'a str,
    pub(crate) pod: &'a str,
    /// The UID of the Pod or of its mirror, if the client names it.
    pub(crate) uid: Option<&'a str>,
}

impl Target<'_> {
    /// Returns the Pod's observed containers.
    fn find(self, backend: &Backend) -> Result<Observed, ErrorResponse> {
        let Self { namespace, pod, uid } = self;
        let known_pod = backend.pods.find(namespace, pod, uid);
        known_pod.map(|known_pod| known_pod.observed).ok_or_else(|| {
            let message = format!("pod does not exist: {namespace}/{pod}");
            Box::new(text(StatusCode::NOT_FOUND, message))
        })
    }
}

pub(crate) async fn of_container(
    backend: &Backend,
    request: Request<Body>,
    target: Target<'_>,
    container: &str,
    query: &Query,
) -> Response<Body> {
    let options = Options::of(query);
    if !(options.stdin || options.stdout || options.stderr) {
        return text(
            StatusCode::BAD_REQUEST,
            "you must specify at least 1 of stdin, stdout, stderr",
        );
    }
    let observed = match target.find(backend) {
        Ok(observed) => observed,
        Err(response) => return *response,
    };
    let Some(running) = observed.newest(container).filter(|c| c.is_running()) else {
        return text(StatusCode::NOT_FOUND, format!("container not found ({container:?})"));
    };
    let container_id = running.id.clone();
    let Options { stdin, stdout, stderr, tty } = options;
    let url = if request.uri().path().starts_with("/exec/") {
        let cmd = query.all("command");
        let exec = cri::v1::ExecRequest { container_id, cmd, tty, stdin, stdout, stderr };
        backend.cri.exec(exec).await
    } else {
        let attach = cri::v1::AttachRequest { container_id, tty, stdin, stdout, stderr };
        backend.cri.attach(attach).await
    };
    match url {
        Ok(url) => join(backend, request, &url, Kind::Container(options)).await,
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, error.message()),
    }
}

pub(crate) async fn port_forward(
    backend: &Backend,
    request: Request<Body>,
    target: Target<'_>,
    query: &Query,
) -> Response<Body> {
    let kind = if serve::websocket::is_asked_for(request.headers())
        && serve::websocket::accept(request.headers(), &[TUNNEL]).is_err()
    {
        match ports(query) {
            Ok(ports) => Kind::Ports(ports),
            Err(error) => return text(StatusCode::BAD_REQUEST, error.to_string()),
        }
    } else {
        Kind::Tunnel
    };
    let observed = match target.find(backend) {
        Ok(observed) => observed,
        Err(response) => return *response,
    };
    let Some(sandbox) = observed.ready_sandbox() else {
        let Target { namespace, pod, .. } = target;
        let message = format!("the sandbox of pod {namespace}/{pod} does not run");
        return text(StatusCode::NOT_FOUND, message);
    };
    let ports = match &kind {
        Kind::Ports(ports) => ports.iter().map(|port| i32::from(*port)).collect(),
        _ => Vec::new(),
    };
    match backend.cri.port_forward(&sandbox.id, ports).await {
        Ok(url) => join(backend, request, &url, kind).await,
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, error.message()),
    }
}

/// The content of a WebSocket.
enum Kind {
    /// The streams of an exec or attach.
    Container(Options),
    /// The data and errors of forwarded ports.
    Ports(Vec<u16>),
    Tunnel,
}

impl Kind {
    /// Returns the WebSocket protocols with channels.
    fn dialects(&self) -> &'static [(&'static str, Dialect)] {
        match self {
            Self::Container(_) => CHANNELS,
            Self::Ports(_) => PORTS,
            Self::Tunnel => &[],
        }
    }

    /// Returns the protocol of the SPDY connection to the runtime.
    fn runtime_protocol(&self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::Container(_) => "v4.channel.k8s.io",
            Self::Ports(_) | Self::Tunnel => "portforward.k8s.io",
        })
    }
}

#[derive(Debug, thiserror::Error)]
enum JoinError {
    #[error("the runtime's streaming address {0:?} is not a URL")]
    Address(String),
    #[error("send a request to the runtime's streaming server: {0}")]
    Send(#[from] client::Error),
    #[error("create a request to the runtime's streaming server: {0}")]
    Request(#[from] http::Error),
    #[error("the runtime's streaming server refuses the upgrade: {0}")]
    Refused(StatusCode),
}

/// Upgrades both connections and joins them in a task.
async fn join(
    backend: &Backend,
    mut request: Request<Body>,
    url: &str,
    kind: Kind,
) -> Response<Body> {
    let upgraded = hyper::upgrade::on(&mut request);
    let headers = request.into_parts().0.headers;
    let upgrade = headers
        .get(header::UPGRADE)
        .and_then(|v| v.to_str().ok())
        .unwrap_or_default()
        .to_lowercase();
    let (protocols, handshake) = match upgrade.as_str() {
        "websocket" => match accept(&headers, &kind) {
            Ok((protocol, headers)) => (vec![kind.runtime_protocol()], Some((protocol, headers))),
            Err(response) => return *response,
        },
        "spdy/3.1" => (headers.get_all(PROTOCOL_HEADER).iter().cloned().collect(), None),
        _ => return text(StatusCode::BAD_REQUEST, "Upgrade request required"),
    };
    let (mut runtime, headers) = match dial(url, protocols).await {
        Ok(response) => {
            let headers = response.headers().clone();
            (response, headers)
        }
        Err(error) => return text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    };
    let (protocol, headers) =
        handshake.map_or((None, headers), |(protocol, headers)| (Some(protocol), headers));
    let idle = backend.settings.server.idle;
    backend.tasks.spawn_until_shutdown("kubelet stream", async move {
        let (Ok(client), Ok(runtime)) = (upgraded.await, hyper::upgrade::on(&mut runtime).await)
        else {
            tracing::debug!("a client or the runtime disconnected before its stream began");
            return;
        };
        let (client, activity) = ActivityStream::new(TokioIo::new(client));
        tokio::select! {
            () = relay(client, TokioIo::new(runtime), protocol, &kind) => {}
            () = activity.wait_idle(idle) => tracing::debug!("a stream was idle for too long"),
        }
    });
    let mut response = Response::new(serve::full(Vec::new()));
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    *response.headers_mut() = headers;
    response
}

/// Joins both ends until either of them closes.
async fn relay<C, R>(mut client: C, mut runtime: R, protocol: Option<&'static str>, kind: &Kind)
where
    C: AsyncRead + AsyncWrite + Unpin,
    R: AsyncRead + AsyncWrite + Unpin,
{
    let Some(protocol) = protocol else {
        drop(tokio::io::copy_bidirectional(&mut client, &mut runtime).await);
        return;
    };
    let channels = match kind {
        Kind::Container(options) => Channel::of_container(*options),
        Kind::Ports(ports) => Channel::of_ports(ports),
        Kind::Tunnel => Vec::new(),
    };
    let ended = match kind.dialects().iter().find(|(name, _)| *name == protocol) {
        Some((_, dialect)) => websocket::channels(client, runtime, &channels, *dialect).await,
        None => websocket::tunnel(client, runtime).await,
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a stream ended");
    }
}

type Accepted = (&'static str, HeaderMap);

fn accept(headers: &HeaderMap, kind: &Kind) -> Result<Accepted, Box<Response<Body>>> {
    let protocols: Vec<&'static str> = match kind {
        Kind::Tunnel => vec![TUNNEL],
        _ => kind.dialects().iter().map(|(name, _)| *name).collect(),
    };
    serve::websocket::accept(headers, &protocols)
        .map_err(|e| Box::new(text(StatusCode::BAD_REQUEST, e.to_string())))
}

/// Requests an upgrade to SPDY from the runtime's streaming server.
async fn dial(url: &str, protocols: Vec<HeaderValue>) -> Result<Response<Body>, JoinError> {
    let uri: Uri = url.parse().map_err(|_| JoinError::Address(url.to_owned()))?;
    // The runtime listens on this machine. Its certificate, if any, is self-signed.
    let server = HttpTransport::http1(url, ClientTls::anyone())?;
    let mut request = Request::post(uri.path_and_query().map_or("/", |p| p.as_str()))
        .header(header::CONNECTION, "Upgrade")
        .header(header::UPGRADE, "SPDY/3.1");
    for protocol in protocols {
        request = request.header(PROTOCOL_HEADER, protocol);
    }
    let response = server.send(request.body(client::empty())?).await?;
    match response.status() {
        StatusCode::SWITCHING_PROTOCOLS => Ok(response),
        other => Err(JoinError::Refused(other)),
    }
}
