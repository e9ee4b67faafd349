use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use k8s_openapi::{
    api::core::v1::{Container, HTTPGetAction, LifecycleHandler, Pod},
    apimachinery::pkg::util::intstr::IntOrString,
};
use tokio::net::TcpStream;

use crate::context::Context;

/// Answers are read no further than this: a probe wants the status.
const BODY_LIMIT: usize = 10 << 10;

/// Runs a life-cycle hook in a container; the caller bounds it in time. The error is for the container's status and for
/// logs, in upstream's words: Events, which more people read, do not hold what a hook answers.
pub(super) async fn run(
    ctx: &Context,
    pod: &Pod,
    pod_ip: &str,
    container: &Container,
    id: &str,
    hook: &LifecycleHandler,
) -> Result<(), String> {
    let failed = |kind: &str, what: &str, error: &str| {
        let meta = &pod.metadata;
        let text = |t: &Option<String>| t.clone().unwrap_or_default();
        let pod = format!("{}_{}({})", text(&meta.name), text(&meta.namespace), text(&meta.uid));
        let name = &container.name;
        format!(
            "{kind} lifecycle hook ({what}) for Container {name:?} in Pod {pod:?} failed - error: {error}"
        )
    };
    if let Some(exec) = &hook.exec {
        let cmd = exec.command.clone().unwrap_or_default();
        let words = cmd.join(" ");
        // The caller's bound is what ends a hook; the runtime's is only for when this process is gone.
        let answer = ctx.cri.exec_sync(id, cmd, Duration::from_secs(3600)).await.map_err(|e| {
            failed("Exec", &format!("[{words}]"), &format!("{}, message: \"\"", e.message()))
        })?;
        if answer.exit_code == 0 {
            return Ok(());
        }
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (out, complaint) = (text(&answer.stdout), text(&answer.stderr));
        let error = format!(
            "command '{words}' exited with {}: {complaint}, message: {:?}",
            answer.exit_code,
            out + &complaint
        );
        return Err(failed("Exec", &format!("[{words}]"), &error));
    }
    if let Some(get) = &hook.http_get {
        // Whatever the server answers, it was told.
        let told = async {
            let target = HttpTarget::new(get, container, pod_ip)?;
            http_get(&target, "kube-lifecycle/1.36").await
        };
        let path = get.path.as_deref().unwrap_or_default();
        return told.await.map(drop).map_err(|error| failed("HTTP", path, &error));
    }
    if let Some(sleep) = &hook.sleep {
        tokio::time::sleep(Duration::from_secs(sleep.seconds.max(0).unsigned_abs())).await;
        return Ok(());
    }
    Err("Cannot run handler: the hook names no action that is supported".to_owned())
}

/// A named port is one of the container's.
pub(crate) fn port_of(port: &IntOrString, container: &Container) -> Result<u16, String> {
    let number = match port {
        IntOrString::Int(number) => Some(*number),
        IntOrString::String(name) => {
            let listed = container.ports.iter().flatten().find(|p| p.name.as_ref() == Some(name));
            listed.map(|p| p.container_port).or_else(|| name.parse().ok())
        }
    };
    number
        .and_then(|n| u16::try_from(n).ok())
        .filter(|n| *n > 0)
        .ok_or_else(|| format!("container {} has no port {port:?}", container.name))
}

/// What an HTTP probe or hook asks.
pub(crate) struct HttpTarget {
    host: String,
    port: u16,
    path: String,
    tls: bool,
    headers: Vec<(String, String)>,
}

impl HttpTarget {
    pub(crate) fn new(
        get: &HTTPGetAction,
        container: &Container,
        pod_ip: &str,
    ) -> Result<Self, String> {
        let host = get.host.clone().filter(|h| !h.is_empty()).unwrap_or_else(|| pod_ip.to_owned());
        let path = get.path.clone().unwrap_or_default();
        let headers =
            get.http_headers.iter().flatten().map(|h| (h.name.clone(), h.value.clone())).collect();
        Ok(Self {
            host,
            port: port_of(&get.port, container)?,
            path: if path.starts_with('/') { path } else { format!("/{path}") },
            tls: get.scheme.as_deref() == Some("HTTPS"),
            headers,
        })
    }
}

/// One GET on a connection of its own; returns the status and the beginning of the body.
pub(crate) async fn http_get(target: &HttpTarget, agent: &str) -> Result<(u16, String), String> {
    let text = |e: &dyn std::fmt::Display| {
        format!(
            "Get \"http{}://{}:{}{}\": {e}",
            if target.tls { "s" } else { "" },
            target.host,
            target.port,
            target.path
        )
    };
    let stream =
        TcpStream::connect((target.host.as_str(), target.port)).await.map_err(|e| text(&e))?;
    let port = target.port;
    let authority = if target.host.contains(':') {
        format!("[{}]:{port}", target.host)
    } else {
        format!("{}:{port}", target.host)
    };
    let mut request = http::Request::get(&target.path)
        .header(http::header::HOST, authority)
        .header(http::header::USER_AGENT, agent)
        .header(http::header::ACCEPT, "*/*")
        .header(http::header::CONNECTION, "close");
    for (name, value) in &target.headers {
        if let Some(headers) = request.headers_mut()
            && let (Ok(name), Ok(value)) =
                (http::HeaderName::try_from(name), http::HeaderValue::try_from(value))
        {
            headers.insert(name, value);
        }
    }
    let request = request.body(Empty::<Bytes>::new()).map_err(|e| text(&e))?;
    if target.tls {
        let stream =
            crate::probes::tls::connect(&target.host, stream).await.map_err(|e| text(&e))?;
        exchange(stream, request).await.map_err(|e| text(&e))
    } else {
        exchange(stream, request).await.map_err(|e| text(&e))
    }
}

async fn exchange(
    stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send,
    request: http::Request<Empty<Bytes>>,
) -> Result<(u16, String), hyper::Error> {
    let io = hyper_util::rt::TokioIo::new(stream);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await?;
    let asking = async {
        let response = sender.send_request(request).await?;
        let status = response.status().as_u16();
        let mut body = response.into_body();
        let mut read = Vec::new();
        while let Some(frame) = body.frame().await {
            if let Ok(data) = frame?.into_data() {
                read.extend_from_slice(&data);
            }
            if read.len() >= BODY_LIMIT {
                break;
            }
        }
        read.truncate(BODY_LIMIT);
        Ok((status, String::from_utf8_lossy(&read).into_owned()))
    };
    tokio::pin!(asking);
    tokio::pin!(connection);
    // The connection is driven here and not by a task, so that dropping this future closes it.
    let mut open = true;
    loop {
        tokio::select! {
            answer = &mut asking => return answer,
            ended = &mut connection, if open => {
                open = false;
                ended?;
            }
        }
    }
}
