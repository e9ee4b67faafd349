//! The cluster's certificates: created by `up`, and renewed while the cluster runs. A running cluster has no expired
//! certificate, and needs no restart to use a new one, because its processes reload changed files.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use api_config::Kubeconfig;
use bootstrap::{
    FileChange,
    certs::{
        KUBECONFIGS, Renewal, check_interval, client_cert, interval_of, is_due, renew_kubeconfig,
        validity,
    },
};
use bootstrap_core::{Layout, certs::Plan};
use pki::{AltName, Cert, KEY_MODE, LeafSpec, PUBLIC_MODE, Subject, Usage, Validity};
use rt::Clock;
use tokio::sync::watch;

use crate::{cluster::Cluster, context, error::Error, network};

/// The delay before certificates are checked again after the cluster could not be read.
const AGAIN: Duration = Duration::from_secs(60);

pub(crate) fn plan(cluster: &Cluster) -> Result<Plan, Error> {
    let init = cluster.init();
    let endpoint = &init.init.local_api_endpoint;
    Ok(Plan::new(&init.cluster, endpoint, &cluster.settings.node_name)?)
}

/// Returns the cluster's certificate authority.
pub(crate) fn authority(cluster: &Cluster) -> Result<pki::Authority, Error> {
    let pki = Layout::under(cluster.home()).certificates;
    let (cert, key) = (pki::read_cert(&pki.join("ca.crt"))?, pki::read_key(&pki.join("ca.key"))?);
    Ok(pki::Authority::from_parts(cert, key)?)
}

fn serving_certificate(node: &Cluster) -> PathBuf {
    node.layout().kubelet.join("pki/kubelet.crt")
}

/// Issues the kubelet's serving certificate from the cluster's CA, so that the API server can verify it. Does nothing
/// if the existing one is not due for renewal. Returns `true` if it wrote one.
pub(crate) fn ensure_serving_certificate(
    cluster: &Cluster,
    plan: &Plan,
    now: SystemTime,
) -> Result<bool, Error> {
    let cert_path = serving_certificate(cluster);
    let key_path = cert_path.with_extension("key");
    if cert_path.exists() && key_path.exists() && !is_due(&pki::read_cert(&cert_path)?, now)? {
        return Ok(false);
    }
    let authority = authority(cluster)?;
    let settings = &cluster.settings;
    let spec = LeafSpec {
        subject: Subject::new(format!("system:node:{}", settings.node_name)),
        alt_names: vec![AltName::Dns(settings.node_name.clone()), AltName::Ip(settings.address)],
        usage: Usage::Server,
    };
    let validity = Validity::starting(now, plan.leaf_validity)
        .until_at_most(authority.cert().info()?.not_after);
    let (cert, key) = authority.issue_new(&spec, plan.algorithm, validity)?;
    pki::write_key(&key_path, &key)?;
    pki::write_cert(&cert_path, &cert)?;
    Ok(true)
}

/// Removes the API server's certificate if it lacks one of the names that it needs, and issues another one.
pub(crate) fn ensure_server_names(cluster: &Cluster, now: SystemTime) -> Result<(), Error> {
    for node in std::iter::once(cluster.clone()).chain(cluster.members()?) {
        let (layout, plan) = (node.layout(), self::plan(&node)?);
        let path = layout.pki("apiserver", "crt");
        let Some(leaf) = plan.leaves.iter().find(|leaf| leaf.base == "apiserver") else { continue };
        if !path.exists() {
            continue;
        }
        let has = pki::read_cert(&path)?.info()?.alt_names;
        if leaf.spec.alt_names.iter().all(|name| has.contains(name)) {
            continue;
        }
        for file in [path, layout.pki("apiserver", "key")] {
            std::fs::remove_file(&file).map_err(Error::file("removing", &file))?;
        }
        bootstrap::certs::ensure(&layout.certificates, &plan, now)?;
    }
    Ok(())
}

/// Renews every certificate with at most a third of its life left. A failure does not stop the others.
pub(crate) fn renew_due(
    cluster: &Cluster,
    plan: &Plan,
    now: SystemTime,
) -> Vec<Result<FileChange, Error>> {
    let layout = cluster.layout();
    let mut results: Vec<_> = bootstrap::certs::renew_due(&layout, plan, now)
        .into_iter()
        .map(|result| result.map_err(Error::from))
        .collect();
    let renewal = Renewal { now, period: plan.leaf_validity, algorithm: Some(plan.algorithm) };
    for path in agent_kubeconfigs(&layout.kubernetes) {
        match kubeconfig_is_due(&path, now) {
            Ok(false) => {}
            Ok(true) => {
                let renewed = renew_kubeconfig(&layout.certificates, &path, renewal);
                results.push(renewed.map_err(Error::from));
            }
            Err(error) => results.push(Err(error)),
        }
    }
    let members = cluster.members().unwrap_or_else(|error| {
        results.push(Err(error));
        Vec::new()
    });
    for node in std::iter::once(cluster).chain(&members) {
        let path = serving_certificate(node);
        match ensure_serving_certificate(node, plan, now) {
            Ok(false) => {}
            Ok(true) => results.push(Ok(FileChange { path, written: true })),
            Err(error) => results.push(Err(error)),
        }
    }
    for node in members.iter().filter(|node| node.settings.control_plane) {
        match self::plan(node) {
            Ok(plan) => {
                let renewed = bootstrap::certs::renew_due(&node.layout(), &plan, now);
                results.extend(renewed.into_iter().map(|result| result.map_err(Error::from)));
            }
            Err(error) => results.push(Err(error)),
        }
    }
    for node in &members {
        results.extend(copy_shared_files(cluster, node).err().map(Err));
    }
    results.extend(renew_context(cluster, now).transpose());
    results
}

