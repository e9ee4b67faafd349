//! Kubelet admission: decides whether a node runs a Pod that is bound to it. The scheduler may have decided on older
//! data, or the Pod may have been bound without it.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{
        NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod, Taint, Toleration,
    },
    apimachinery::pkg::api::resource::Quantity,
};

use crate::{
    features, huge_pages,
    qos::{QosClass, qos_class},
    resources::{milli, pod_amounts, whole},
    spec::{is_static, members},
};

pub use crate::refusal::Refusal;

/// The lowest priority of critical Pods.
pub const CRITICAL: i32 = 2_000_000_000;

/// The state of a node that admission needs.
#[derive(Clone, Debug, Default)]
pub struct NodeView<'a> {
    /// The name of the Node.
    pub name: &'a str,
    /// The labels of the Node. `None` while they are unknown; then node selectors are not checked.
    pub labels: Option<&'a BTreeMap<String, String>>,
    /// The taints of the Node.
    pub taints: &'a [Taint],
    /// The allocatable amounts by resource.
    pub allocatable: BTreeMap<String, Quantity>,
    /// The pressure conditions that are true.
    pub pressures: &'a [&'static str],
    /// Unsafe sysctls that Pods may set; a name may end in `*`.
    pub unsafe_sysctls: &'a [String],
    /// `true` if the kernel enforces AppArmor profiles.
    pub app_armor: bool,
}

/// Reports whether a Pod is critical. A critical Pod is admitted even if the node lacks resources for it.
pub fn is_critical(pod: &Pod) -> bool {
    is_static(pod) || pod.spec.as_ref().and_then(|s| s.priority).unwrap_or(0) >= CRITICAL
}

/// Admits a Pod beside the `others` on the node, or returns the refusal.
pub fn admit<'a>(
    pod: &Pod,
    node: &NodeView<'_>,
    others: impl Iterator<Item = &'a Pod> + Clone,
) -> Result<(), Refusal> {
    pressures(pod, node)?;
    sysctls(pod, node)?;
    operating_system(pod)?;
    app_armor(pod, node)?;
    if !is_critical(pod) {
        fits(pod, node, others.clone())?;
    }
    selectors(pod, node)?;
    if taken_ports(pod, others) {
        let text = "node(s) didn't have free ports for the requested pod ports";
        return Err(Refusal::predicate("NodePorts", text));
    }
    taints(pod, node)
}

fn pressures(pod: &Pod, node: &NodeView<'_>) -> Result<(), Refusal> {
    let best_effort = qos_class(pod) == QosClass::BestEffort;
    let only_memory = node.pressures == ["MemoryPressure"];
    let taint = Taint {
        key: "node.kubernetes.io/memory-pressure".to_owned(),
        effect: "NoSchedule".to_owned(),
        ..Taint::default()
    };
    let bears = only_memory && (!best_effort || tolerates(pod, &taint));
    if node.pressures.is_empty() || is_critical(pod) || bears {
        return Ok(());
    }
    let text = format!("The node had condition: [{}]. ", node.pressures.join(" "));
    Err(Refusal::new("Evicted", text))
}

/// Rejects a Pod for another operating system. PodSecurity does not check the Linux-only fields of such a Pod.
fn operating_system(pod: &Pod) -> Result<(), Refusal> {
    const OWN: &str = "linux";
    let labelled = pod.metadata.labels.as_ref().and_then(|all| all.get("kubernetes.io/os"));
    if labelled.is_some_and(|name| name != OWN) {
        let text = "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label";
        return Err(Refusal::new("PodOSSelectorNodeLabelDoesNotMatch", text));
    }
    let named = pod.spec.as_ref().and_then(|spec| spec.os.as_ref());
    if named.is_some_and(|os| os.name != OWN) {
        let text = "Failed to admit pod as the OS field doesn't match node OS";
        return Err(Refusal::new("PodOSNotSupported", text));
    }
    Ok(())
}

