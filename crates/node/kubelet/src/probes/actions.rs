//! The actions of probes: exec, HTTP, TCP and gRPC.

use std::time::Duration;

use k8s_openapi::api::core::v1::Probe;
use tokio::net::TcpStream;

use super::{
    grpc::{self, HealthError},
    target::Target,
};
use crate::{
    context::Context,
    requests::{HttpTarget, RequestError, http_get, port_of},
};

/// The limit of a failed probe's output in bytes.
const OUTPUT: usize = 1024;

/// The error of a failed probe, for the Event.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProbeError {
    #[error("{}", .0.message())]
    Exec(#[source] cri::Error),
    #[error("{output}")]
    Exit { output: String },
    #[error("HTTP probe failed with statuscode: {0}")]
    Status(u16),
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error("dial tcp {host}:{port}: {source}")]
    Dial { host: String, port: u16, source: std::io::Error },
    #[error("{0} is not a port")]
    Port(i32),
    #[error(transparent)]
    Health(#[from] HealthError),
    #[error("the probe names no action")]
    NoAction,
    #[error("no answer within {}s", .0.as_secs())]
    Timeout(Duration),
}

/// Records an Event for a redirect to another host, which is not followed and counts as a success.
fn warn_of_redirect(ctx: &Context, target: &Target, body: &str) {
    let text = format!(
        "{} probe warning: Probe terminated redirects, Response body: {body}",
        target.kind.as_str()
    );
    ctx.events.of_container(&target.pod, &target.container.name, "Warning", "ProbeWarning", text);
}

/// Runs a probe once. The caller sets the timeout.
pub(super) async fn run(ctx: &Context, target: &Target, probe: &Probe) -> Result<(), ProbeError> {
    let container = &target.container;
    if let Some(exec) = &probe.exec {
        let cmd = exec.command.clone().unwrap_or_default();
        let timeout =
            Duration::from_secs(probe.timeout_seconds.unwrap_or(1).max(1).unsigned_abs().into());
        let response =
            ctx.cri.exec_sync(&target.id, cmd, timeout).await.map_err(ProbeError::Exec)?;
        if response.exit_code == 0 {
            return Ok(());
        }
        let mut output = [response.stdout, response.stderr].concat();
        output.truncate(OUTPUT);
        return Err(ProbeError::Exit { output: String::from_utf8_lossy(&output).into_owned() });
    }
    if let Some(get) = &probe.http_get {
        let http = HttpTarget::new(get, container, &target.pod_ip)?;
        let response = http_get(&http, "kube-probe/1.36").await?;
        return match response.status {
            200..300 => Ok(()),
            300..400 => {
                warn_of_redirect(ctx, target, &response.body);
                Ok(())
            }
            status => Err(ProbeError::Status(status)),
        };
    }
    if let Some(tcp) = &probe.tcp_socket {
        let host =
            tcp.host.clone().filter(|h| !h.is_empty()).unwrap_or_else(|| target.pod_ip.clone());
        let port = port_of(&tcp.port, container)?;
        let connected = TcpStream::connect((host.as_str(), port)).await;
        return connected.map(drop).map_err(|source| ProbeError::Dial { host, port, source });
    }
    if let Some(check) = &probe.grpc {
        let port = u16::try_from(check.port).map_err(|_| ProbeError::Port(check.port))?;
        let service = check.service.as_deref().unwrap_or_default();
        return Ok(grpc::check(&target.pod_ip, port, service).await?);
    }
    Err(ProbeError::NoAction)
}
