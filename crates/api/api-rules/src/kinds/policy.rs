//! LimitRanges, ResourceQuotas and PodDisruptionBudgets.

use std::collections::HashSet;

use api_meta::{ErrorList, FieldError, Path, Quantity, Tree as _, validation};
use serde_json::{Map, Value, json};

use super::{status, workloads::check_int_or_percent};
use crate::{
    fields::{validate_label_selector, validate_optional_one_of},
    meta::{NameRule, check_immutable},
    pod::{
        is_standard, validate_amount, validate_container_resource_name,
        validate_standard_or_qualified,
    },
    strategy::Strategy,
};

pub(crate) static LIMIT_RANGE: Strategy = Strategy {
    own_defaults: |range| {
        for limit in range.items_mut("spec.limits").filter(|l| l.text("type") == "Container") {
            let of = |name: &str| limit.at(name).as_object().cloned().unwrap_or_default();
            let fill = |mut into: Map<String, Value>, from: &Map<String, Value>| {
                from.iter().for_each(|(k, v)| {
                    into.entry(k.clone()).or_insert_with(|| v.clone());
                });
                into
            };
            let default = fill(of("default"), &of("max"));
            let request = fill(fill(of("defaultRequest"), &default), &of("min"));
            for (name, map) in [("default", default), ("defaultRequest", request)] {
                if !map.is_empty() {
                    limit.set(name, map);
                }
            }
        }
    },
    own_create: |range, _| {
        // Upstream names a LimitRange without a name by a new uid.
        if range.name().is_empty() {
            let uid = range.at("metadata.uid").clone();
            range.set("metadata.name", uid);
        }
    },
    check: check_limit_range,
    create_on_update: true,
    ..Strategy::PLAIN
};

/// The resources of quotas that count objects.
const INTEGERS: [&str; 9] = [
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "services.nodeports",
    "services.loadbalancers",
];

pub(crate) static RESOURCE_QUOTA: Strategy = Strategy {
    status: Some(|| json!({})),
    check: |quota, errors| {
        for (name, value) in quota.pairs("spec.hard") {
            let path = Path::new("spec").child("hard").key(name);
            for message in validation::qualified_name(name) {
                errors.push(FieldError::invalid(&path, name.as_str(), message));
            }
            validate_standard_or_qualified(name, &path, errors);
            if !name.contains('/') && !is_quota_resource(name) {
                let detail = "must be a standard resource for quota";
                errors.push(FieldError::invalid(&path, name.as_str(), detail));
            }
            let quantity = validate_amount(value, "cpu", &path, errors);
            let counts = INTEGERS.contains(&name.as_str());
            if let Some(quantity) = quantity.filter(|quantity| counts && !quantity.is_integer()) {
                errors.push(FieldError::invalid(&path, quantity.to_string(), "must be an integer"));
            }
        }
        check_scopes(quota.at("spec"), &Path::new("spec"), errors);
    },
    check_update: |new, old, errors| check_immutable(new, old, "spec.scopes", errors),
    check_status: |new, _, _, errors| status::check_quota(new, errors),
    ..Strategy::PLAIN
};

pub(crate) static DISRUPTION_BUDGET: Strategy = Strategy {
    name: NameRule::PathSegment,
    status: Some(
        || json!({"currentHealthy": 0, "desiredHealthy": 0, "disruptionsAllowed": 0, "expectedPods": 0}),
    ),
    generation: true,
    check: |budget, errors| {
        let (spec, path) = (budget.at("spec"), Path::new("spec"));
        if spec.has("minAvailable") && spec.has("maxUnavailable") {
            let detail = "minAvailable and maxUnavailable cannot be both set";
            errors.push(FieldError::invalid(&path, spec.clone(), detail));
        }
        for field in ["minAvailable", "maxUnavailable"] {
            check_int_or_percent(spec, field, &path, errors);
        }
        let policies = ["AlwaysAllow", "IfHealthyBudget"];
        validate_optional_one_of(spec, "unhealthyPodEvictionPolicy", &policies, &path, errors);
        validate_label_selector(spec.at("selector"), &path.child("selector"), errors);
    },
    check_status: |new, _, _, errors| status::check_disruption_budget(new, errors),
    unconditional_update: false,
    ..Strategy::PLAIN
};

fn is_quota_resource(name: &str) -> bool {
    is_standard(name) && !matches!(name, "bindings" | "storage")
}

