//! The phase `remove-etcd-member` of `reset`.

use api_meta::Tree as _;

use super::context::Ctx;
use crate::{
    Error, cluster,
    etcd::{self, Etcd},
    phase::{Outcome, Phase},
};

pub(super) const PHASE: Phase<Ctx> = Phase {
    name: "remove-etcd-member",
    about: "Remove this machine's member from etcd",
    run: |ctx| {
        Box::pin(async {
            let manifest = ctx.node.layout.manifests().join("etcd.yaml");
            if !manifest.exists() {
                return Ok(Outcome::skipped("no etcd runs on this machine"));
            }
            if ctx.node.dry_run {
                return Ok(Outcome::skipped("dry run"));
            }
            match remove(ctx).await {
                Ok(why) => Ok(why),
                Err(e) => {
                    tracing::warn!(
                        "this machine's etcd member stays in the cluster's list: {e}; remove it with etcdctl member \
                         remove"
                    );
                    Ok(Outcome::skipped(e.to_string()))
                }
            }
        })
    },
};

async fn remove(ctx: &mut Ctx) -> Result<Outcome, Error> {
    // Do not retry: an unreachable cluster must not delay a reset.
    let client = match ctx.node.existing_client() {
        Some(client) => client,
        None => cluster::client(&ctx.node.layout.kubeconfig("admin.conf"))?,
    };
    let manifest =
        std::fs::read_to_string(ctx.node.layout.manifests().join("etcd.yaml")).unwrap_or_default();
    let pod = api_config::yaml::parse(&manifest)?;
    let own =
        pod.annotation("kubeadm.kubernetes.io/etcd.advertise-client-urls").unwrap_or_default();
    let endpoints: Vec<String> =
        etcd::endpoints(&client).await?.into_iter().filter(|e| e != own).collect();
    if endpoints.is_empty() {
        return Ok(Outcome::skipped("this is the only member; the cluster's data goes with it"));
    }
    let patience = ctx.node.timeouts().etcd_api_call.unwrap_or_default().to_std();
    let cluster = Etcd::new(&endpoints, &ctx.node.layout)?;
    let host = own.trim_start_matches("https://").rsplit_once(':').map_or("", |(host, _)| host);
    let peer = etcd::peer_url(host.trim_matches(['[', ']']));
    match cluster.members().await?.into_iter().find(|m| m.peer_urls.contains(&peer)) {
        Some(member) => {
            cluster.remove(&member.id, patience).await?;
            Ok(Outcome::done())
        }
        None => Ok(Outcome::skipped("this machine is not a member any more")),
    }
}
