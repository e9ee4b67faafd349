//! The phases `addon` of `init`: install CoreDNS and kube-proxy.

use api_meta::Tree as _;
use bootstrap_core::{addons, endpoint};
use client::Resource;
use serde_json::Value;

use super::context::Ctx;
use crate::{
    Error,
    cluster::get,
    node::Node,
    phase::{Outcome, Phase},
};

/// The number of DNS replicas in a new cluster.
const REPLICAS: u32 = 2;

pub(super) const PHASES: [Phase<Ctx>; 2] = [
    Phase {
        name: "addon/coredns",
        about: "Install cluster DNS",
        run: |ctx| {
            Box::pin(async {
                let node = &mut ctx.node;
                if node.config.cluster.dns.disabled {
                    return Ok(Outcome::skipped("dns.disabled is set"));
                }
                // A replica count that a user chose is kept.
                let replicas = if node.dry_run || node.print_only {
                    REPLICAS
                } else {
                    let client = node.client().await?;
                    let there =
                        get(&client, &Resource::DEPLOYMENTS, "kube-system", "coredns").await?;
                    there
                        .and_then(|d| d.at("spec.replicas").as_u64())
                        .map_or(REPLICAS, |n| n as u32)
                };
                let mut objects = addons::coredns(&node.config.cluster, replicas)?;
                for object in objects.iter_mut().filter(|o| o["kind"] == "Deployment") {
                    *object = node.patches.apply("corednsdeployment", object.take())?;
                }
                node.apply_all(objects).await?;
                Ok(Outcome::done())
            })
        },
    },
    Phase {
        name: "addon/kube-proxy",
        about: "Install kube-proxy",
        run: |ctx| {
            Box::pin(async {
                let node = &mut ctx.node;
                if node.config.cluster.proxy.disabled {
                    return Ok(Outcome::skipped("proxy.disabled is set"));
                }
                let objects = kube_proxy(node)?;
                node.apply_all(objects).await?;
                Ok(Outcome::done())
            })
        },
    },
];

/// Returns the objects of kube-proxy.
pub(crate) fn kube_proxy(node: &Node) -> Result<Vec<Value>, Error> {
    let config = &node.config;
    let api = endpoint::of_node(&config.cluster, &config.init.local_api_endpoint);
    Ok(addons::kube_proxy(
        &config.cluster,
        &config.proxy,
        config.custom_proxy,
        api,
        &node.proxy_env,
    )?)
}