/// Rejects a Pod whose AppArmor profiles the kernel does not enforce.
fn app_armor(pod: &Pod, node: &NodeView<'_>) -> Result<(), Refusal> {
    if node.app_armor || !features::needs_app_armor(pod) {
        return Ok(());
    }
    let text = "Cannot enforce AppArmor: AppArmor is not enabled on the host";
    Err(Refusal::new("AppArmor", text))
}

/// The sysctls that are namespaced and cannot harm other Pods.
const SAFE_SYSCTLS: &[&str] = &[
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
];

fn sysctls(pod: &Pod, node: &NodeView<'_>) -> Result<(), Refusal> {
    let spec = pod.spec.as_ref();
    let listed = spec.and_then(|s| s.security_context.as_ref()?.sysctls.as_ref());
    for sysctl in listed.into_iter().flatten() {
        let name = sysctl.name.replace('/', ".");
        let allowed = |pattern: &String| match pattern.strip_suffix('*') {
            Some(prefix) => name.starts_with(prefix),
            None => *pattern == name,
        };
        let of_host = |host: Option<bool>, prefixes: &[&str]| {
            host == Some(true) && prefixes.iter().any(|prefix| name.starts_with(prefix))
        };
        let why = if of_host(spec.and_then(|s| s.host_network), &["net."]) {
            "not allowed with host net enabled"
        } else if of_host(
            spec.and_then(|s| s.host_ipc),
            &["kernel.shm", "kernel.msg", "kernel.sem", "fs.mqueue."],
        ) {
            "not allowed with host ipc enabled"
        } else if SAFE_SYSCTLS.contains(&name.as_str()) || node.unsafe_sysctls.iter().any(allowed) {
            continue;
        } else {
            "not allowlisted"
        };
        let text = format!("forbidden sysctl: {} {why}", api_meta::go_quote(&name));
        return Err(Refusal::new("SysctlForbidden", text));
    }
    Ok(())
}

/// Checks that the requested amounts fit: the number of Pods, CPU in thousandths, memory and huge pages in bytes.
fn fits<'a>(
    pod: &Pod,
    node: &NodeView<'_>,
    others: impl Iterator<Item = &'a Pod> + Clone,
) -> Result<(), Refusal> {
    let huge = |pod: &Pod, name: &str| {
        let bytes = huge_pages::size(name).and_then(|size| huge_pages::of_pod(pod).remove(&size));
        bytes.map_or(0, |bytes| i64::try_from(bytes).unwrap_or(i64::MAX))
    };
    let amount = |pod: &Pod, name: &str| {
        let amounts = pod_amounts(pod);
        match name {
            "pods" => 1,
            "cpu" => amounts.cpu_request,
            "memory" => amounts.memory_request,
            name => huge(pod, name),
        }
    };
    // A request for huge pages of a size that the node does not have is rejected, too.
    let huge_pages_names = huge_pages::of_pod(pod).into_keys().map(huge_pages::resource);
    for name in ["pods", "cpu", "memory"].map(str::to_owned).into_iter().chain(huge_pages_names) {
        let name = name.as_str();
        let read = if name == "cpu" { milli } else { whole };
        let capacity = node.allocatable.get(name).map(read);
        let none = huge_pages::size(name).map(|_| 0);
        let Some(capacity) = capacity.or(none) else { continue };
        let requested = amount(pod, name);
        let used: i64 = others.clone().map(|other| amount(other, name)).sum();
        if requested > 0 && requested > capacity - used {
            return Err(Refusal::new(
                format!("OutOf{name}"),
                format!(
                    "Node didn't have enough resource: {name}, requested: {requested}, used: {used}, capacity: \
                     {capacity}"
                ),
            ));
        }
    }
    Ok(())
}

fn selectors(pod: &Pod, node: &NodeView<'_>) -> Result<(), Refusal> {
    let (Some(spec), Some(labels)) = (&pod.spec, node.labels) else { return Ok(()) };
    let mut selected = spec.node_selector.iter().flatten();
    let chosen = selected.all(|(key, value)| labels.get(key) == Some(value));
    let required = spec.affinity.as_ref().and_then(|a| {
        a.node_affinity.as_ref()?.required_during_scheduling_ignored_during_execution.as_ref()
    });
    let affine =
        required.is_none_or(|r| r.node_selector_terms.iter().any(|t| term(t, node, labels)));
    if chosen && affine {
        return Ok(());
    }
    let text = "node(s) didn't match Pod's node affinity/selector";
    Err(Refusal::predicate("NodeAffinity", text))
}

