//! The kubelet as a service of the machine.

use tokio::process::Command;

use crate::{Error, host::Host};

/// Starts the kubelet anew. Without systemd nothing is done here: who runs the kubelet there keeps it running.
pub(crate) async fn start_kubelet(host: &Host) -> Result<(), Error> {
    if !host.has_systemd() {
        tracing::warn!(
            "there is no systemd here; make sure that the kubelet runs, under a supervisor of your own"
        );
        return Ok(());
    }
    systemctl("start", &["daemon-reload"]).await?;
    systemctl("start", &["restart", "kubelet"]).await
}

pub(crate) async fn stop_kubelet(host: &Host) -> Result<(), Error> {
    if !host.has_systemd() || !kubelet_is_active(host).await {
        return Ok(());
    }
    systemctl("stop", &["stop", "kubelet"]).await
}

pub(crate) async fn kubelet_is_active(host: &Host) -> bool {
    host.has_systemd() && systemctl("ask for", &["is-active", "--quiet", "kubelet"]).await.is_ok()
}

pub(crate) async fn kubelet_is_enabled(host: &Host) -> bool {
    host.has_systemd() && systemctl("ask for", &["is-enabled", "--quiet", "kubelet"]).await.is_ok()
}

async fn systemctl(operation: &'static str, args: &[&str]) -> Result<(), Error> {
    let failed = |cause: String| Error::Service { operation, cause };
    let output = Command::new("systemctl")
        .args(args)
        .output()
        .await
        .map_err(|e| failed(format!("systemctl: {e}")))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(failed(format!("systemctl {} ended with {}: {said}", args.join(" "), output.status)))
}
