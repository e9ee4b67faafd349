//! The balancer, which gives the API one stable address if several machines serve it.

use std::{net::SocketAddr, path::PathBuf, time::SystemTime};

use instances::{Companion, Fleet, FleetSpec};
use kops_node::API_PORT;
use kops_store::{Keyset, Registry};

use crate::{error::Error, fleet::api_addresses, kubeconfig::issue_kubeconfig, names::KEEPER};

/// The lifetime of the balancer's certificate. Without a valid one it keeps its initial servers, which stay the same.
const CERTIFICATE_PERIOD: std::time::Duration = std::time::Duration::from_secs(455 * 86_400);

/// Returns the path of one of the balancer's files.
fn balancer_file(fleet: &Fleet, name: &str) -> PathBuf {
    fleet.root.join("balancer").join(name)
}

/// Returns the balancer's process, if several machines serve the API. It gives the API one stable address.
pub(crate) fn companions(fleet: &Fleet, spec: &FleetSpec) -> Result<Vec<Companion>, Error> {
    if api_addresses(spec).len() < 2 {
        return Ok(Vec::new());
    }
    let listen = SocketAddr::new(spec.gateway()?, API_PORT).to_string();
    let file = |name: &str| balancer_file(fleet, name).display().to_string();
    let args = [
        "balancer".to_owned(),
        format!("--listen={listen}"),
        format!("--servers={}", file("servers")),
        format!("--certificate-authority={}", file("ca.crt")),
        format!("--kubeconfig={}", file("kubeconfig")),
    ];
    Ok(vec![Companion { name: "balancer".to_owned(), args: args.into() }])
}

/// Writes the balancer's files: the initial servers, their authority, and its credentials for discovering others.
pub fn write_balancer_files(
    registry: &Registry,
    fleet: &Fleet,
    spec: &FleetSpec,
    now: SystemTime,
) -> Result<(), Error> {
    if api_addresses(spec).len() < 2 {
        return Ok(());
    }
    let subject = pki::Subject::new(KEEPER);
    let access = issue_kubeconfig(registry, &spec.cluster, subject, CERTIFICATE_PERIOD, now)?;
    let directory = balancer_file(fleet, "");
    let shown = directory.display().to_string();
    std::fs::create_dir_all(&directory)
        .map_err(kops_store::Error::file("making the directory", &shown))?;
    let authority = Keyset::read(registry, &spec.cluster, "kubernetes-ca")?;
    let authority = authority.map(|keyset| keyset.certificates()).unwrap_or_default();
    let ca = balancer_file(fleet, "ca.crt");
    pki::write_file(&ca, authority.as_bytes(), pki::PUBLIC_MODE)?;
    let port = |address: String| {
        if address.contains(':') {
            format!("[{address}]:{API_PORT}\n")
        } else {
            format!("{address}:{API_PORT}\n")
        }
    };
    let servers: String = api_addresses(spec).into_iter().map(port).collect();
    let known = balancer_file(fleet, "servers");
    pki::write_file(&known, servers.as_bytes(), pki::PUBLIC_MODE)?;
    access.write(&balancer_file(fleet, "kubeconfig")).map_err(Error::BalancerAccess)?;
    Ok(())
}
