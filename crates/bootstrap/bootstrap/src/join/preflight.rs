//! The phase `preflight` of `join`.

use super::{Ctx, kubelet::refuse_taken_name};
use crate::{
    Error,
    phase::{Outcome, PREFLIGHT, Phase},
    preflight,
};

pub(super) const PHASE: Phase<Ctx> = Phase {
    name: PREFLIGHT,
    about: "Check whether this machine can join, and find the cluster",
    run: |ctx| {
        Box::pin(async {
            let as_control_plane = ctx.is_control_plane();
            preflight::check(preflight::for_join(&ctx.node, as_control_plane), &ctx.ignored)?;
            preflight::check_runtime(&ctx.node, &ctx.ignored).await?;
            let found = ctx.found().await?;
            refuse_taken_name(&found.client, &ctx.join.node_registration.name).await?;
            let balancer = preflight::for_balancer(&ctx.node).into_iter().collect();
            preflight::check(balancer, &ctx.ignored)?;
            if !as_control_plane {
                preflight::bring_node_images(&ctx.node, &ctx.ignored).await?;
                return Ok(Outcome::done());
            }
            if ctx.node.config.cluster.control_plane_endpoint.is_empty() {
                return Err(Error::Usage(
                    "unable to add a new control plane instance to a cluster that doesn't have a stable \
                     controlPlaneEndpoint address; please ensure that: * The cluster has a stable controlPlaneEndpoint \
                     address (kubeadm-config)"
                        .to_owned(),
                ));
            }
            if ctx.node.config.cluster.etcd.embedded.is_some() {
                return Err(Error::Usage(
                    "this cluster keeps its objects in a store of its first control plane's own, which cannot have a \
                     second; move it to etcd first (windlass store copy)"
                        .to_owned(),
                ));
            }
            preflight::bring_images(&ctx.node, &ctx.ignored).await?;
            Ok(Outcome::done())
        })
    },
};
