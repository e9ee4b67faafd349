//! Scaling groups and their machines.

use api_meta::Tree as _;
use serde_json::{Value, json};

use super::{
    family::*,
    fields::{fields, id, id_list, is_owned, put_tags, sorted, tag_pairs, tags},
};

/// The most scaling groups in one page, AWS' limit.
const PAGE: i64 = 100;

/// Returns a call of the scaling API.
pub(super) fn autoscaling(operation: &'static str, parameters: Value) -> Call {
    Call::new("autoscaling", operation, parameters)
}

/// Returns the scaling groups in the answers.
pub(super) fn items(answers: &Answers) -> impl Iterator<Item = &Value> {
    answers.each("DescribeAutoScalingGroups", "AutoScalingGroups")
}

/// Returns the scaling groups that are not being deleted. A group keeps its name until its deletion is complete.
pub(super) fn present(answers: &Answers) -> impl Iterator<Item = &Value> {
    items(answers).filter(|item| item.text("Status").is_empty())
}

/// A scaling group.
#[derive(Clone, Debug)]
pub struct ScalingGroup {
    /// `master`, `node`, `apiserver` or `bastion`.
    pub role: String,
    /// The launch template.
    pub template: Ref,
    /// The smallest size.
    pub min: i64,
    /// The largest size.
    pub max: i64,
    /// The subnets.
    pub subnets: Vec<Ref>,
    /// The enabled metrics.
    pub metrics: Vec<String>,
    /// The suspended processes.
    pub suspended: Vec<String>,
    /// `true` to protect machines from scale-in.
    pub protected: bool,
    /// The classic load balancers.
    pub balancers: Vec<Ref>,
    /// The target groups.
    pub target_groups: Vec<Ref>,
    /// The longest lifetime of a machine in seconds; zero for none.
    pub lifetime: i64,
    /// `Some` to enable or disable capacity rebalancing.
    pub rebalanced: Option<bool>,
    /// The mixture of machine types; `None` for the template's type.
    pub mixed: Option<Distribution>,
    /// The warm pool.
    pub warm_pool: Option<WarmPool>,
}

/// The mixture of a group's machine types and purchase options.
#[derive(Clone, Debug, Default)]
pub struct Distribution {
    /// The machine types, in order of preference.
    pub types: Vec<String>,
    /// The percentage of on-demand machines above the base.
    pub on_demand_above_base: Option<i64>,
    /// The number of on-demand machines in the base.
    pub on_demand_base: Option<i64>,
    /// The allocation strategy of on-demand machines.
    pub on_demand_strategy: Option<String>,
    /// The allocation strategy of spot machines.
    pub spot_strategy: Option<String>,
    /// The number of spot pools.
    pub spot_pools: Option<i64>,
    /// The highest spot price; empty for the on-demand price.
    pub spot_price: String,
}

/// A pool of stopped machines that start when needed.
#[derive(Clone, Debug)]
pub struct WarmPool {
    /// The smallest size.
    pub min: i64,
    /// The largest size; `None` for the group's.
    pub max: Option<i64>,
}

impl Operations for ScalingGroup {
    fn queries(scope: &Scope, _answers: &Answers) -> Vec<Call> {
        let tag = format!("tag:kubernetes.io/cluster/{}", scope.cluster);
        let filters = json!([{"Name": tag, "Values": ["owned", "shared"]}]);
        let request = json!({"Filters": filters, "MaxRecords": PAGE});
        vec![autoscaling("DescribeAutoScalingGroups", request)]
    }

    fn find_existing(scope: &Scope, answers: &Answers) -> Vec<IdentifiedResource> {
        let found = present(answers).map(|item| {
            let name = item.text("AutoScalingGroupName").to_owned();
            let tags = tags(item.items("Tags"));
            let mut fields = existing_fields(item);
            put_tags(&mut fields, &tags);
            let owned = is_owned(&tags, &scope.cluster);
            let context = String::new();
            (name.clone(), ExistingResource { id: name, fields, owned, context })
        });
        found.collect()
    }

    fn delete(_identity: &str, found: &ExistingResource) -> Vec<Call> {
        let request = json!({"AutoScalingGroupName": found.id, "ForceDelete": true});
        vec![autoscaling("DeleteAutoScalingGroup", request)]
    }

