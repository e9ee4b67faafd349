//! The access to a cluster's API with client certificates.

use std::{
    net::{IpAddr, SocketAddr},
    time::{Duration, SystemTime},
};

use api_config::{
    Kubeconfig,
    kubeconfig::{Cluster as Server, User},
};
use kops_node::API_PORT;
use kops_store::{Keyset, Registry};
use pki::{KeyAlgorithm, LeafSpec, Subject, Usage, Validity};

use crate::{
    error::Error,
    fleet::{api_addresses, fleet},
};

/// The group of administrators, which needs no object in the cluster.
const MASTERS: &str = "system:masters";
/// The lifetime of the certificate for one command.
pub const COMMAND_PERIOD: Duration = Duration::from_secs(3600);

/// Returns the URL of the API: that of the balancer, if several machines serve it.
pub fn server_url(registry: &Registry, cluster: &str) -> Result<String, Error> {
    let spec = fleet(registry, cluster).spec()?.unwrap_or_default();
    let addresses = api_addresses(&spec);
    let address = match &addresses[..] {
        [] => None,
        [only] => only.parse().ok(),
        _ => Some(spec.gateway()?),
    };
    match address {
        Some(address) => Ok(url(address)),
        None => Err(kops_store::Error::object(
            "cluster",
            cluster,
            "has no control plane yet; run kops update cluster --yes",
        )
        .into()),
    }
}

/// Returns the URL of the API at an address.
pub(crate) fn url(address: IpAddr) -> String {
    format!("https://{}", SocketAddr::new(address, API_PORT))
}

/// Returns the identity of an administrator on this host.
pub fn administrator() -> Subject {
    Subject::new(format!("kubecfg-{}", rt::hostname())).in_group(MASTERS)
}

/// Returns a kubeconfig with a new client certificate.
pub fn issue_kubeconfig(
    registry: &Registry,
    cluster: &str,
    subject: Subject,
    period: Duration,
    now: SystemTime,
) -> Result<Kubeconfig, Error> {
    let keyset = Keyset::read(registry, cluster, "kubernetes-ca")?.ok_or_else(|| {
        kops_store::Error::object(
            "cluster",
            cluster,
            "has no keys yet; run kops update cluster --yes",
        )
    })?;
    let authority = keyset.authority()?;
    let spec = LeafSpec { subject, alt_names: Vec::new(), usage: Usage::Client };
    let validity = Validity::starting(now, period);
    let (cert, key) = authority.issue_new(&spec, KeyAlgorithm::EcdsaP256, validity)?;
    let server = Server::with_ca(server_url(registry, cluster)?, &keyset.certificates());
    let user = User::with_cert(&cert.to_pem(), &key.to_pem()?);
    let mut config = Kubeconfig::single(cluster, server, cluster, user);
    config.contexts.iter_mut().for_each(|context| context.name = cluster.to_owned());
    cluster.clone_into(&mut config.current_context);
    Ok(config)
}
