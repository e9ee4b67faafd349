//! Validates the arguments of scheduler plugins like upstream, and rejects settings that would have no effect here.

use std::time::Duration;

use api_config::scheduler::{PluginConfig, SCHEDULER_VERSION};
use api_meta::{ErrorList, FieldError, GoDuration, Path, validation};
use sched_core::{Candidates, FitScoring, NodeAffinityView, SpreadView};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

use crate::profile::Profile;

const NOT_ACTED_ON: &str = "is not acted on; leave it out";

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct DefaultPreemptionArgs {
    min_candidate_nodes_percentage: Option<i64>,
    min_candidate_nodes_absolute: Option<i64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct DynamicResourcesArgs {
    filter_timeout: Option<GoDuration>,
    binding_timeout: Option<GoDuration>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct InterPodAffinityArgs {
    hard_pod_affinity_weight: Option<i64>,
    ignore_preferred_terms_of_existing_pods: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct NodeAffinityArgs {
    added_affinity: Option<NodeAffinityView>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct BalancedAllocationArgs {
    resources: Option<Vec<ResourceSpec>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ResourceSpec {
    name: String,
    weight: i64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct FitArgs {
    ignored_resources: Vec<String>,
    ignored_resource_groups: Vec<String>,
    scoring_strategy: Option<ScoringStrategy>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ScoringStrategy {
    r#type: String,
    resources: Option<Vec<ResourceSpec>>,
    requested_to_capacity_ratio: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SpreadArgs {
    default_constraints: Vec<SpreadView>,
    defaulting_type: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct VolumeBindingArgs {
    bind_timeout_seconds: Option<i64>,
    shape: Option<Value>,
}

/// Applies the arguments of one plugin to a profile.
pub(crate) fn apply(
    config: &PluginConfig,
    path: &Path,
    profile: &mut Profile,
    errors: &mut ErrorList,
) {
    let mut args = Args { name: &config.name, args: &config.args, path, errors };
    match &*config.name {
        "DefaultPreemption" => args.default_preemption(profile),
        "DynamicResources" => args.dynamic_resources(),
        "InterPodAffinity" => args.inter_pod_affinity(),
        "NodeAffinity" => args.node_affinity(profile),
        "NodeResourcesBalancedAllocation" => args.balanced_allocation(),
        "NodeResourcesFit" => args.fit(profile),
        "PodTopologySpread" => args.topology_spread(profile),
        "VolumeBinding" => args.volume_binding(profile),
        _ if config.args.is_null() => {}
        _ => errors.push(FieldError::forbidden(path, "the plugin takes no arguments")),
    }
}

/// The arguments of one plugin during validation.
struct Args<'a> {
    name: &'a str,
    args: &'a Value,
    path: &'a Path,
    errors: &'a mut ErrorList,
}

impl Args<'_> {
    /// Decodes the arguments strictly, as the kind that is named after the plugin.
    fn decode<T: DeserializeOwned + Default>(&mut self) -> T {
        let mut args = api_config::without_nulls(self.args.clone());
        let Some(fields) = args.as_object_mut() else {
            if !args.is_null() {
                self.invalid("", args, "has to match plugin args");
            }
            return T::default();
        };
        let kind = format!("{}Args", self.name);
        for (field, expected) in [("apiVersion", SCHEDULER_VERSION), ("kind", kind.as_str())] {
            if fields.remove(field).is_some_and(|value| value != expected) {
                self.errors.push(FieldError::invalid(
                    &self.path.child(field),
                    expected,
                    "has to match plugin args",
                ));
            }
        }
        match api_config::decode::<T>("plugin arguments", args) {
            Ok(decoded) => {
                for field in &decoded.unknown {
                    self.errors
                        .push(FieldError::forbidden(&self.path.child(field), "unknown field"));
                }
                decoded.value
            }
            Err(error) => {
                self.errors.push(FieldError::invalid(self.path, Value::Null, error.to_string()));
                T::default()
            }
        }
    }

    fn invalid(&mut self, field: &str, value: impl Into<Value>, detail: &str) {
        let path = if field.is_empty() { self.path.clone() } else { self.path.child(field) };
        self.errors.push(FieldError::invalid(&path, value, detail));
    }

    fn default_preemption(&mut self, profile: &mut Profile) {
        let args: DefaultPreemptionArgs = self.decode();
        let percentage = args.min_candidate_nodes_percentage.unwrap_or(10);
        let absolute = args.min_candidate_nodes_absolute.unwrap_or(100);
        if !(0..=100).contains(&percentage) {
            let detail = "not in valid range [0, 100]";
            self.invalid("minCandidateNodesPercentage", percentage, detail);
        }
        if absolute < 0 {
            self.invalid("minCandidateNodesAbsolute", absolute, "not in valid range [0, inf)");
        }
        if (percentage, absolute) == (0, 0) {
            let detail = "cannot be zero at the same time as minCandidateNodesAbsolute";
            self.invalid("minCandidateNodesPercentage", 0, detail);
        }
        let size = |number: i64| usize::try_from(number).unwrap_or(0);
        profile.core.candidates =
            Candidates { percentage: size(percentage), absolute: size(absolute) };
    }

    fn dynamic_resources(&mut self) {
        let args: DynamicResourcesArgs = self.decode();
        // The search for devices is bounded by steps and not by time.
        let fields = [
            ("filterTimeout", args.filter_timeout, 10),
            ("bindingTimeout", args.binding_timeout, 600),
        ];
        for (field, timeout, default) in fields {
            if let Some(timeout) =
                timeout.filter(|timeout| *timeout != GoDuration::from_secs(default))
            {
                self.invalid(field, timeout.to_string(), NOT_ACTED_ON);
            }
        }
    }

    fn inter_pod_affinity(&mut self) {
        let args: InterPodAffinityArgs = self.decode();
        match args.hard_pod_affinity_weight.unwrap_or(1) {
            1 => {}
            weight @ 0..=100 => self.invalid("hardPodAffinityWeight", weight, NOT_ACTED_ON),
            weight => {
                self.invalid("hardPodAffinityWeight", weight, "not in valid range [0, 100]");
            }
        }
        if args.ignore_preferred_terms_of_existing_pods {
            self.invalid("ignorePreferredTermsOfExistingPods", true, NOT_ACTED_ON);
        }
    }

    fn node_affinity(&mut self, profile: &mut Profile) {
        let args: NodeAffinityArgs = self.decode();
        let Some(added) = args.added_affinity else { return };
        let path = self.path.child("addedAffinity");
        let affinity = api_config::without_nulls(self.args["addedAffinity"].clone());
        api_rules::check_node_affinity(&affinity, &path, self.errors);
        profile.core.set_added_affinity(&added);
    }

    fn balanced_allocation(&mut self) {
        let args: BalancedAllocationArgs = self.decode();
        let Some(resources) = args.resources else { return };
        let path = self.path.child("resources");
        for (i, resource) in resources.iter().enumerate().filter(|(_, r)| r.weight != 1) {
            let path = path.index(i).child("weight");
            self.errors.push(FieldError::invalid(&path, resource.weight, "must be 1"));
        }
        let mut names: Vec<_> = resources.iter().map(|resource| &*resource.name).collect();
        names.sort_unstable();
        if names != ["cpu", "memory"] {
            self.invalid("resources", names.join(","), "only cpu and memory are balanced");
        }
    }

    fn fit(&mut self, profile: &mut Profile) {
        let args: FitArgs = self.decode();
        for (i, name) in args.ignored_resources.iter().enumerate() {
            let path = self.path.child("ignoredResources").index(i);
            let messages = validation::qualified_name(name).into_iter();
            self.errors.extend(messages.map(|m| FieldError::invalid(&path, name.as_str(), m)));
        }
        for (i, group) in args.ignored_resource_groups.iter().enumerate() {
            let path = self.path.child("ignoredResourceGroups").index(i);
            if group.contains('/') {
                let detail = "resource group name can't contain '/'";
                self.errors.push(FieldError::invalid(&path, group.as_str(), detail));
            }
            let messages = validation::qualified_name(group).into_iter();
            self.errors.extend(messages.map(|m| FieldError::invalid(&path, group.as_str(), m)));
        }
        profile.core.ignored_resources = boxed(args.ignored_resources);
        profile.core.ignored_resource_groups = boxed(args.ignored_resource_groups);
        let Some(strategy) = args.scoring_strategy else { return };
        let path = self.path.child("scoringStrategy");
        let most_allocated = match &*strategy.r#type {
            "LeastAllocated" | "" => false,
            "MostAllocated" => true,
            "RequestedToCapacityRatio" => {
                self.errors.push(FieldError::invalid(
                    &path.child("type"),
                    "RequestedToCapacityRatio",
                    NOT_ACTED_ON,
                ));
                return;
            }
            other => {
                let kinds = ["LeastAllocated", "MostAllocated", "RequestedToCapacityRatio"];
                self.errors.push(FieldError::not_supported(&path.child("type"), other, &kinds));
                return;
            }
        };
        if strategy.requested_to_capacity_ratio.is_some() {
            let detail = "must be nil when type is not RequestedToCapacityRatio";
            let path = path.child("requestedToCapacityRatio");
            self.errors.push(FieldError::forbidden(&path, detail));
        }
        profile.core.fit.most_allocated = most_allocated;
        // Upstream replaces an empty list by the default, too.
        if let Some(resources) = strategy.resources.filter(|resources| !resources.is_empty()) {
            profile.core.fit = self.fit_weights(most_allocated, &resources, &path);
        }
    }

    fn fit_weights(
        &mut self,
        most_allocated: bool,
        resources: &[ResourceSpec],
        path: &Path,
    ) -> FitScoring {
        let mut scoring = FitScoring { most_allocated, cpu: 0, memory: 0 };
        for (i, resource) in resources.iter().enumerate() {
            let path = path.child("resources").index(i);
            // Upstream's default for a missing weight.
            let weight = if resource.weight == 0 { 1 } else { resource.weight };
            if !(1..=100).contains(&weight) {
                let detail =
                    format!("resource weight of {} not in valid range (0, 100]", resource.name);
                self.errors.push(FieldError::invalid(&path.child("weight"), weight, detail));
            }
            match &*resource.name {
                "cpu" => scoring.cpu = weight,
                "memory" => scoring.memory = weight,
                other => self.errors.push(FieldError::invalid(
                    &path.child("name"),
                    other,
                    "only cpu and memory are scored",
                )),
            }
        }
        scoring
    }

    fn topology_spread(&mut self, profile: &mut Profile) {
        let args: SpreadArgs = self.decode();
        let list = match args.defaulting_type.as_deref().unwrap_or("System") {
            "System" => false,
            "List" => true,
            other => {
                let path = self.path.child("defaultingType");
                self.errors.push(FieldError::not_supported(&path, other, &["System", "List"]));
                return;
            }
        };
        if !list && !args.default_constraints.is_empty() {
            self.invalid("defaultingType", "System", "when .defaultConstraints are not empty");
        }
        for (i, constraint) in args.default_constraints.iter().enumerate() {
            let path = self.path.child("defaultConstraints").index(i);
            check_constraint(constraint, &path, self.errors);
            let same = |other: &SpreadView| {
                other.topology_key == constraint.topology_key
                    && other.when_unsatisfiable == constraint.when_unsatisfiable
            };
            if args.default_constraints[..i].iter().any(same) {
                let value =
                    format!("{{{}, {}}}", constraint.topology_key, constraint.when_unsatisfiable);
                self.errors.push(FieldError::duplicate(&path, value));
            }
        }
        if list {
            profile.core.set_default_spread(&args.default_constraints);
        }
    }

    fn volume_binding(&mut self, profile: &mut Profile) {
        let args: VolumeBindingArgs = self.decode();
        match args.bind_timeout_seconds.map(u64::try_from) {
            None => {}
            Some(Ok(seconds)) => profile.bind_timeout = Duration::from_secs(seconds),
            Some(Err(_)) => {
                let detail = "invalid BindTimeoutSeconds, should not be a negative value";
                self.invalid("bindTimeoutSeconds", args.bind_timeout_seconds, detail);
            }
        }
        if args.shape.is_some() {
            let detail = "unexpected field `shape`, remove it or turn on the feature gate \
                StorageCapacityScoring";
            self.invalid("shape", Value::Null, detail);
        }
    }
}

/// Validates one default constraint. Its selector is each Pod's own.
fn check_constraint(constraint: &SpreadView, path: &Path, errors: &mut ErrorList) {
    if constraint.max_skew <= 0 {
        let detail = "not in valid range (0, inf)";
        errors.push(FieldError::invalid(&path.child("maxSkew"), constraint.max_skew, detail));
    }
    let topology = path.child("topologyKey");
    match &*constraint.topology_key {
        "" => errors.push(FieldError::required(&topology, "can not be empty")),
        key => errors.extend(validation::label_key(key, &topology)),
    }
    let action = path.child("whenUnsatisfiable");
    match &*constraint.when_unsatisfiable {
        "DoNotSchedule" | "ScheduleAnyway" => {}
        "" => errors.push(FieldError::required(&action, "can not be empty")),
        other => {
            let actions = ["DoNotSchedule", "ScheduleAnyway"];
            errors.push(FieldError::not_supported(&action, other, &actions));
        }
    }
    if constraint.label_selector.is_some() {
        let detail = "constraint must not define a selector, as they deduced for each pod";
        errors.push(FieldError::forbidden(&path.child("labelSelector"), detail));
    }
    let policies = [
        ("nodeAffinityPolicy", &constraint.node_affinity_policy),
        ("nodeTaintsPolicy", &constraint.node_taints_policy),
    ];
    for (field, policy) in policies {
        if let Some(other) = policy.as_deref().filter(|p| !matches!(*p, "Honor" | "Ignore")) {
            let path = path.child(field);
            errors.push(FieldError::not_supported(&path, other, &["Honor", "Ignore"]));
        }
    }
}

fn boxed(names: Vec<String>) -> Vec<Box<str>> {
    names.into_iter().map(String::into_boxed_str).collect()
}