    fn refs(&self) -> Vec<&Ref> {
        let balancers = self.balancers.iter().chain(&self.target_groups);
        balancers.chain(&self.subnets).chain([&self.template]).collect()
    }

    fn direct_limit(&self) -> Option<Limit> {
        if self.warm_pool.is_some() {
            return Some(Limit { feature: "a warm pool", remedy: "take spec.warmPool out" });
        }
        let remedy = "name target groups in spec.externalLoadBalancers";
        let limit = Limit { feature: "a classic load balancer", remedy };
        (!self.balancers.is_empty()).then_some(limit)
    }

    fn desired_fields(&self, _own: &Header<'_>, ids: &Ids) -> Fields {
        let mut all = fields([
            ("MinSize", self.min.to_string()),
            ("MaxSize", self.max.to_string()),
            ("Subnets", id_list(ids, &self.subnets)),
            ("Template", mixture_text(&id(ids, &self.template), self.mixed.as_ref())),
            ("Metrics", sorted(self.metrics.clone())),
            ("Suspended", sorted(self.suspended.clone())),
            ("Protected", self.protected.to_string()),
            ("TargetGroups", id_list(ids, &self.target_groups)),
            ("Lifetime", self.lifetime.to_string()),
        ]);
        all.extend(self.rebalanced.map(|flag| ("Rebalanced".to_owned(), flag.to_string())));
        all
    }

    fn create(&self, own: &Header<'_>, ids: &Ids) -> Result<Creation, Error> {
        let mut request = self.request(own.name, ids);
        request.put("Tags", group_tags(own.name, own.tags));
        if !self.target_groups.is_empty() {
            let arns: Vec<_> = self.target_groups.iter().map(|to| id(ids, to)).collect();
            request.put("TargetGroupARNs", arns);
        }
        let call = autoscaling("CreateAutoScalingGroup", request);
        let suspended = (!self.suspended.is_empty()).then_some("Suspended");
        Ok(Creation::new(call, IdSource::Name).with_later(["Metrics"].into_iter().chain(suspended)))
    }

    fn change(&self, update: &Update<'_>) -> Result<Vec<Call>, Error> {
        let name = update.own.name;
        let mut calls = Vec::new();
        let separate = ["Metrics", "Suspended", "TargetGroups"];
        if update.fields.iter().any(|field| !separate.contains(field)) {
            calls.push(autoscaling("UpdateAutoScalingGroup", self.request(name, update.ids)));
        }
        if update.has("Metrics") {
            let request = json!({"AutoScalingGroupName": name, "Granularity": "1Minute", "Metrics": self.metrics});
            calls.push(autoscaling("EnableMetricsCollection", request));
        }
        if update.has("Suspended") {
            let change = ListChange::new(update, "Suspended", &self.suspended);
            for (operation, processes) in
                [("ResumeProcesses", change.removed), ("SuspendProcesses", change.added)]
            {
                if !processes.is_empty() {
                    let request =
                        json!({"AutoScalingGroupName": name, "ScalingProcesses": processes});
                    calls.push(autoscaling(operation, request));
                }
            }
        }
        if update.has("TargetGroups") {
            let arns: Vec<_> = self.target_groups.iter().map(|to| id(update.ids, to)).collect();
            let change = ListChange::new(update, "TargetGroups", &arns);
            for (operation, arns) in [
                ("AttachLoadBalancerTargetGroups", change.added),
                ("DetachLoadBalancerTargetGroups", change.removed),
            ] {
                if !arns.is_empty() {
                    let request = json!({"AutoScalingGroupName": name, "TargetGroupARNs": arns});
                    calls.push(autoscaling(operation, request));
                }
            }
        }
        Ok(calls)
    }

    fn set_tags(&self, id: &str, tags: &Tags) -> Call {
        autoscaling("CreateOrUpdateTags", json!({"Tags": group_tags(id, tags)}))
    }

