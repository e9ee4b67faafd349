//! Runs lifecycle hooks and HTTP requests of probes.

use std::time::Duration;

use client::{ClientTls, HttpTransport, Transport as _};
use http::{HeaderName, HeaderValue, header};
use k8s_openapi::{
    api::core::v1::{Container, HTTPGetAction, LifecycleHandler, Pod},
    apimachinery::pkg::util::intstr::IntOrString,
};

use crate::context::Context;

/// The limit of a response body in bytes. Only the status matters.
const BODY_LIMIT: usize = 10 << 10;

/// Runs a lifecycle hook in a container. The caller sets the timeout. The error is upstream's, for the container's
/// status and the log. Events have more readers and must not contain a hook's output.
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
        // The caller's timeout ends the hook. The runtime's timeout applies only if the kubelet ends before.
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
        // Any answer of the server is a success.
        let response = async {
            let target = HttpTarget::new(get, container, pod_ip)?;
            http_get(&target, "kube-lifecycle/1.36").await
        };
        let path = get.path.as_deref().unwrap_or_default();
        return response.await.map(drop).map_err(|error| failed("HTTP", path, &error));
    }
    if let Some(sleep) = &hook.sleep {
        tokio::time::sleep(Duration::from_secs(sleep.seconds.max(0).unsigned_abs())).await;
        return Ok(());
    }
    Err("Cannot run handler: the hook has no supported action".to_owned())
}

/// Resolves a port. A name is that of a container port.
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

/// The target of an HTTP probe or hook.
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

/// Sends one GET request on a new connection and returns the status.
pub(crate) async fn http_get(target: &HttpTarget, agent: &str) -> Result<u16, String> {
    let HttpTarget { host, port, path, tls, headers } = target;
    let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
    let server = format!("http{}://{host}:{port}", if *tls { "s" } else { "" });
    let text = |e: &dyn std::fmt::Display| format!("Get \"{server}{path}\": {e}");
    // Certificates are not verified, because the request only checks that the server answers.
    let transport = HttpTransport::http1(&server, ClientTls::anyone());
    let mut request = http::Request::get(path)
        .header(header::USER_AGENT, agent)
        .header(header::ACCEPT, "*/*")
        .header(header::CONNECTION, "close")
        .body(client::empty())
        .map_err(|e| text(&e))?;
    for (name, value) in headers {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            request.headers_mut().insert(name, value);
        }
    }
    let sent = transport.map_err(|e| text(e.cause()))?.send(request).await;
    let response = sent.map_err(|e| text(e.cause()))?;
    let status = response.status().as_u16();
    match client::read(path, response.into_body(), BODY_LIMIT).await {
        Ok(_) | Err(client::Error::TooLarge { .. }) => Ok(status),
        Err(error) => Err(text(error.cause())),
    }
}
