//! The phase `preflight` of `join`.

use super::{context::Ctx, kubelet::reject_taken_name};
use crate::{
    JoinError,
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
            let cluster = ctx.discover().await?;
            reject_taken_name(&cluster.client, &ctx.join.node_registration.name).await?;
            preflight::check(preflight::for_cluster(&ctx.node), &ctx.ignored)?;
            if !as_control_plane {
                preflight::ensure_node_images(&ctx.node, &ctx.ignored).await?;
                return Ok(Outcome::done());
            }
            if ctx.node.config.cluster.control_plane_endpoint.is_empty() {
                return Err(JoinError::NoEndpoint.into());
            }
            if ctx.node.config.cluster.etcd.embedded.is_some() {
                return Err(JoinError::EmbeddedStore.into());
            }
            preflight::ensure_images(&ctx.node, &ctx.ignored).await?;
            Ok(Outcome::done())
        })
    },
};
