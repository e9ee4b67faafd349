//! Scaling groups and their dependent resources.

use api_meta::{GoDuration, ParseDurationError, Tree as _};
use kops_api::Object;
use serde_json::Value;

use super::{
    balancer,
    context::{Context, owned, pairs, text_at},
    graph::Model,
    names, template,
};
use crate::{
    aws::{
        Balancer, ClassicBalancer, Distribution, HealthCheck, Kind, LifecycleHook, Ref,
        ScalingGroup, Tags, TargetGroup, WarmPool,
    },
    complete::overlay,
    error::Error,
    model::queries::taint_labels,
};

/// The metrics of a group, and those of a group with a warm pool.
const METRICS: [&str; 8] = [
    "GroupDesiredCapacity",
    "GroupInServiceInstances",
    "GroupMaxSize",
    "GroupMinSize",
    "GroupPendingInstances",
    "GroupStandbyInstances",
    "GroupTerminatingInstances",
    "GroupTotalInstances",
];
const WARM_METRICS: [&str; 8] = [
    "GroupAndWarmPoolDesiredCapacity",
    "GroupAndWarmPoolTotalCapacity",
    "WarmPoolDesiredCapacity",
    "WarmPoolMinSize",
    "WarmPoolPendingCapacity",
    "WarmPoolTerminatingCapacity",
    "WarmPoolTotalCapacity",
    "WarmPoolWarmedCapacity",
];
/// The time for a warm pool's machine to report that it is ready, in seconds.
const WARMING_TIMEOUT: i64 = 600;

pub(super) fn add(context: &Context<'_>, model: &mut Model) -> Result<(), Error> {
    // Karpenter creates its own machines.
    for group in context.groups.iter().filter(|one| one.spec.text("manager") != "Karpenter") {
        let name = names::scaling_group(context.name, group);
        let tags = tags(context, group, &name);
        let template = template::add(context, model, group, &name, tags.clone())?;
        let body = scaling_group(context, model, group, template)?;
        let to = model.add(name, tags, body);
        add_warming(context, model, group, to);
    }
    Ok(())
}

impl Context<'_> {
    /// Returns a group's warm pool: its own settings override the cluster's. The cluster's do not apply to control
    /// planes and bastions.
    pub(super) fn warm_pool(&self, group: &Object) -> Option<Value> {
        let role = group.spec.text("role");
        let cluster = self.spec.opt_at("cloudProvider.aws.warmPool");
        let cluster = cluster.filter(|_| role != "ControlPlane" && role != "Bastion");
        let mut pool = cluster.cloned().unwrap_or(Value::Null);
        let own = group.spec.at("warmPool");
        overlay(&mut pool, own);
        Some(pool).filter(|pool| !pool.is_null() && pool.opt_int("maxSize") != Some(0))
    }
}

/// Returns the tags of a group and of its machines. The cluster autoscaler reads the properties of a future Node from
/// them.
fn tags(context: &Context<'_>, group: &Object, name: &str) -> Tags {
    let mut tags = context.tags(name, false);
    tags.extend(pairs(group.spec.opt_at("cloudLabels")));
    if context.has_termination_queue() {
        let tag = context.spec.text("cloudProvider.aws.nodeTerminationHandler.managedASGTag");
        if !tag.is_empty() {
            tags.entry(tag.to_owned()).or_default();
        }
    }
    for (key, value) in pairs(group.spec.opt_at("kubelet.nodeLabels")) {
        tags.insert(format!("k8s.io/cluster-autoscaler/node-template/label/{key}"), value);
    }
    tags.extend(taint_labels(group));
    let roles: &[&str] = match group.spec.text("role") {
        "ControlPlane" => &["master", "control-plane"],
        "APIServer" => &["apiserver"],
        "Bastion" => &["bastion"],
        _ => &["node"],
    };
    for role in roles {
        tags.insert(format!("k8s.io/role/{role}"), "1".to_owned());
    }
    tags.insert("kops.k8s.io/instancegroup".to_owned(), group.name().to_owned());
    tags.insert("Name".to_owned(), name.to_owned());
    tags
}