/// Validates the scopes of a quota against the resources that it limits.
fn check_scopes(spec: &Value, path: &Path, errors: &mut ErrorList) {
    let resources: Vec<&str> = spec.pairs("hard").map(|(name, _)| name.as_str()).collect();
    check_scope_list(spec, &resources, &path.child("scopes"), errors);
    let path = path.child("scopeSelector").child("matchExpressions");
    check_scope_selector(spec.items("scopeSelector.matchExpressions"), &resources, &path, errors);
}

const SCOPES: [&str; 7] = [
    "BestEffort",
    "CrossNamespacePodAffinity",
    "NotBestEffort",
    "NotTerminating",
    "PriorityClass",
    "Terminating",
    "VolumeAttributesClass",
];

/// Reports whether a scope applies to all resources.
fn applies_to(scope: &str, resources: &[&str]) -> bool {
    resources.iter().filter(|resource| is_quota_resource(resource)).all(|resource| match scope {
        "BestEffort" => *resource == "pods",
        "VolumeAttributesClass" => {
            matches!(*resource, "persistentvolumeclaims" | "requests.storage")
        }
        _ => {
            let plain = resource.trim_start_matches("requests.").trim_start_matches("limits.");
            matches!(plain, "pods" | "cpu" | "memory" | "ephemeral-storage")
                || plain.contains('/') && !resource.starts_with("count/")
                || plain.starts_with("hugepages-")
        }
    })
}

fn has_opposites(scopes: &HashSet<&str>) -> bool {
    let both = |a: &str, b: &str| scopes.contains(a) && scopes.contains(b);
    both("BestEffort", "NotBestEffort") || both("Terminating", "NotTerminating")
}

fn check_scope_list(spec: &Value, resources: &[&str], path: &Path, errors: &mut ErrorList) {
    let shown = || spec.at("scopes").clone();
    let mut seen = HashSet::new();
    let scopes = spec.items("scopes").iter().filter_map(Value::as_str);
    for scope in scopes.filter(|scope| seen.insert(*scope)) {
        let detail = if !SCOPES.contains(&scope) {
            "unsupported scope"
        } else if !applies_to(scope, resources) {
            "unsupported scope applied to resource"
        } else {
            continue;
        };
        errors.push_with(|| FieldError::invalid(path, shown(), detail));
    }
    if has_opposites(&seen) {
        errors.push(FieldError::invalid(path, shown(), "conflicting scopes"));
    }
}

fn check_scope_selector(
    expressions: &[Value],
    resources: &[&str],
    path: &Path,
    errors: &mut ErrorList,
) {
    // Upstream shows the selector as Go prints its struct.
    let shown = || {
        let list: Vec<Value> = expressions
            .iter()
            .map(|e| {
                json!({"ScopeName": e.text("scopeName"), "Operator": e.text("operator"),
                    "Values": e.at("values")})
            })
            .collect();
        json!({"MatchExpressions": list})
    };
    let mut seen = HashSet::new();
    for expression in expressions {
        let scope = expression.text("scopeName");
        if !SCOPES.contains(&scope) {
            let path = path.child("scopeName");
            errors.push(FieldError::invalid(&path, scope, "unsupported scope"));
        } else if seen.insert(scope) && !applies_to(scope, resources) {
            let detail = "unsupported scope applied to resource";
            errors.push_with(|| FieldError::invalid(path, shown(), detail));
        }
        check_scope_operator(expression, scope, path, errors);
    }
    if has_opposites(&seen) {
        errors.push(FieldError::invalid(path, shown(), "conflicting scopes"));
    }
}

