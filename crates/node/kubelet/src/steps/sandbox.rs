//! Creates sandboxes and the cgroups of Pods.

use std::path::PathBuf;

use cri::v1;
use k8s_openapi::api::core::v1::Pod;
use pod_core::{
    QosClass, dns, hosts, huge_pages, members, qos_class,
    resources::{CgroupLimits, pod_cgroup},
};

use super::security::{self, SecurityError};
use crate::{context::Context, runtime::label};

#[derive(Debug, thiserror::Error)]
pub(crate) enum SandboxError {
    #[error("Failed to create pod sandbox: {0}")]
    Runtime(#[from] cri::Error),
    #[error("create the Pod's log directory {}: {source}", path.display())]
    Logs { path: PathBuf, source: std::io::Error },
    #[error("create the Pod's cgroup: {0}")]
    Group(#[from] sys::Error),
    #[error("{0}")]
    Security(#[from] SecurityError),
    #[error("{0}")]
    Refused(String),
    #[error("read the Pod's RuntimeClass: {0}")]
    RuntimeClass(#[from] client::Error),
}

/// Creates the Pod's cgroup and its sandbox with the network.
pub(crate) async fn create_sandbox(
    ctx: &Context,
    pod: &Pod,
    attempt: u32,
) -> Result<String, SandboxError> {
    if pod.spec.as_ref().and_then(|s| s.host_users) == Some(false) {
        // A Pod must not run without the isolation that it requests.
        let text = "this kubelet does not support user namespaces (hostUsers: false)";
        return Err(SandboxError::Refused(text.to_owned()));
    }
    let handler = crate::features::handler(ctx, pod).await?;
    let config = config(ctx, pod, attempt)?;
    limit_pod(ctx, pod, pod_cgroup(pod))?;
    let logs = log_directory(ctx, pod);
    // The mode is upstream's: log collectors run as various users.
    sys::make_directories(&logs, 0o755)
        .map_err(|source| SandboxError::Logs { path: logs, source })?;
    Ok(ctx.cri.run_pod_sandbox(config, &handler).await?)
}

/// Creates the Pod's cgroup, or updates its limits.
pub(super) fn limit_pod(ctx: &Context, pod: &Pod, limits: CgroupLimits) -> Result<(), sys::Error> {
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let limited = ctx.settings.cpu_quota && !ctx.placement.has_exclusive(uid);
    let quota = if limited { limits.cpu_quota } else { 0 };
    let limits = sys::cgroup::Limits {
        cpu_shares: limits.cpu_shares,
        cpu_quota: quota,
        memory: limits.memory,
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

pub(crate) fn log_directory(ctx: &Context, pod: &Pod) -> PathBuf {
    let meta = &pod.metadata;
    let part = |p: &Option<String>| p.clone().unwrap_or_default();
    let name = format!("{}_{}_{}", part(&meta.namespace), part(&meta.name), part(&meta.uid));
    ctx.settings.logs.join(name)
}

/// Returns the sandbox's configuration. Containers are created with the same one.
pub(super) fn config(
    ctx: &Context,
    pod: &Pod,
    attempt: u32,
) -> Result<v1::PodSandboxConfig, SecurityError> {
    let security_context = security::of_sandbox(pod, &ctx.settings.root)?;
    let spec = pod.spec.clone().unwrap_or_default();
    let meta = &pod.metadata;
    let text = |t: &Option<String>| t.clone().unwrap_or_default();
    let mut labels: std::collections::HashMap<String, String> =
        meta.labels.clone().unwrap_or_default().into_iter().collect();
    labels.insert(label::POD_NAME.to_owned(), text(&meta.name));
    labels.insert(label::POD_NAMESPACE.to_owned(), text(&meta.namespace));
    labels.insert(label::POD_UID.to_owned(), text(&meta.uid));
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
        log_directory: log_directory(ctx, pod).display().to_string(),
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

/// Returns the cgroup that contains all Pods of this node.
pub(crate) fn pods_group(ctx: &Context) -> String {
    let leaf = if ctx.settings.systemd_slices { "kubepods.slice" } else { "kubepods" };
    format!("{}/{leaf}", ctx.settings.cgroup_root)
}

/// Returns a Pod's cgroup, below that of its QoS class.
pub(crate) fn pod_group(ctx: &Context, pod: &Pod) -> String {
    group(ctx, qos_class(pod), pod.metadata.uid.as_deref().unwrap_or_default())
}

/// Returns the part of a cgroup's name that stands for its QoS class. Guaranteed Pods are directly below the root.
fn class_name(class: QosClass) -> &'static str {
    match class {
        QosClass::Guaranteed => "",
        QosClass::Burstable => "burstable",
        QosClass::BestEffort => "besteffort",
    }
}

/// Returns the cgroup that contains the Pods of a QoS class.
pub(crate) fn class_group(ctx: &Context, class: QosClass) -> String {
    let root = pods_group(ctx);
    match (ctx.settings.systemd_slices, class_name(class)) {
        (_, "") => root,
        (false, class) => format!("{root}/{class}"),
        (true, class) => format!("{root}/kubepods-{class}.slice"),
    }
}

fn group(ctx: &Context, class: QosClass, uid: &str) -> String {
    let parent = class_group(ctx, class);
    if !ctx.settings.systemd_slices {
        return format!("{parent}/pod{uid}");
    }
    // systemd derives the hierarchy from the dashes in a slice's name.
    let uid = uid.replace('-', "_");
    match class_name(class) {
        "" => format!("{parent}/kubepods-pod{uid}.slice"),
        class => format!("{parent}/kubepods-{class}-pod{uid}.slice"),
    }
}

/// Removes a Pod's cgroup of any QoS class, because an orphan's class is unknown.
pub(crate) fn remove_group(ctx: &Context, uid: &str) -> Result<(), sys::Error> {
    let classes = [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort];
    classes.into_iter().map(|class| group(ctx, class, uid)).try_for_each(|group| {
        // The runtime has ended the Pod's processes, unless it lost track of them.
        ctx.cgroups.kill(&group)?;
        ctx.cgroups.remove(&group)
    })
}

/// Returns the UIDs of the Pods that have a cgroup on this node.
pub(crate) fn group_uids(ctx: &Context) -> Vec<String> {
    let classes = [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort];
    let parents = classes.into_iter().filter_map(|class| {
        group(ctx, class, "").rsplit_once('/').map(|(parent, _)| parent.to_owned())
    });
    let names = parents.flat_map(|parent| ctx.cgroups.children(&parent).unwrap_or_default());
    names.filter_map(|name| group_uid(ctx, &name)).collect()
}

/// Returns the UID of the Pod that a cgroup name stands for, if it does.
pub(crate) fn group_uid(ctx: &Context, name: &str) -> Option<String> {
    let name = name.strip_suffix(".slice").unwrap_or(name);
    let (_, uid) = name.rsplit_once("pod")?;
    let uid = if ctx.settings.systemd_slices { uid.replace('_', "-") } else { uid.to_owned() };
    (uid.len() >= 32).then_some(uid)
}
