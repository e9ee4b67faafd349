use std::{collections::HashMap, sync::Arc};

use cri::v1::LinuxContainerResources;
use pod_core::cpus::CpuSet;

use crate::{context::Context, pods::Pods};

/// Holds running containers to their CPUs, until shutdown: at once when others are shared than before, and every now and
/// then, as one may have been made while that was changing.
pub(crate) async fn run(ctx: Arc<Context>, pods: Pods) {
    let mut moved = ctx.placement.moved.subscribe();
    let mut told = HashMap::new();
    loop {
        if ctx.placement.lock().given.cpus.is_none() {
            // It stays so for as long as the kubelet runs.
            return std::future::pending().await;
        }
        reconcile(&ctx, &pods, &mut told).await;
        tokio::select! {
            _ = moved.changed() => {}
            () = tokio::time::sleep(ctx.settings.placement.reconcile) => {}
        }
    }
}

/// Tells the runtime of each container that is to run on other CPUs than it was last `told`.
async fn reconcile(ctx: &Context, pods: &Pods, told: &mut HashMap<String, CpuSet>) {
    let running = pods.running();
    told.retain(|id, _| running.iter().any(|(_, _, running)| running == id));
    for (uid, container, id) in running {
        let Some(cpus) = ctx.placement.cpus(&uid, &container) else { continue };
        if told.get(&id) == Some(&cpus) {
            continue;
        }
        let resources =
            LinuxContainerResources { cpuset_cpus: cpus.to_string(), ..Default::default() };
        match ctx.cri.update_container_resources(&id, resources).await {
            Ok(()) => drop(told.insert(id, cpus)),
            // It may have ended by now.
            Err(error) => {
                tracing::debug!(uid, container, %cpus, %error, "move a container to its CPUs");
            }
        }
    }
}
