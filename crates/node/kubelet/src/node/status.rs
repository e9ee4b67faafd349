//! Computes the status of the Node.

use std::collections::BTreeMap;

use api_config::FeatureGates;
use k8s_openapi::{
    api::core::v1::{
        ContainerImage, DaemonEndpoint, NodeCondition, NodeDaemonEndpoints, NodeRuntimeHandler,
        NodeRuntimeHandlerFeatures, NodeStatus, NodeSwapStatus, NodeSystemInfo,
    },
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::Time},
};
use pod_core::Timestamp;
use tokio::time::Instant;

use super::{
    capacity::{allocatable, capacity},
    cloud,
    runtime_grace::RuntimeGrace,
};
use crate::context::Context;

/// Computes the Node's status. A condition with the same status as in `before` keeps its transition time.
pub(super) async fn status(
    ctx: &Context,
    before: &NodeStatus,
    pleg: Option<&String>,
    grace: &mut RuntimeGrace,
) -> NodeStatus {
    let now = Timestamp::from_second(ctx.now().as_second()).unwrap_or_default();
    let version = grace.version(ctx.cri.version().await.ok());
    let runtime = grace.status(ctx.cri.status(false).await, Instant::now());
    let pleg = grace.listing_error(pleg, Instant::now());
    let handlers = runtime.as_ref().map(|s| handlers(&s.runtime_handlers)).unwrap_or_default();
    let features = runtime.as_ref().ok().and_then(crate::features::of_node);
    let pressures = ctx.pressures.now();
    let under = |kind: &str| pressures.contains(&kind);
    let conditions = [
        ConditionState::pressure(
            "MemoryPressure",
            under("MemoryPressure"),
            ("KubeletHasInsufficientMemory", "KubeletHasSufficientMemory"),
            "memory available",
        ),
        disk_pressure(under("DiskPressure")),
        ConditionState::pressure(
            "PIDPressure",
            under("PIDPressure"),
            ("KubeletHasInsufficientPID", "KubeletHasSufficientPID"),
            "PID available",
        ),
        ready(runtime, pleg, *ctx.shutting_down.borrow()),
    ];
    let old: BTreeMap<&str, &NodeCondition> =
        before.conditions.iter().flatten().map(|c| (c.type_.as_str(), c)).collect();
    let conditions =
        conditions.into_iter().map(|condition| condition.condition(&old, now)).collect();
    let (mut capacity, mut allocatable) =
        (capacity(&ctx.machine, &ctx.settings), allocatable(&ctx.machine, &ctx.settings));
    for (name, count) in ctx.devices.count().await {
        capacity.insert(name.clone(), Quantity(count.capacity.to_string()));
        allocatable.insert(name, Quantity(count.allocatable.to_string()));
    }
    // Other clients may advertise further resources.
    if let Some(node) = ctx.node.get() {
        let foreign = node.capacity().iter().filter(|(name, _)| !capacity.contains_key(*name));
        allocatable.extend(foreign.map(|(name, amount)| (name.clone(), amount.clone())));
    }
    NodeStatus {
        addresses: cloud::addresses(&ctx.settings, ctx.node.get().as_deref()),
        capacity: Some(capacity),
        allocatable: Some(allocatable),
        conditions: Some(conditions),
        daemon_endpoints: Some(NodeDaemonEndpoints {
            kubelet_endpoint: Some(DaemonEndpoint { port: i32::from(ctx.settings.port) }),
        }),
        node_info: Some(info(
            ctx,
            format!("{}://{}", version.runtime_name, version.runtime_version),
        )),
        images: Some(images(ctx).await),
        volumes_in_use: Some(ctx.volumes.drivers.in_use(|volume| {
            // Assume that a volume is attached until the Node object has been read.
            ctx.node.get().is_none_or(|node| node.is_attached(volume))
        })),
        features,
        declared_features: declared_features(&ctx.settings.features),
        runtime_handlers: (!handlers.is_empty()).then_some(handlers),
        ..NodeStatus::default()
    }
}

/// Returns the features that Pods may require of a node, in order. Kubelets that do not declare them ignore the fields.
fn declared_features(gates: &FeatureGates) -> Option<Vec<String>> {
    const FEATURES: [&str; 4] = [
        "ExtendWebSocketsToKubelet",
        "InPlacePodLevelResourcesVerticalScaling",
        "InPlacePodVerticalScalingInitContainers",
        "RestartAllContainersOnContainerExits",
    ];
    let declares = gates.is_enabled("NodeDeclaredFeatures");
    declares.then(|| FEATURES.map(str::to_owned).to_vec())
}

fn info(ctx: &Context, runtime: String) -> NodeSystemInfo {
    let machine = &ctx.machine;
    NodeSystemInfo {
        architecture: architecture().to_owned(),
        boot_id: machine.boot_id.clone(),
        container_runtime_version: runtime,
        kernel_version: machine.kernel.clone(),
        kube_proxy_version: String::new(),
        kubelet_version: version::BUILD_VERSION.to_owned(),
        machine_id: machine.machine_id.clone(),
        operating_system: "linux".to_owned(),
        os_image: machine.os_image.clone(),
        // The API server rejects a swap capacity of zero.
        swap: i64::try_from(machine.swap)
            .ok()
            .filter(|capacity| *capacity > 0)
            .map(|capacity| NodeSwapStatus { capacity: Some(capacity) }),
        system_uuid: machine.system_uuid.clone(),
    }
}

