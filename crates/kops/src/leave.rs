//! How a control plane leaves before its machine ends: whoever asks it is sent to the others first, then its member of etcd ends,
//! which does not lead any more by then. Without that its clients would learn by silence that it is gone.

use std::{
    fs,
    net::{IpAddr, SocketAddr},
    path::Path,
    time::Duration,
};

use bootstrap::etcd::Etcd;
use bootstrap_core::constants::ETCD_CLIENT_PORT;
use client::TlsMaterial;
use instances::{Fleet, Machine};
use pki::{KeyAlgorithm, LeafSpec, Subject, Usage, Validity};
use tokio::{
    net::TcpStream,
    time::{Instant, sleep, timeout},
};

use crate::{Error, keys::Keyset, model::API_PORT};

const MANIFESTS: &str = "etc/kubernetes/manifests";
const LOOK: Duration = Duration::from_millis(100);
/// How long a server that lives has to take a connection.
const DIAL: Duration = Duration::from_secs(1);
/// How long one has to end: a Pod's usual time.
const ENDED: Duration = Duration::from_secs(30);
/// How long the certificate is good by which etcd is asked.
const ASKING: Duration = Duration::from_secs(3600);

/// A client of a member of etcd, by a certificate of its own.
pub(crate) fn asker(
    endpoints: &[String],
    who: &str,
    authority: &pki::Authority,
) -> Result<Etcd, Error> {
    let spec = LeafSpec { subject: Subject::new(who), alt_names: Vec::new(), usage: Usage::Client };
    let validity = Validity::starting(rt::now(), ASKING);
    let (cert, key) = authority.issue_new(&spec, KeyAlgorithm::EcdsaP256, validity)?;
    let tls = TlsMaterial {
        ca: Some(authority.cert().to_pem().into_bytes()),
        certificate: Some(cert.to_pem().into_bytes()),
        key: Some(key.to_pem()?.into_bytes()),
        insecure: false,
    };
    Ok(Etcd::with(endpoints, &tls)?)
}

/// Has a control plane leave; what does not work of it is told, and the machine ends all the same.
pub(crate) async fn leave(
    fleet: &Fleet,
    machine: &Machine,
    clients: Option<Keyset>,
    tell: &dyn Fn(String) -> Result<(), Error>,
) -> Result<(), Error> {
    if let Some(clients) = clients
        && let Err(error) = hand_over(machine.address, &clients).await
    {
        tell(format!("etcd of {:?} cannot hand over its lead: {error}", machine.name))?;
    }
    let manifests = fleet.disk(&machine.name).join(MANIFESTS);
    for (name, port) in [("kube-apiserver", API_PORT), ("etcd", ETCD_CLIENT_PORT)] {
        let address = SocketAddr::new(machine.address, port);
        if let Err(error) = end(&manifests.join(format!("{name}.yaml")), address).await {
            tell(format!("{name} of {:?} does not end by itself: {error}", machine.name))?;
        }
    }
    Ok(())
}

/// Has another member lead, if this one does.
async fn hand_over(address: IpAddr, clients: &Keyset) -> Result<(), Error> {
    let endpoint = format!("https://{}", SocketAddr::new(address, ETCD_CLIENT_PORT));
    let etcd = asker(&[endpoint], "kops", &clients.authority()?)?;
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

/// Takes a static Pod away, and waits until nobody listens where it did.
async fn end(manifest: &Path, address: SocketAddr) -> Result<(), Error> {
    let shown = manifest.display().to_string();
    match fs::remove_file(manifest) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(Error::file("removing", &shown)(error)),
    }
    let until = Instant::now() + ENDED;
    while matches!(timeout(DIAL, TcpStream::connect(address)).await, Ok(Ok(_))) {
        if Instant::now() > until {
            let text = format!("{address} still answers after {} s", ENDED.as_secs());
            return Err(Error::Usage(text));
        }
        sleep(LOOK).await;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_runs_no_more_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let manifest = dir.path().join("etcd.yaml");
        // It was not there: whoever listens is somebody else.
        end(&manifest, address).await.unwrap();
        fs::write(&manifest, "").unwrap();
        drop(listener);
        end(&manifest, address).await.unwrap();
        assert!(!manifest.exists());
    }
}