/// Returns the directory that a further node sees in place of the cluster's Kubernetes directory.
pub(crate) fn shared_directory(node: &Cluster) -> PathBuf {
    node.root.join("etc/cluster")
}

/// Copies the cluster's files that a further node's agent reads. The CA keys are not among them.
pub(crate) fn copy_shared_files(cluster: &Cluster, node: &Cluster) -> Result<(), Error> {
    let (ours, theirs) = (cluster.layout().kubernetes, shared_directory(node));
    let files = [
        ("kube-proxy.conf", KEY_MODE),
        (network::KUBECONFIG, KEY_MODE),
        ("pki/ca.crt", PUBLIC_MODE),
    ];
    for (name, mode) in files {
        let (from, to) = (ours.join(name), theirs.join(name));
        let text = std::fs::read(&from).map_err(Error::file("reading", &from))?;
        pki::update_file(&to, &text, mode)?;
    }
    Ok(())
}

/// Returns the kubeconfigs that are not `init`'s, or that `init` leaves to the kubelet to renew.
fn agent_kubeconfigs(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let own = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.ends_with(".conf") && !KUBECONFIGS.contains(&name)
    };
    entries.map(|entry| entry.path()).filter(own).collect()
}

fn kubeconfig_is_due(path: &Path, now: SystemTime) -> Result<bool, Error> {
    Ok(client_cert(path)?.map(|cert| is_due(&cert, now)).transpose()?.unwrap_or(false))
}

/// Renews the copy of the administrator's certificate in the user's kubeconfig if it is due.
fn renew_context(cluster: &Cluster, now: SystemTime) -> Result<Option<FileChange>, Error> {
    let Some(path) = cluster.settings.kubeconfig.as_deref().filter(|path| path.exists()) else {
        return Ok(None);
    };
    let name = context::name(cluster);
    let config = Kubeconfig::load(path)?;
    // The user may have removed the context.
    let Ok(current) = config.context(&name) else { return Ok(None) };
    let Some(pem) = current.user.cert_pem()? else { return Ok(None) };
    if !is_due(&Cert::from_pem(&pem)?, now)? {
        return Ok(None);
    }
    context::merge(cluster, path, false)?;
    Ok(Some(FileChange { path: path.to_owned(), written: true }))
}

/// Returns the interval between checks. The shortest validity decides, because certificates may be those of an earlier
/// document.
fn check_interval_of(cluster: &Cluster, plan: &Plan) -> Duration {
    let members = cluster.members().unwrap_or_default();
    let nodes = || std::iter::once(cluster).chain(&members);
    let planes = nodes().map(|node| interval_of(&node.layout()));
    let clients = agent_kubeconfigs(&cluster.layout().kubernetes);
    let clients = clients.iter().filter_map(|path| client_cert(path).ok()?);
    let serving = nodes().filter_map(|node| pki::read_cert(&serving_certificate(node)).ok());
    let validities = clients.chain(serving).filter_map(|cert| validity(&cert).ok());
    planes
        .chain(validities.map(check_interval))
        .fold(check_interval(plan.leaf_validity), Duration::min)
}

/// Renews due certificates until the future is dropped. Checks them also when the cluster's nodes or settings change,
/// because new certificates may live for a shorter time.
pub(crate) async fn keep_renewed(
    cluster: Cluster,
    clock: Arc<dyn Clock>,
    mut changes: watch::Receiver<()>,
) {
    loop {
        changes.mark_unchanged();
        let (old, now) = (cluster.clone(), clock.now());
        // Generating keys takes a while, and must not block other tasks.
        let renewed = tokio::task::spawn_blocking(move || {
            // A later `up` may have chosen another kubeconfig.
            let cluster = Cluster::load(&old.name, &old.root)?;
            let plan = plan(&cluster)?;
            let results = renew_due(&cluster, &plan, now);
            Ok::<_, Error>((results, check_interval_of(&cluster, &plan)))
        });
        let (results, interval) = match renewed.await {
            Ok(Ok(renewed)) => renewed,
            Ok(Err(error)) => (vec![Err(error)], AGAIN),
            Err(error) => {
                let error = Error::Task { operation: "renewing certificates", source: error };
                (vec![Err(error)], AGAIN)
            }
        };
        for result in results {
            match result {
                Ok(touched) => {
                    tracing::info!(path = %touched.path.display(), "renewed a certificate before its expiry");
                }
                Err(error) => {
                    tracing::error!(%error, ?interval, "cannot renew a certificate; trying again after the interval");
                }
            }
        }
        tokio::select! {
            () = tokio::time::sleep(interval) => {}
            Ok(()) = changes.changed() => {}
        }
    }
}

#[cfg(test)]
mod tests;