    fn terraform(&self, own: &Header<'_>, writer: &mut Writer<'_>) -> Result<Block, Error> {
        let mut block = Block::default();
        block.opt_value("capacity_rebalance", self.rebalanced.map(Expr::flag));
        block.value("enabled_metrics", Expr::texts(&self.metrics));
        let (id, version) = (
            writer.property(&self.template, "id"),
            writer.property(&self.template, "latest_version"),
        );
        match &self.mixed {
            Some(mixed) => {
                block.block("mixed_instances_policy", mixture_block(mixed, id, version));
            }
            None => {
                let mut template = Block::default();
                template.value("id", id).value("version", version);
                block.block("launch_template", template);
            }
        }
        block.list("load_balancers", writer.sorted_links(&self.balancers));
        block.list("target_group_arns", writer.sorted_links(&self.target_groups));
        block.int("max_instance_lifetime", self.lifetime);
        block.int("max_size", self.max).int("min_size", self.min);
        block.text("metrics_granularity", "1Minute").text("name", own.name);
        block.flag("protect_from_scale_in", self.protected);
        block.list("suspended_processes", self.suspended.iter().map(Expr::text).collect());
        let tags = own.tags.iter().map(|(key, value)| {
            let mut tag = Block::default();
            tag.text("key", key).flag("propagate_at_launch", true).text("value", value);
            tag
        });
        block.blocks("tag", tags.collect());
        block.list("vpc_zone_identifier", writer.links(&self.subnets));
        if let Some(pool) = &self.warm_pool {
            let mut inner = Block::default();
            inner.opt_value("max_group_prepared_capacity", pool.max.map(Expr::int));
            inner.int("min_size", pool.min);
            block.block("warm_pool", inner);
        }
        Ok(block)
    }
}

/// A change of a list of texts.
struct ListChange {
    removed: Vec<String>,
    added: Vec<String>,
}

impl ListChange {
    /// Compares an existing field with the desired items.
    fn new(update: &Update<'_>, field: &str, desired: &[String]) -> Self {
        let old = update.found.fields.get(field).map_or("", String::as_str);
        let old: Vec<&str> = old.split(',').filter(|item| !item.is_empty()).collect();
        let removed = old.iter().filter(|item| !desired.iter().any(|new| new == **item));
        let added = desired.iter().filter(|item| !old.contains(&item.as_str()));
        Self {
            removed: removed.map(|&item| item.to_owned()).collect(),
            added: added.cloned().collect(),
        }
    }
}

/// Returns the tags of a scaling group, which its machines inherit.
fn group_tags(name: &str, tags: &Tags) -> Vec<Value> {
    let mut all = tag_pairs(tags);
    for tag in &mut all {
        tag.put("ResourceId", name);
        tag.put("ResourceType", "auto-scaling-group");
        tag.put("PropagateAtLaunch", true);
    }
    all
}

impl ScalingGroup {
    /// Returns the parameters shared by the creation and the update.
    fn request(&self, name: &str, ids: &Ids) -> Value {
        let subnets: Vec<_> = self.subnets.iter().map(|to| id(ids, to)).collect();
        let template = json!({"LaunchTemplateId": id(ids, &self.template), "Version": "$Latest"});
        let mut request = json!({
            "AutoScalingGroupName": name,
            "MinSize": self.min,
            "MaxSize": self.max,
            "VPCZoneIdentifier": subnets.join(","),
            "NewInstancesProtectedFromScaleIn": self.protected,
            "MaxInstanceLifetime": self.lifetime,
            "CapacityRebalance": self.rebalanced,
        });
        match &self.mixed {
            None => request.put("LaunchTemplate", template),
            Some(mixed) => {
                let types: Vec<_> =
                    mixed.types.iter().map(|name| json!({"InstanceType": name})).collect();
                let policy = json!({
                    "LaunchTemplate": {"LaunchTemplateSpecification": template, "Overrides": types},
                    "InstancesDistribution": {
                        "OnDemandBaseCapacity": mixed.on_demand_base,
                        "OnDemandPercentageAboveBaseCapacity": mixed.on_demand_above_base,
                        "OnDemandAllocationStrategy": mixed.on_demand_strategy,
                        "SpotAllocationStrategy": mixed.spot_strategy,
                        "SpotInstancePools": mixed.spot_pools,
                        "SpotMaxPrice": mixed.spot_price,
                    },
                });
                request.put("MixedInstancesPolicy", policy);
            }
        }
        request
    }
}

