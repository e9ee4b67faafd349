//! The phase `wait-control-plane` of `init`: waits until the components are healthy.

use std::time::Duration;

use bootstrap_core::{
    constants::{CONTROLLER_MANAGER_PORT, SCHEDULER_PORT},
    endpoint,
    manifests::Component,
};

use super::context::Ctx;
use crate::{
    Error,
    containers::last_words_if_down,
    health::{Target, wait_for, wait_for_kubelet},
    node::Node,
    phase::{Outcome, Phase},
};

pub(super) const PHASE: Phase<Ctx> = Phase {
    name: "wait-control-plane",
    about: "Wait for the control plane to start",
    run: |ctx| {
        Box::pin(async {
            if ctx.node.dry_run {
                return Ok(Outcome::skipped("dry run"));
            }
            let patience = ctx.node.timeouts().kubelet_health_check.unwrap_or_default().to_std();
            wait_for_kubelet(patience, || ctx.node.service.last_words()).await?;
            wait_for_control_plane(&ctx.node).await?;
            let names = control_plane_targets(&ctx.node).into_iter().map(|t| t.name.to_owned());
            Ok(Outcome::Waited(std::iter::once("kubelet".to_owned()).chain(names).collect()))
        })
    },
};

/// Returns the health endpoints of this machine's control plane components.
pub fn control_plane_targets(node: &Node) -> Vec<Target> {
    let loopback = if node.config.init.local_api_endpoint.advertise_address.contains(':') {
        "[::1]"
    } else {
        "127.0.0.1"
    };
    vec![
        Target {
            name: "kube-apiserver",
            server: endpoint::local_url(&node.config.init.local_api_endpoint),
            path: "/livez",
        },
        Target {
            name: "kube-controller-manager",
            server: format!("https://{loopback}:{CONTROLLER_MANAGER_PORT}"),
            path: "/healthz",
        },
        Target {
            name: "kube-scheduler",
            server: format!("https://{loopback}:{SCHEDULER_PORT}"),
            path: "/livez",
        },
    ]
}

/// Waits for all components in parallel. The error is the first component that does not start, with the other
/// components that are down: an API server may fail only because etcd does.
pub async fn wait_for_control_plane(node: &Node) -> Result<(), Error> {
    let patience: Duration =
        node.timeouts().control_plane_component_health_check.unwrap_or_default().to_std();
    let targets = control_plane_targets(node);
    let containers = node.containers.as_ref();
    let waits = targets.iter().map(|target| wait_for(target, patience, containers));
    let mut error = match futures_util::future::try_join_all(waits).await {
        Ok(_) => return Ok(()),
        Err(error) => error,
    };
    if let Error::NotUp { what, cause, .. } = &mut error {
        let written = |c: &&Component| node.layout.manifests().join(c.file()).exists();
        for component in [Component::Etcd].iter().chain(&Component::CONTROL_PLANE).filter(written) {
            let name = component.name();
            if name != what
                && let Some(words) = last_words_if_down(containers, name).await
            {
                cause.push_str(&format!("\n{name} does not run either: {words}"));
            }
        }
    }
    Err(error)
}