fn scaling_group(
    context: &Context<'_>,
    model: &mut Model,
    group: &Object,
    template: Ref,
) -> Result<ScalingGroup, Error> {
    let spec = &group.spec;
    let role = spec.text("role");
    let (mut balancers, mut target_groups) = (Vec::new(), balancer::target_groups(context, role));
    if ["ControlPlane", "APIServer"].contains(&role) && context.network_balancer() == Some(false) {
        balancers.push(Ref::new(Kind::ClassicBalancer, format!("api.{}", context.name)));
    }
    for balancer in spec.items("externalLoadBalancers") {
        balancers.extend(
            text_at(balancer, "loadBalancerName").map(|name| existing_balancer(model, &name)),
        );
        if let Some(arn) = text_at(balancer, "targetGroupARN") {
            target_groups.push(existing_target_group(context, model, &arn)?);
        }
    }
    let default = if role == "Node" { 2 } else { 1 };
    let pool = context.warm_pool(group);
    let mut metrics = METRICS.to_vec();
    if pool.is_some() {
        metrics.extend(WARM_METRICS);
        metrics.sort_unstable();
    }
    let subnets = context.subnets_of(group)?;
    Ok(ScalingGroup {
        role: match role {
            "ControlPlane" => "master".to_owned(),
            role => role.to_lowercase(),
        },
        template,
        min: spec.opt_int("minSize").unwrap_or(default),
        max: spec.opt_int("maxSize").unwrap_or(default),
        subnets: subnets.into_iter().map(|one| context.subnet(one.text("name"))).collect(),
        metrics: owned(metrics),
        suspended: owned(spec.texts("suspendProcesses")),
        protected: spec.flag("instanceProtection"),
        balancers,
        target_groups,
        lifetime: match spec.text("maxInstanceLifetime") {
            "" => 0,
            text => {
                let wrong = |e: ParseDurationError| {
                    Error::value("spec.maxInstanceLifetime", text, e.to_string())
                };
                text.parse::<GoDuration>().map_err(wrong)?.nanos() / 1_000_000_000
            }
        },
        rebalanced: spec.opt_flag("capacityRebalance"),
        mixed: mixed(group),
        warm_pool: pool
            .map(|pool| WarmPool { min: pool.int("minSize"), max: pool.opt_int("maxSize") }),
    })
}

fn mixed(group: &Object) -> Option<Distribution> {
    let spec = group.spec.opt_at("mixedInstancesPolicy")?;
    Some(Distribution {
        types: owned(spec.texts("instances")),
        on_demand_above_base: spec.opt_int("onDemandAboveBase"),
        on_demand_base: spec.opt_int("onDemandBase"),
        on_demand_strategy: text_at(spec, "onDemandAllocationStrategy"),
        spot_strategy: text_at(spec, "spotAllocationStrategy"),
        spot_pools: spec.opt_int("spotInstancePools"),
        spot_price: group.spec.text("maxPrice").to_owned(),
    })
}

fn existing_balancer(model: &mut Model, name: &str) -> Ref {
    let body = Balancer {
        short: name.to_owned(),
        internal: false,
        dual_stack: false,
        subnets: Vec::new(),
        security_groups: Vec::new(),
        cross_zone: false,
        log: None,
        certificate: None,
        idle_timeout: 0,
    };
    model.add_existing(name, name, ClassicBalancer(body))
}

fn existing_target_group(
    context: &Context<'_>,
    model: &mut Model,
    arn: &str,
) -> Result<Ref, Error> {
    let mut parts = arn.rsplit(':').next().unwrap_or_default().split('/');
    let (Some("targetgroup"), Some(name), Some(_), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        let field = "spec.externalLoadBalancers[].targetGroupARN";
        return Err(Error::value(field, arn, "is not the ARN of a target group"));
    };
    let health = HealthCheck { protocol: "TCP", path: None };
    let body = TargetGroup { vpc: context.vpc(), port: 0, protocol: "TCP", health };
    Ok(model.add_existing(name, arn, body))
}

/// Adds the lifecycle hook by which a warm pool's machine reports that it may be stopped.
fn add_warming(context: &Context<'_>, model: &mut Model, group: &Object, to: Ref) {
    let Some(pool) = context.warm_pool(group).filter(|pool| pool.flag("enableLifecycleHook"))
    else {
        return;
    };
    let name = format!("kops-warmpool-{}", group.name());
    let body = LifecycleHook {
        group: to,
        hook: "kops-warmpool".to_owned(),
        result: "ABANDON".to_owned(),
        heartbeat: pool.opt_int("lifecycleHookTimeout").unwrap_or(WARMING_TIMEOUT),
        transition: "autoscaling:EC2_INSTANCE_LAUNCHING".to_owned(),
    };
    model.add(name, Tags::new(), body);
}