/// Returns the template and the instance mixture of a group as one text.
fn mixture_text(template: &str, mixed: Option<&Distribution>) -> String {
    let Some(mixed) = mixed else { return template.to_owned() };
    let number = |number: Option<i64>| number.map(|n| n.to_string()).unwrap_or_default();
    let text_or_empty = |text: &Option<String>| text.clone().unwrap_or_default();
    [
        template.to_owned(),
        mixed.types.join(","),
        number(mixed.on_demand_base),
        number(mixed.on_demand_above_base),
        text_or_empty(&mixed.on_demand_strategy),
        text_or_empty(&mixed.spot_strategy),
        number(mixed.spot_pools),
        mixed.spot_price.clone(),
    ]
    .join(" ")
}

fn existing_mixture(one: &Value) -> String {
    let template = one.text(template_path(one)).to_owned();
    let Some(mixed) = one.get("MixedInstancesPolicy").filter(|mixed| mixed.is_object()) else {
        return template;
    };
    let types = mixed.items("LaunchTemplate.Overrides").iter().map(|one| one.text("InstanceType"));
    let types = types.collect::<Vec<_>>().join(",");
    let of = |member: &str| mixed.text(&format!("InstancesDistribution.{member}")).to_owned();
    [
        template,
        types,
        of("OnDemandBaseCapacity"),
        of("OnDemandPercentageAboveBaseCapacity"),
        of("OnDemandAllocationStrategy"),
        of("SpotAllocationStrategy"),
        of("SpotInstancePools"),
        of("SpotMaxPrice"),
    ]
    .join(" ")
}

fn existing_fields(one: &Value) -> Fields {
    let text = |path: &str| one.text(path).to_owned();
    let list = |path: &str, member: &str| {
        let texts = one.items(path).iter().map(|item| item.as_str().unwrap_or(item.text(member)));
        sorted(texts.map(str::to_owned).collect())
    };
    let subnets = one.text("VPCZoneIdentifier").split(',').map(|one| one.trim().to_owned());
    let lifetime = one.text("MaxInstanceLifetime");
    fields([
        ("MinSize", text("MinSize")),
        ("MaxSize", text("MaxSize")),
        ("Subnets", sorted(subnets.collect())),
        ("Template", existing_mixture(one)),
        ("Metrics", list("EnabledMetrics", "Metric")),
        ("Suspended", list("SuspendedProcesses", "ProcessName")),
        ("Protected", text("NewInstancesProtectedFromScaleIn")),
        ("TargetGroups", list("TargetGroupARNs", "")),
        ("Lifetime", if lifetime.is_empty() { "0".to_owned() } else { lifetime.to_owned() }),
        ("Rebalanced", text("CapacityRebalance")),
    ])
}

fn mixture_block(mixed: &Distribution, id: Expr, version: Expr) -> Block {
    let mut distribution = Block::default();
    for (field, number) in [
        ("on_demand_base_capacity", mixed.on_demand_base),
        ("on_demand_percentage_above_base_capacity", mixed.on_demand_above_base),
        ("spot_instance_pools", mixed.spot_pools),
    ] {
        distribution.opt_value(field, number.map(Expr::int));
    }
    for (field, strategy) in [
        ("on_demand_allocation_strategy", &mixed.on_demand_strategy),
        ("spot_allocation_strategy", &mixed.spot_strategy),
    ] {
        distribution.opt_value(field, strategy.as_ref().map(Expr::text));
    }
    distribution.text("spot_max_price", &mixed.spot_price);
    let (mut specification, mut template) = (Block::default(), Block::default());
    specification.value("launch_template_id", id).value("version", version);
    let overrides = mixed.types.iter().map(|name| {
        let mut one = Block::default();
        one.text("instance_type", name);
        one
    });
    template.block("launch_template_specification", specification);
    template.blocks("override", overrides.collect());
    let mut block = Block::default();
    block.block("instances_distribution", distribution).block("launch_template", template);
    block
}

/// Returns the path of the launch template's ID in a scaling group.
pub(super) fn template_path(one: &Value) -> &'static str {
    if one.has("MixedInstancesPolicy.LaunchTemplate") {
        "MixedInstancesPolicy.LaunchTemplate.LaunchTemplateSpecification.LaunchTemplateId"
    } else {
        "LaunchTemplate.LaunchTemplateId"
    }
}
