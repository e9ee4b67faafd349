//! Creates sandboxes and the cgroups of Pods.

use std::path::PathBuf;

use cri::{labels, v1};
use k8s_openapi::api::core::v1::Pod;
use pod_core::{
    dns, hosts, huge_pages, members, paths, qos_class,
    resources::{CgroupLimits, cpu_quota, pod_cgroup},
};

use super::{
    limits,
    security::{self, SecurityError},
};
use crate::{
    context::Context,
    features::{self, UserNamespaceSupportError},
};

/// The error of a sandbox that cannot be created.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SandboxError {
    #[error("Failed to create pod sandbox: {0}")]
    Runtime(#[from] cri::Error),
    #[error("create the Pod's log directory {}: {source}", path.display())]
    Logs { path: PathBuf, source: std::io::Error },
    #[error("create the Pod's cgroup: {0}")]
    Group(#[from] sys::Error),
    #[error(transparent)]
    Security(#[from] SecurityError),
    #[error("Failed to create pod sandbox: {0}")]
    UserNamespaces(#[from] UserNamespaceSupportError),
    #[error("read the Pod's RuntimeClass: {0}")]
    RuntimeClass(#[from] client::Error),
}

/// Creates the Pod's cgroup and its sandbox with the network.
pub(crate) async fn create_sandbox(
    ctx: &Context,
    pod: &Pod,
    attempt: u32,
) -> Result<String, SandboxError> {
    let handler = features::handler(ctx, pod).await?;
    // A Pod must not run without the isolation that it requests, and an old runtime ignores the request.
    features::check_user_namespace(ctx, pod, &handler).await?;
    let config = config(ctx, pod, attempt)?;
    limit_pod(ctx, pod, pod_cgroup(pod))?;
    let logs = paths::log_dir(&ctx.settings.logs, pod);
    // The mode is upstream's: log collectors run as various users.
    sys::make_directories(&logs, 0o755)
        .map_err(|source| SandboxError::Logs { path: logs, source })?;
    Ok(ctx.cri.run_pod_sandbox(config, &handler).await?)
}

/// Creates the Pod's cgroup, or updates its limits.
pub(super) fn limit_pod(ctx: &Context, pod: &Pod, wanted: CgroupLimits) -> Result<(), sys::Error> {
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let limited = ctx.settings.cpu_quota && !ctx.placement.has_exclusive(uid);
    let period = limits::cpu_period(&ctx.settings);
    let quota = if limited { cpu_quota(wanted.cpu, period) } else { 0 };
    let reserved = limits::memory_policy(ctx).of_pod(pod);
    let limits = sys::cgroup::Limits {
        cpu_shares: wanted.cpu_shares,
        cpu_quota: quota,
        cpu_period: period,
        memory: wanted.memory,
        memory_min: reserved.min,
        memory_low: reserved.low,
        pids: ctx.settings.pod_pids,
        huge_pages: ctx.machine.huge_page_limits(&huge_pages::of_pod(pod)),
    };
    ctx.cgroups.ensure(&pod_group(ctx, pod), &limits)
}

pub(crate) async fn stop_sandbox(ctx: &Context, id: &str) -> Result<(), cri::Error> {
    match ctx.cri.stop_pod_sandbox(id).await {
        Err(error) if error.is_not_found() => Ok(()),
        other => other,
    }
}

/// Returns the sandbox's configuration. Containers are created with the same one.
pub(super) fn config(
    ctx: &Context,
    pod: &Pod,
    attempt: u32,
) -> Result<v1::PodSandboxConfig, SecurityError> {
    let security_context =
        security::of_sandbox(pod, ctx.user_namespaces.of_pod(pod)?, &ctx.settings.root)?;
    let spec = pod.spec.clone().unwrap_or_default();
    let meta = &pod.metadata;
    let text = |t: &Option<String>| t.clone().unwrap_or_default();
    let mut labels: std::collections::HashMap<String, String> =
        meta.labels.clone().unwrap_or_default().into_iter().collect();
    labels.insert(labels::POD_NAME.to_owned(), text(&meta.name));
    labels.insert(labels::POD_NAMESPACE.to_owned(), text(&meta.namespace));
    labels.insert(labels::POD_UID.to_owned(), text(&meta.uid));
    let host_network = spec.host_network == Some(true);
    let host_resolver = crate::machine::host_resolver(ctx.settings.resolv_conf.as_deref());
    let (resolver, missing) =
        dns::of_pod(pod, &host_resolver, &ctx.settings.cluster_dns, &ctx.settings.cluster_domain);
    if missing {
        let text = "pod: does not have ClusterDNS IP configured and cannot create Pod using \"ClusterFirst\" policy. \
             Falling back to \"Default\" policy.";
        ctx.events.warn(pod, "MissingClusterDNS", text.to_owned());
    }
    let port_mappings = if host_network { Vec::new() } else { port_mappings(pod) };
    Ok(v1::PodSandboxConfig {
        metadata: Some(v1::PodSandboxMetadata {
            name: text(&meta.name),
            uid: text(&meta.uid),
            namespace: text(&meta.namespace),
            attempt,
        }),
        hostname: if host_network {
            String::new()
        } else {
            hosts::sandbox_hostname(pod, &ctx.settings.cluster_domain)
        },
        log_directory: paths::log_dir(&ctx.settings.logs, pod).display().to_string(),
        dns_config: Some(v1::DnsConfig {
            servers: resolver.servers,
            searches: resolver.searches,
            options: resolver.options,
        }),
        port_mappings,
        labels,
        annotations: meta.annotations.clone().unwrap_or_default().into_iter().collect(),
        linux: Some(v1::LinuxPodSandboxConfig {
            cgroup_parent: pod_group(ctx, pod),
            security_context: Some(security_context),
            sysctls: sysctls(pod),
            overhead: None,
            resources: None,
        }),
    })
}

fn sysctls(pod: &Pod) -> std::collections::HashMap<String, String> {
    let security = pod.spec.as_ref().and_then(|s| s.security_context.as_ref());
    let listed = security.and_then(|s| s.sysctls.as_ref()).into_iter().flatten();
    listed.map(|s| (s.name.replace('/', "."), s.value.clone())).collect()
}

fn port_mappings(pod: &Pod) -> Vec<v1::PortMapping> {
    let members = members(pod);
    let ports = members.iter().flat_map(|m| m.container.ports.iter().flatten());
    ports
        .filter_map(|port| {
            let protocol = match port.protocol.as_deref() {
                Some("UDP") => v1::Protocol::Udp,
                Some("SCTP") => v1::Protocol::Sctp,
                _ => v1::Protocol::Tcp,
            };
            Some(v1::PortMapping {
                protocol: protocol.into(),
                container_port: port.container_port,
                host_port: port.host_port.filter(|&p| p > 0)?,
                host_ip: port.host_ip.clone().unwrap_or_default(),
            })
        })
        .collect()
}

/// Returns a Pod's cgroup, below that of its QoS class.
pub(super) fn pod_group(ctx: &Context, pod: &Pod) -> String {
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    ctx.settings.cgroups.pod(qos_class(pod), uid)
}

/// Removes a Pod's cgroup of any QoS class, because an orphan's class is unknown.
pub(crate) fn remove_group(ctx: &Context, uid: &str) -> Result<(), sys::Error> {
    ctx.settings.cgroups.pod_of_any_class(uid).iter().try_for_each(|group| {
        // The runtime has ended the Pod's processes, unless it lost track of them.
        ctx.cgroups.kill(group)?;
        ctx.cgroups.remove(group)
    })
}

/// Returns the UIDs of the Pods that have a cgroup on this node.
pub(crate) fn group_uids(ctx: &Context) -> Vec<String> {
    let names = &ctx.settings.cgroups;
    let groups = names.parents().into_iter();
    let groups = groups.flat_map(|parent| ctx.cgroups.children(&parent).unwrap_or_default());
    groups.filter_map(|group| names.uid(&group)).collect()
}