/// Returns the CPU architecture by its Go name, as labels and images use it.
pub(super) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn handlers(handlers: &[cri::v1::RuntimeHandler]) -> Vec<NodeRuntimeHandler> {
    let handler = |h: &cri::v1::RuntimeHandler| NodeRuntimeHandler {
        name: Some(h.name.clone()),
        features: h.features.as_ref().map(|f| NodeRuntimeHandlerFeatures {
            recursive_read_only_mounts: Some(f.recursive_read_only_mounts),
            user_namespaces: Some(f.user_namespaces),
        }),
    };
    handlers.iter().map(handler).collect()
}

/// Returns the largest images, for the scheduler's image locality.
async fn images(ctx: &Context) -> Vec<ContainerImage> {
    let mut images = ctx.cri.list_images().await.unwrap_or_default();
    images.sort_by(|a, b| b.size.cmp(&a.size).then_with(|| a.id.cmp(&b.id)));
    let image = |image: cri::v1::Image| ContainerImage {
        names: Some(image.repo_digests.into_iter().chain(image.repo_tags).collect()),
        size_bytes: i64::try_from(image.size).ok(),
    };
    let count = ctx.settings.status_images.unwrap_or(usize::MAX);
    images.into_iter().take(count).map(image).collect()
}

/// The present state of one Node condition.
struct ConditionState {
    kind: &'static str,
    status: bool,
    reason: &'static str,
    message: String,
}

impl ConditionState {
    fn pressure(
        kind: &'static str,
        under: bool,
        reasons: (&'static str, &'static str),
        what: &str,
    ) -> Self {
        let (yes, no) = reasons;
        let has = if under { "has insufficient" } else { "has sufficient" };
        Self {
            kind,
            status: under,
            reason: if under { yes } else { no },
            message: format!("kubelet {has} {what}"),
        }
    }

    fn condition(self, old: &BTreeMap<&str, &NodeCondition>, now: Timestamp) -> NodeCondition {
        let status = if self.status { "True" } else { "False" };
        let since = old
            .get(self.kind)
            .filter(|o| o.status == status)
            .and_then(|o| o.last_transition_time.clone());
        NodeCondition {
            type_: self.kind.to_owned(),
            status: status.to_owned(),
            reason: Some(self.reason.to_owned()),
            message: Some(self.message),
            last_heartbeat_time: Some(Time(now)),
            last_transition_time: Some(since.unwrap_or(Time(now))),
        }
    }
}

fn disk_pressure(under: bool) -> ConditionState {
    let (reason, message) = if under {
        ("KubeletHasDiskPressure", "kubelet has disk pressure")
    } else {
        ("KubeletHasNoDiskPressure", "kubelet has no disk pressure")
    };
    ConditionState { kind: "DiskPressure", status: under, reason, message: message.to_owned() }
}

fn ready(
    runtime: Result<cri::v1::StatusResponse, cri::Error>,
    pleg: Option<&String>,
    shutting_down: bool,
) -> ConditionState {
    let mut causes = Vec::new();
    match runtime {
        Err(error) => causes.push(format!("container runtime is down: {error}")),
        Ok(response) => {
            let conditions = response.status.unwrap_or_default().conditions;
            for (kind, what) in [
                ("RuntimeReady", "container runtime not ready"),
                ("NetworkReady", "container runtime network not ready"),
            ] {
                match conditions.iter().find(|c| c.r#type == kind) {
                    Some(c) if c.status => {}
                    Some(c) => causes.push(format!(
                        "{what}: {kind}=false reason:{} message:{}",
                        c.reason, c.message
                    )),
                    None => causes.push(format!("{what}: the runtime does not report {kind}")),
                }
            }
        }
    }
    causes.extend(pleg.map(|error| format!("the runtime's containers cannot be listed: {error}")));
    causes.extend(shutting_down.then(|| "node is shutting down".to_owned()));
    let status = causes.is_empty();
    let reason = if status { "KubeletReady" } else { "KubeletNotReady" };
    let message =
        if status { "kubelet is posting ready status".to_owned() } else { causes.join("; ") };
    ConditionState { kind: "Ready", status, reason, message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_not_ready_while_it_shuts_down() {
        let healthy = || {
            let condition = |kind: &str| cri::v1::RuntimeCondition {
                r#type: kind.to_owned(),
                status: true,
                ..Default::default()
            };
            let conditions = ["RuntimeReady", "NetworkReady"].map(condition).into();
            Ok(cri::v1::StatusResponse {
                status: Some(cri::v1::RuntimeStatus { conditions }),
                ..Default::default()
            })
        };
        assert!(ready(healthy(), None, false).status);
        let state = ready(healthy(), None, true);
        assert_eq!((state.status, state.reason), (false, "KubeletNotReady"));
        assert_eq!(state.message, "node is shutting down");
    }
}
