//! The phases of `join` that check etcd and add a member.

use std::time::Duration;

use bootstrap_core::manifests::Component;
use tokio::time::{Instant, sleep};

use super::context::Ctx;
use crate::{
    Error, JoinError,
    etcd::{self, Etcd},
    manifests,
    phase::{Outcome, Phase},
};

const POLL: Duration = Duration::from_millis(100);

pub(super) const CHECK: Phase<Ctx> = Phase {
    name: "check-etcd",
    about: "Check whether the cluster's etcd answers, before this machine joins it",
    run: |ctx| {
        Box::pin(async {
            if let Some(nothing) = ctx.skips_cluster() {
                return Ok(nothing);
            }
            ctx.discover().await?;
            if ctx.node.config.cluster.etcd.local.is_none() {
                return Ok(Outcome::skipped("the cluster's etcd is not run by this machine"));
            }
            let members = cluster_etcd(ctx).await?.members().await?;
            if members.is_empty() {
                return Err(JoinError::NoEtcdMembers.into());
            }
            Ok(Outcome::done())
        })
    },
};

pub(super) const JOIN: Phase<Ctx> = Phase {
    name: "etcd-join",
    about: "Add a member of etcd on this machine",
    run: |ctx| {
        Box::pin(async {
            if let Some(nothing) = ctx.skips_cluster() {
                return Ok(nothing);
            }
            ctx.discover().await?;
            let Some(local) = ctx.node.config.cluster.etcd.local.clone() else {
                return Ok(Outcome::skipped("the cluster has no local etcd"));
            };
            let patience = ctx.node.timeouts().etcd_api_call.unwrap_or_default().to_std();
            let peer = etcd::peer_url(&ctx.node.config.init.local_api_endpoint.advertise_address);
            let cluster = cluster_etcd(ctx).await?;
            let data = ctx.node.host.path(&local.data_dir);
            let is_new = !data.join("member").exists();
            manifests::make_data_dir(&data)?;
            if is_new {
                // A machine that has lost its data cannot continue as its old member.
                cluster.remove_lost(&peer, patience).await?;
            }
            // Add the member before starting its Pod: an etcd that is not a member would create a new cluster.
            let members = cluster.add_learner(ctx.node.name(), &peer, patience).await?;
            let touched = ctx.node.write_manifest(Component::Etcd, &members)?;
            cluster.promote(&peer, patience).await?;
            Ok(Outcome::Done(vec![touched]))
        })
    },
};

/// Returns a client of the running members. They are read through the cluster's endpoint, because this machine's own
/// API server waits for etcd.
async fn cluster_etcd(ctx: &mut Ctx) -> Result<Etcd, Error> {
    let client = ctx.node.client().await?;
    let patience = ctx.node.timeouts().etcd_api_call.unwrap_or_default().to_std();
    let until = Instant::now() + patience;
    // A new control plane serves the API shortly before its kubelet reports etcd's Pod.
    let endpoints = loop {
        let endpoints = etcd::endpoints(&client).await?;
        if !endpoints.is_empty() {
            break endpoints;
        }
        if Instant::now() >= until {
            return Err(Error::NotUp {
                what: "a Pod of etcd in the API".to_owned(),
                waited: format!("{}s", patience.as_secs()),
                cause: "no Pod of kube-system has the labels component=etcd,tier=control-plane; see whether the \
                    kubelets of the control planes are well (kubectl get nodes)"
                    .to_owned(),
            });
        }
        sleep(POLL).await;
    };
    Etcd::new(&endpoints, &ctx.node.layout)
}
