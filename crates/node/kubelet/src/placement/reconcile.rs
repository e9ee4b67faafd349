//! Applies CPU sets to running containers.

use std::{collections::HashMap, sync::Arc};

use cri::v1::LinuxContainerResources;
use pod_core::cpus::CpuSet;

use crate::{context::Context, pods::Pods};

/// Updates the CPU sets of running containers until shutdown. Runs whenever the shared CPUs change, and periodically,
/// because a container may have been created during a change.
pub(crate) async fn run(ctx: Arc<Context>, pods: Pods) {
    let mut moved = ctx.placement.moved.subscribe();
    let mut sent = HashMap::new();
    loop {
        if ctx.placement.lock().given.cpus.is_none() {
            // The policy does not change while the kubelet runs.
            return std::future::pending().await;
        }
        reconcile(&ctx, &pods, &mut sent).await;
        tokio::select! {
            _ = moved.changed() => {}
            () = tokio::time::sleep(ctx.settings.placement.reconcile) => {}
        }
    }
}

/// Sends the CPU set of each running container to the runtime, unless `sent` has it as sent already.
async fn reconcile(ctx: &Context, pods: &Pods, sent: &mut HashMap<String, CpuSet>) {
    let running = pods.running();
    sent.retain(|id, _| running.iter().any(|(_, _, running)| running == id));
    for (uid, container, id) in running {
        let Some(cpus) = ctx.placement.cpus(&uid, &container) else { continue };
        if sent.get(&id) == Some(&cpus) {
            continue;
        }
        let resources =
            LinuxContainerResources { cpuset_cpus: cpus.to_string(), ..Default::default() };
        match ctx.cri.update_container_resources(&id, resources).await {
            Ok(()) => drop(sent.insert(id, cpus)),
            // The container may have ended meanwhile.
            Err(error) => {
                tracing::debug!(uid, container, %cpus, %error, "update a container's CPU set");
            }
        }
    }
}
