//! The access of administrators to a cluster.

use std::{
    net::IpAddr,
    path::PathBuf,
    time::{Duration, SystemTime},
};

use api_config::{
    GoDuration, Kubeconfig,
    kubeconfig::{self, Cluster as Server, User},
};
use client::Client;
use kops_api::Object;
use pki::{KeyAlgorithm, LeafSpec, Subject, Usage, Validity};

use crate::{
    CommandEnvironment, Error, flags::ExportKubeconfig, get, keys, local, model::API_PORT,
    registry::Registry,
};

/// The group of administrators, which needs no object in the cluster.
const MASTERS: &str = "system:masters";
const COMMAND: Duration = Duration::from_secs(3600);

/// Returns the URL of the API: that of the balancer, if several machines serve it.
fn server(registry: &Registry, cluster: &str) -> Result<String, Error> {
    let wanted = local::fleet(registry, cluster).wanted()?.unwrap_or_default();
    let addresses = local::api_addresses(&wanted);
    let address = match &addresses[..] {
        [] => None,
        [only] => only.parse().ok(),
        _ => Some(wanted.gateway()?),
    };
    match address {
        Some(address) => Ok(url(address)),
        None => Err(Error::Usage(format!(
            "cluster {cluster:?} has no control plane yet; run kops update cluster --yes"
        ))),
    }
}

pub(crate) fn url(address: IpAddr) -> String {
    format!("https://{}", std::net::SocketAddr::new(address, API_PORT))
}

fn administrator() -> Subject {
    Subject::new(format!("kubecfg-{}", rt::hostname())).in_group(MASTERS)
}

/// Returns a kubeconfig with a new client certificate.
pub(crate) fn issue_kubeconfig(
    registry: &Registry,
    cluster: &str,
    subject: Subject,
    period: Duration,
    now: SystemTime,
) -> Result<Kubeconfig, Error> {
    let keyset = keys::read(registry, cluster, "kubernetes-ca")?.ok_or_else(|| {
        Error::known("cluster", cluster, "has no keys yet; run kops update cluster --yes")
    })?;
    let authority = keyset.authority()?;
    let spec = LeafSpec { subject, alt_names: Vec::new(), usage: Usage::Client };
    let validity = Validity::starting(now, period);
    let (cert, key) = authority.issue_new(&spec, KeyAlgorithm::EcdsaP256, validity)?;
    let server = Server::with_ca(server(registry, cluster)?, &keyset.certificates());
    let user = User::with_cert(&cert.to_pem(), &key.to_pem()?);
    let mut config = Kubeconfig::single(cluster, server, cluster, user);
    config.contexts.iter_mut().for_each(|context| context.name = cluster.to_owned());
    cluster.clone_into(&mut config.current_context);
    Ok(config)
}

/// Returns a client with all rights, for the duration of one command.
pub(crate) fn admin(
    registry: &Registry,
    cluster: &Object,
    now: SystemTime,
) -> Result<Client, Error> {
    Ok(Client::from_kubeconfig(
        &issue_kubeconfig(registry, cluster.name(), administrator(), COMMAND, now)?,
        "kops/v1.36.2 (windlass)",
    )?)
}

pub(crate) fn export(
    registry: &Registry,
    command: &ExportKubeconfig,
    name: &str,
    around: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    let cluster = get::named(registry, name)?;
    let Some(period) = command.admin else {
        let text = "--admin is required: no other authentication is supported yet";
        return Err(Error::Usage(text.to_owned()));
    };
    write(registry, cluster.name(), command.kubeconfig.clone(), period.to_std(), around)
}

/// Adds the cluster's context to a kubeconfig, and makes it the current one.
pub(crate) fn write(
    registry: &Registry,
    cluster: &str,
    path: Option<PathBuf>,
    period: Duration,
    around: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    let own = issue_kubeconfig(registry, cluster, administrator(), period, around.now)?;
    let home = (around.environment)("HOME").unwrap_or_else(|| "/root".to_owned());
    let usual = || {
        let named = (around.environment)("KUBECONFIG");
        kubeconfig::file_to_change(named.as_deref(), std::path::Path::new(&home))
    };
    let path = path.unwrap_or_else(usual);
    kubeconfig::update_file(&path, |config| config.merge(own))?;
    writeln!(around.out, "kOps has set your kubectl context to {cluster}")?;
    Ok(())
}

/// Returns the lifetime of upstream's administrators' certificates.
pub(crate) fn default_lifetime() -> Duration {
    GoDuration::from_secs(18 * 3600).to_std()
}
