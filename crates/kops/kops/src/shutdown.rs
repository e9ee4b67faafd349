//! Shuts a control plane down gracefully before its machine ends. The API server ends first, so that clients move to
//! the others. Then its etcd member ends, after it has transferred its leadership. Otherwise clients would notice only
//! by timeouts.

use std::{
    fs,
    net::{IpAddr, SocketAddr},
    path::Path,
    time::Duration,
};

use bootstrap_core::constants::ETCD_CLIENT_PORT;
use instances::{Fleet, Machine};
use kops_node::{API_PORT, etcd_client};
use kops_store::Keyset;
use tokio::{
    net::TcpStream,
    time::{Instant, sleep, timeout},
};

use crate::error::Error;

const MANIFESTS: &str = "etc/kubernetes/manifests";
const POLL: Duration = Duration::from_millis(100);
/// The time limit for a connection to a live server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// The time limit for a server to end: a Pod's default grace period.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(30);

/// Shuts a control plane down. Failures are reported, and the machine ends anyway.
pub(crate) async fn shut_down_control_plane(
    fleet: &Fleet,
    machine: &Machine,
    clients: Option<Keyset>,
    report: &dyn Fn(String) -> Result<(), Error>,
) -> Result<(), Error> {
    if let Some(clients) = clients
        && let Err(error) = transfer_leadership(machine.address, &clients).await
    {
        report(format!("etcd of {:?} cannot transfer its leadership: {error}", machine.name))?;
    }
    let manifests = fleet.disk(&machine.name).join(MANIFESTS);
    for (name, port) in [("kube-apiserver", API_PORT), ("etcd", ETCD_CLIENT_PORT)] {
        let address = SocketAddr::new(machine.address, port);
        if let Err(error) = stop_pod(&manifests.join(format!("{name}.yaml")), address).await {
            report(format!("{name} of {:?} does not end by itself: {error}", machine.name))?;
        }
    }
    Ok(())
}

/// Transfers the leadership to another member, if this one has it.
async fn transfer_leadership(address: IpAddr, clients: &Keyset) -> Result<(), Error> {
    let endpoint = format!("https://{}", SocketAddr::new(address, ETCD_CLIENT_PORT));
    let etcd = etcd_client(&[endpoint], "kops", &clients.authority()?, &clients.certificates())?;
    let status = etcd.status().await?;
    if !status.leads() {
        return Ok(());
    }
    let members = etcd.members().await?;
    let voters = members.iter().filter(|m| !m.is_learner && !m.name.is_empty());
    match voters.into_iter().find(|member| member.id != status.member) {
        Some(other) => Ok(etcd.hand_over(&other.id).await?),
        None => Ok(()),
    }
}

/// Removes a static Pod's manifest, and waits until its port is closed.
async fn stop_pod(manifest: &Path, address: SocketAddr) -> Result<(), Error> {
    let shown = manifest.display().to_string();
    match fs::remove_file(manifest) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(kops_store::Error::file("removing", &shown)(error).into()),
    }
    let until = Instant::now() + SHUTDOWN_TIMEOUT;
    while matches!(timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await, Ok(Ok(_))) {
        if Instant::now() > until {
            return Err(Error::Shutdown { address, seconds: SHUTDOWN_TIMEOUT.as_secs() });
        }
        sleep(POLL).await;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn does_not_wait_for_absent_pods() {
        let dir = tempfile::tempdir().unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let manifest = dir.path().join("etcd.yaml");
        // The manifest was absent, so the listener is another program.
        stop_pod(&manifest, address).await.unwrap();
        fs::write(&manifest, "").unwrap();
        drop(listener);
        stop_pod(&manifest, address).await.unwrap();
        assert!(!manifest.exists());
    }
}
