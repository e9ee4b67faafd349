//! Checks a new document against the cluster, and finds the processes that a change concerns.

use std::net::IpAddr;

use api_meta::validation;

use super::{addresses, command};
use crate::{
    cluster::Cluster,
    config::{ApiServer, ClusterConfig, ConfigError, Registry, check_ports},
    error::Error,
    metrics,
    process::Role,
};

/// Checks a new document against the cluster. `exists` is `true` if the cluster was created with the old one.
pub(crate) fn check(cluster: &Cluster, new: &ClusterConfig, exists: bool) -> Result<(), Error> {
    let (settings, old) = (&cluster.settings, &cluster.settings.config);
    let valid = |san: &String| {
        san.parse::<IpAddr>().is_ok()
            || validation::dns1123_subdomain(san).is_empty()
            || validation::wildcard_dns1123_subdomain(san).is_empty()
    };
    if let Some(wrong) = new.api_server.cert_sans.iter().find(|san| !valid(san)) {
        return Err(Error::San(wrong.clone()));
    }
    if exists {
        check_fixed(cluster, old, new)?;
    }
    if !new.load_balancer.ranges.is_empty() && (!exists || new.load_balancer != old.load_balancer) {
        let members = cluster.members()?;
        let members = members.iter().map(|member| member.settings.address);
        let host = addresses::in_use(&settings.pod_cidr, &settings.service_cidr, members)?;
        new.load_balancer.check(&host)?;
    }
    let reserved = [settings.api_port, settings.kubelet_port, metrics::PORT, 10256];
    let is_running = Role::Agent.running(cluster).is_some();
    let current = if is_running { old.publish.as_slice() } else { &[] };
    check_ports(&new.publish, current, &reserved)?;
    command::try_all(cluster, new)
}

/// Refuses changes that would have no effect on an existing cluster.
fn check_fixed(cluster: &Cluster, old: &ClusterConfig, new: &ClusterConfig) -> Result<(), Error> {
    let fixed = |field| Err(ConfigError::Fixed { field }.into());
    // A cluster of an earlier version stores no ranges in its document.
    let ranges = [
        (&new.networking.pod_subnet, &cluster.settings.pod_cidr, "networking.podSubnet"),
        (
            &new.networking.service_subnet,
            &cluster.settings.service_cidr,
            "networking.serviceSubnet",
        ),
    ];
    for (wanted, has, field) in ranges {
        if wanted.as_ref().is_some_and(|wanted| wanted != has) {
            return fixed(field);
        }
    }
    if new.networking.dual_stack && !cluster.settings.pod_cidr.contains(',') {
        return fixed("networking.dualStack");
    }
    if new.networking.tunnel && !cluster.settings.tunnel {
        return fixed("networking.tunnel");
    }
    let mounts = |config: &ClusterConfig, index: usize| {
        config.nodes.get(index).map(|node| node.extra_mounts.clone()).unwrap_or_default()
    };
    if (0..=cluster.members()?.len()).any(|index| mounts(old, index) != mounts(new, index)) {
        return fixed("nodes[].extraMounts");
    }
    if cluster.is_replicated() && control_plane(old) != control_plane(new) {
        return fixed("with several control planes: loadBalancer, featureGates and extraArgs");
    }
    Ok(())
}

/// Returns the part of a document that the static Pods of control planes depend on.
fn control_plane(config: &ClusterConfig) -> ClusterConfig {
    ClusterConfig {
        load_balancer: config.load_balancer.clone(),
        api_server: ApiServer {
            extra_args: config.api_server.extra_args.clone(),
            ..Default::default()
        },
        controller_manager: config.controller_manager.clone(),
        scheduler: config.scheduler.clone(),
        feature_gates: config.feature_gates.clone(),
        ..ClusterConfig::default()
    }
}

/// Returns the part of a document that agents depend on.
fn agent(config: &ClusterConfig) -> ClusterConfig {
    ClusterConfig {
        load_balancer: config.load_balancer.clone(),
        publish: config.publish.clone(),
        kubelet: config.kubelet.clone(),
        kube_proxy: config.kube_proxy.clone(),
        feature_gates: config.feature_gates.clone(),
        ..ClusterConfig::default()
    }
}

/// Returns the part of the registries that containerd reads at its start only.
fn credentials(registries: &[Registry]) -> Vec<Registry> {
    let with = registries.iter().filter(|registry| !registry.username.is_empty());
    with.map(|registry| Registry {
        host: registry.host.clone(),
        username: registry.username.clone(),
        password_file: registry.password_file.clone(),
        ..Registry::default()
    })
    .collect()
}

/// Returns the processes that must be restarted after a change of the document.
pub(crate) fn concerned(old: &ClusterConfig, new: &ClusterConfig) -> Vec<Role> {
    let mut roles = Vec::new();
    let credentials = |config: &ClusterConfig| credentials(&config.registries);
    if credentials(old) != credentials(new) {
        roles.push(Role::Containerd);
    }
    if control_plane(old) != control_plane(new) {
        roles.push(Role::ControlPlane);
    }
    if agent(old) != agent(new) {
        roles.push(Role::Agent);
    }
    roles
}

/// Stores the document, also for further nodes, which cannot read the cluster's settings.
pub(crate) fn store(cluster: &Cluster) -> Result<(), Error> {
    cluster.save()?;
    for mut member in cluster.members()? {
        member.settings.config = cluster.settings.config.clone();
        member.save()?;
    }
    Ok(())
}
