//! The actions of probes: exec, HTTP, TCP and gRPC.

use std::time::Duration;

use k8s_openapi::api::core::v1::Probe;
use tokio::net::TcpStream;

use super::{Target, grpc};
use crate::{
    context::Context,
    steps::{HttpTarget, http_get, port_of},
};

/// The limit of a failed probe's output in bytes.
const OUTPUT: usize = 1024;

/// Runs a probe once. The caller sets the timeout.
pub(super) async fn run(ctx: &Context, target: &Target, probe: &Probe) -> Result<(), String> {
    let container = &target.container;
    if let Some(exec) = &probe.exec {
        let cmd = exec.command.clone().unwrap_or_default();
        let timeout =
            Duration::from_secs(probe.timeout_seconds.unwrap_or(1).max(1).unsigned_abs().into());
        let answer = ctx.cri.exec_sync(&target.id, cmd, timeout).await.map_err(|e| e.message())?;
        if answer.exit_code == 0 {
            return Ok(());
        }
        let mut output = [answer.stdout, answer.stderr].concat();
        output.truncate(OUTPUT);
        return Err(String::from_utf8_lossy(&output).into_owned());
    }
    if let Some(get) = &probe.http_get {
        let http = HttpTarget::new(get, container, &target.pod_ip)?;
        let status = http_get(&http, "kube-probe/1.36").await?;
        let fits = (200..400).contains(&status);
        return if fits {
            Ok(())
        } else {
            Err(format!("HTTP probe failed with statuscode: {status}"))
        };
    }
    if let Some(tcp) = &probe.tcp_socket {
        let host =
            tcp.host.clone().filter(|h| !h.is_empty()).unwrap_or_else(|| target.pod_ip.clone());
        let port = port_of(&tcp.port, container)?;
        return match TcpStream::connect((host.as_str(), port)).await {
            Ok(_) => Ok(()),
            Err(error) => Err(format!("dial tcp {host}:{port}: {error}")),
        };
    }
    if let Some(check) = &probe.grpc {
        let port =
            u16::try_from(check.port).map_err(|_| format!("{} is not a port", check.port))?;
        return grpc::check(&target.pod_ip, port, check.service.as_deref().unwrap_or_default())
            .await;
    }
    Err("the probe names no action".to_owned())
}
