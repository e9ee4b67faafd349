//! Applies CPU sets to running containers.

use std::{collections::HashMap, sync::Arc};

use cri::v1::LinuxContainerResources;
use pod_core::{PodRegistry, RunningContainer, cpus::CpuSet};

use super::Placement;

/// Updates the CPU sets of running containers until shutdown. Runs whenever the shared CPUs change, and periodically,
/// because a container may have been created during a change.
pub async fn reconcile_cpus(
    placement: Arc<Placement>,
    cri: cri::Client,
    pods: Arc<dyn PodRegistry>,
) {
    let mut moved = placement.moved.subscribe();
    let mut sent = HashMap::new();
    loop {
        if placement.lock().allocations.cpus.is_none() {
            // The policy does not change while the kubelet runs.
            return std::future::pending().await;
        }
        reconcile(&placement, &cri, pods.as_ref(), &mut sent).await;
        tokio::select! {
            _ = moved.changed() => {}
            () = tokio::time::sleep(placement.settings.reconcile) => {}
        }
    }
}

/// Sends the CPU set of each running container to the runtime, unless `sent` has it as sent already.
async fn reconcile(
    placement: &Placement,
    cri: &cri::Client,
    pods: &dyn PodRegistry,
    sent: &mut HashMap<String, CpuSet>,
) {
    let running = pods.running();
    sent.retain(|id, _| running.iter().any(|container| container.id == *id));
    for RunningContainer { uid, name, id } in running {
        let Some(cpus) = placement.cpus(&uid, &name) else { continue };
        if sent.get(&id) == Some(&cpus) {
            continue;
        }
        let resources =
            LinuxContainerResources { cpuset_cpus: cpus.to_string(), ..Default::default() };
        match cri.update_container_resources(&id, resources).await {
            Ok(()) => drop(sent.insert(id, cpus)),
            // The container may have ended meanwhile.
            Err(error) => {
                tracing::debug!(uid, container = name, %cpus, %error, "update a container's CPU set");
            }
        }
    }
}
