//! The phases `addon` of `upgrade`: upgrades CoreDNS and kube-proxy once all control planes are upgraded, and keeps
//! what users have changed.

use api_meta::Tree as _;
use bootstrap_core::{
    addons, images,
    upgrade::{PROGRAM, first_image},
};
use client::{Client, Resource};
use serde_json::Value;

use super::{
    cluster_state::not_upgraded,
    context::Ctx,
    corefile::{Corefile, deployment},
};
use crate::{
    Error,
    cluster::{get, is_conflict},
    init::kube_proxy,
    phase::{Outcome, Phase},
    preflight,
};

const PROXY: &str = "kube-proxy";
/// The number of DNS replicas for a Deployment without the field.
const REPLICAS: u64 = 2;
/// The number of attempts for a Corefile that changes while it is migrated.
const ATTEMPTS: usize = 5;

pub(super) const PHASES: [Phase<Ctx>; 2] = [
    Phase {
        name: "addon/coredns",
        about: "Upgrade the CoreDNS addon",
        run: |ctx| {
            Box::pin(async {
                if ctx.node.config.cluster.dns.disabled {
                    return Ok(Outcome::skipped("dns.disabled is set"));
                }
                if let Some(skipped) = skip_reason(ctx).await? {
                    return Ok(skipped);
                }
                let client = ctx.node.client().await?;
                let Some(current) = deployment(ctx, &client).await? else {
                    return Ok(Outcome::skipped("CoreDNS is not installed"));
                };
                for _ in 1..ATTEMPTS {
                    match upgrade_coredns(ctx, &client, &current).await {
                        Err(error) if is_conflict(&error) => {}
                        result => return result.map(|()| Outcome::done()),
                    }
                }
                upgrade_coredns(ctx, &client, &current).await.map(|()| Outcome::done())
            })
        },
    },
    Phase {
        name: "addon/kube-proxy",
        about: "Upgrade the kube-proxy addon",
        run: |ctx| {
            Box::pin(async {
                if ctx.node.config.cluster.proxy.disabled {
                    return Ok(Outcome::skipped("proxy.disabled is set"));
                }
                if let Some(skipped) = skip_reason(ctx).await? {
                    return Ok(skipped);
                }
                let client = ctx.node.client().await?;
                if get(&client, &Resource::DAEMON_SETS, "kube-system", PROXY).await?.is_none() {
                    return Ok(Outcome::skipped("kube-proxy is not installed"));
                }
                let mut objects = kube_proxy(&ctx.node)?;
                for object in objects.iter_mut().filter(|object| object["kind"] == "DaemonSet") {
                    mark(object, ctx.program.as_deref());
                }
                ctx.node.apply_all(objects).await?;
                Ok(Outcome::done())
            })
        },
    },
];

/// Upgrades CoreDNS. Fails with a conflict if its Corefile, which is checked again, changes meanwhile.
async fn upgrade_coredns(ctx: &mut Ctx, client: &Client, current: &Value) -> Result<(), Error> {
    let replicas = current.at("spec.replicas").as_u64().unwrap_or(REPLICAS) as u32;
    let mut objects = addons::coredns(&ctx.node.config.cluster, replicas)?;
    let corefile = Corefile::read(ctx, client).await?;
    corefile.report();
    preflight::check(vec![corefile.check()], &ctx.ignored)?;
    corefile.keep(&mut objects);
    for object in objects.iter_mut().filter(|object| object["kind"] == "Deployment") {
        keep_resources(object, current);
        mark(object, ctx.program.as_deref());
        *object = ctx.node.patches.apply("corednsdeployment", object.take())?;
    }
    ctx.node.apply_all(objects).await
}

/// Returns the outcome of a phase that leaves the add-ons unchanged: on a worker, or while a control plane is older,
/// because newer add-ons may need the newer API.
async fn skip_reason(ctx: &mut Ctx) -> Result<Option<Outcome>, Error> {
    if !ctx.is_control_plane() {
        return Ok(Some(Outcome::skipped("not a control plane node")));
    }
    let client = ctx.node.client().await?;
    let tag = images::version_tag(&ctx.node.config.cluster.kubernetes_version);
    let left = if ctx.node.dry_run { Vec::new() } else { not_upgraded(&client, &tag).await? };
    if left.is_empty() {
        return Ok(None);
    }
    println!(
        "[upgrade/addon] Skipping upgrade of addons because control plane instances {left:?} have not been upgraded"
    );
    Ok(Some(Outcome::skipped("other control planes have not been upgraded")))
}

/// Keeps the resources that a user has given to the containers of a Deployment.
fn keep_resources(new: &mut Value, current: &Value) {
    let current = current.items("spec.template.spec.containers");
    for container in new.items_mut("spec.template.spec.containers") {
        let same = current.iter().find(|other| other["name"] == container["name"]);
        if let Some(resources) = same.and_then(|other| other.get("resources")) {
            container.put("resources", resources.clone());
        }
    }
}

/// Marks the Pods of our own images, so that a new binary restarts them.
fn mark(workload: &mut Value, program: Option<&str>) {
    let image = first_image(workload.at("spec.template"));
    if let Some(program) = program.filter(|_| images::is_own(image)) {
        workload.put(&["spec", "template", "metadata", "annotations", PROGRAM], program);
    }
}

#[cfg(test)]
mod tests {
    use api_config::kubeadm::ClusterConfiguration;
    use bootstrap_core::config::{Facts, default_cluster};
    use serde_json::json;

    use super::*;

    fn objects() -> Vec<Value> {
        let mut cluster = ClusterConfiguration::default();
        default_cluster(&mut cluster, &Facts::default());
        addons::coredns(&cluster, 3).unwrap()
    }

    #[test]
    fn keeps_resources_of_a_user() {
        let mut all = objects();
        let new = all.iter_mut().find(|object| object["kind"] == "Deployment").unwrap();
        let mut current = new.clone();
        let limits = json!({"limits": {"memory": "512Mi"}});
        current["spec"]["template"]["spec"]["containers"][0]["resources"] = limits.clone();
        keep_resources(new, &current);
        assert_eq!(new["spec"]["template"]["spec"]["containers"][0]["resources"], limits);
        mark(new, Some("digest"));
        assert!(new["spec"]["template"]["metadata"].get("annotations").is_none());
    }
}