/// Validates the operator of a scope expression and the presence of values.
fn check_scope_operator(expression: &Value, scope: &str, path: &Path, errors: &mut ErrorList) {
    let operator = expression.text("operator");
    let operator_path = path.child("operator");
    let has_values = matches!(scope, "PriorityClass" | "VolumeAttributesClass");
    if !has_values && SCOPES.contains(&scope) && operator != "Exists" {
        let detail = "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, \
            ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, \
            ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity";
        errors.push(FieldError::invalid(&operator_path, operator, detail));
    }
    let (is_empty, path) = (expression.blank("values"), path.child("values"));
    match operator {
        "In" | "NotIn" if is_empty => {
            let detail =
                "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector";
            errors.push(FieldError::required(&path, detail));
        }
        "Exists" | "DoesNotExist" if !is_empty => {
            let detail =
                "must be no value when `operator` is 'Exists' or 'DoesNotExist' for scope selector";
            let values = expression.at("values").clone();
            errors.push(FieldError::invalid(&path, values, detail));
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
        _ => {
            let detail = "not a valid selector operator";
            errors.push(FieldError::invalid(&operator_path, operator, detail));
        }
    }
}

fn check_limit_range(range: &Value, errors: &mut ErrorList) {
    let path = Path::new("spec").child("limits");
    let mut types = std::collections::HashSet::new();
    for (i, limit) in range.items("spec.limits").iter().enumerate() {
        let path = path.index(i);
        let kind = limit.text("type");
        if !types.insert(kind) {
            errors.push(FieldError::duplicate(&path.child("type"), kind));
        }
        check_limit(limit, &path, errors);
        let get = |map: &str, name: &str| {
            let text = limit.at(map).get(name)?.as_str()?.to_owned();
            Quantity::parse(&text).ok()
        };
        let ordered = [
            ("min", "max"),
            ("min", "defaultRequest"),
            ("min", "default"),
            ("defaultRequest", "default"),
            ("default", "max"),
            ("defaultRequest", "max"),
        ];
        let names: std::collections::BTreeSet<&String> =
            ["min", "max", "default", "defaultRequest"]
                .iter()
                .flat_map(|map| limit.pairs(map).map(|(name, _)| name))
                .collect();
        for name in names {
            for (low, high) in ordered {
                if let (Some(a), Some(b)) = (get(low, name), get(high, name))
                    && a > b
                {
                    let words = |field: &str| match field {
                        "defaultRequest" => "default request".to_owned(),
                        other => other.to_owned(),
                    };
                    errors.push(FieldError::invalid(
                        &path.child(low).key(name),
                        a.to_string(),
                        format!(
                            "{} value {a} is greater than {} value {b}",
                            words(low),
                            words(high)
                        ),
                    ));
                }
            }
        }
    }
}

/// Validates a limit's ratio of limit to request.
fn check_limit(limit: &Value, path: &Path, errors: &mut ErrorList) {
    let kind = limit.text("type");
    let type_path = path.child("type");
    for message in validation::qualified_name(kind) {
        errors.push(FieldError::invalid(&type_path, kind, message));
    }
    let standard = ["Container", "PersistentVolumeClaim", "Pod"].contains(&kind);
    if !kind.contains('/') && !standard {
        let detail = "must be a standard limit type or fully qualified";
        errors.push(FieldError::invalid(&type_path, kind, detail));
    }
    for map in ["max", "min", "default", "defaultRequest", "maxLimitRequestRatio"] {
        let path = path.child(map);
        if kind == "Pod" && matches!(map, "default" | "defaultRequest") {
            if !limit.blank(map) {
                let detail = "may not be specified when `type` is 'Pod'";
                errors.push(FieldError::forbidden(&path, detail));
            }
            continue;
        }
        for (name, _) in limit.pairs(map) {
            match kind {
                "Container" | "Pod" => {
                    validate_container_resource_name(name, &path.key(name), errors)
                }
                _ => validate_standard_or_qualified(name, &path.key(name), errors),
            }
        }
    }
    if kind == "PersistentVolumeClaim"
        && ["min", "max"].iter().all(|map| limit.at(map).get("storage").is_none())
    {
        let detail =
            "either minimum or maximum storage value is required, but neither was provided";
        errors.push(FieldError::required(&path.child("limits"), detail));
    }
    for (name, ratio) in limit.pairs("maxLimitRequestRatio") {
        let path = path.child("maxLimitRequestRatio").key(name);
        let amount = |value: &Value| Quantity::parse(value.as_str().unwrap_or_default()).ok();
        let Some(ratio) = amount(ratio) else { continue };
        if ratio.as_f64() < 1.0 {
            let detail = format!("ratio {ratio} is less than 1");
            errors.push(FieldError::invalid(&path, ratio.to_string(), detail));
        }
        let of = |map: &str| limit.at(map).get(name).and_then(amount);
        if let (Some(max), Some(min)) = (of("max"), of("min")) {
            let most = max.as_f64() / min.as_f64();
            if ratio.as_f64() > most {
                let detail = format!("ratio {ratio} is greater than max/min = {most:.6}");
                errors.push(FieldError::invalid(&path, ratio.to_string(), detail));
            }
        }
    }
}