/// Reports whether a volume with this node affinity can be used on a node with this name and these labels.
pub fn volume_reaches(
    required: Option<&NodeSelector>,
    name: &str,
    labels: &BTreeMap<String, String>,
) -> bool {
    let node = NodeView { name, ..NodeView::default() };
    required.is_none_or(|r| r.node_selector_terms.iter().any(|t| term(t, &node, labels)))
}

fn term(term: &NodeSelectorTerm, node: &NodeView<'_>, labels: &BTreeMap<String, String>) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    !(expressions.is_empty() && fields.is_empty())
        && expressions.iter().all(|e| expression(e, labels.get(&e.key).map(String::as_str)))
        && fields.iter().all(|e| expression(e, (e.key == "metadata.name").then_some(node.name)))
}

fn expression(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let listed = value.is_some_and(|value| values.iter().any(|v| v == value));
    let compared = || {
        let ours: i64 = value?.parse().ok()?;
        let theirs: i64 = values.first()?.parse().ok()?;
        Some(ours.cmp(&theirs))
    };
    match requirement.operator.as_str() {
        "In" => listed,
        "NotIn" => !listed,
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compared().is_some_and(|order| order.is_gt()),
        "Lt" => compared().is_some_and(|order| order.is_lt()),
        _ => false,
    }
}

/// Returns the host ports of a Pod as protocol, address (empty for all) and port.
fn host_ports(pod: &Pod) -> Vec<(String, String, i32)> {
    let members = members(pod);
    let ports = members.iter().flat_map(|m| m.container.ports.iter().flatten());
    let any = |ip: &str| ip.is_empty() || ip == "0.0.0.0" || ip == "::";
    ports
        .filter_map(|port| {
            let number = port.host_port.filter(|&number| number > 0)?;
            let ip = port.host_ip.clone().filter(|ip| !any(ip)).unwrap_or_default();
            Some((port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()), ip, number))
        })
        .collect()
}

fn taken_ports<'a>(pod: &Pod, others: impl Iterator<Item = &'a Pod>) -> bool {
    let own = host_ports(pod);
    if own.is_empty() {
        return false;
    }
    let in_use: Vec<_> = others.flat_map(host_ports).collect();
    own.iter().any(|(protocol, ip, port)| {
        in_use.iter().any(|(theirs, address, number)| {
            protocol == theirs
                && port == number
                && (ip == address || ip.is_empty() || address.is_empty())
        })
    })
}

fn taints(pod: &Pod, node: &NodeView<'_>) -> Result<(), Refusal> {
    // Taints do not reject a static Pod.
    let mut expelling = node.taints.iter().filter(|taint| taint.effect == "NoExecute");
    if is_static(pod) || expelling.all(|taint| tolerates(pod, taint)) {
        return Ok(());
    }
    let text = "node(s) had taints that the pod didn't tolerate";
    Err(Refusal::predicate("TaintToleration", text))
}

fn tolerates(pod: &Pod, taint: &Taint) -> bool {
    let matches = |toleration: &Toleration| {
        let empty = |text: &Option<String>| text.as_deref().unwrap_or_default().is_empty();
        let key = toleration.key.as_deref().unwrap_or_default();
        let value = || {
            toleration.value.as_deref().unwrap_or_default()
                == taint.value.as_deref().unwrap_or_default()
        };
        let exists = toleration.operator.as_deref() == Some("Exists");
        (empty(&toleration.effect) || toleration.effect.as_deref() == Some(&taint.effect))
            && (key == taint.key || key.is_empty() && exists)
            && (exists || value())
    };
    pod.spec.iter().flat_map(|s| s.tolerations.iter().flatten()).any(matches)
}
