//! LimitRanges, ResourceQuotas and PodDisruptionBudgets.

use api_meta::{ErrorList, FieldError, Path, Quantity};
use serde_json::{Map, Value, json};

use super::workloads::check_int_or_percent;
use crate::{
    look::{Look, items_mut, put},
    meta::check_immutable,
    pod::{amount, label_selector, none_or_one_of},
    strategy::Strategy,
};

pub(crate) static LIMIT_RANGE: Strategy = Strategy {
    own_defaults: |range| {
        for limit in items_mut(range, "spec.limits").filter(|l| l.text("type") == "Container") {
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
                    put(limit, name, map);
                }
            }
        }
    },
    check: check_limit_range,
    create_on_update: true,
    ..Strategy::PLAIN
};

pub(crate) static RESOURCE_QUOTA: Strategy = Strategy {
    status: Some(|| json!({})),
    check: |quota, errors| {
        for (name, value) in quota.pairs("spec.hard") {
            let path = Path::new("spec").child("hard").key(name);
            for message in api_meta::validation::qualified_name(name) {
                errors.push(FieldError::invalid(&path, name.as_str(), message));
            }
            amount(value, "cpu", &path, errors);
        }
    },
    check_update: |new, old, errors| check_immutable(new, old, "spec.scopes", errors),
    ..Strategy::PLAIN
};

pub(crate) static DISRUPTION_BUDGET: Strategy = Strategy {
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
        none_or_one_of(spec, "unhealthyPodEvictionPolicy", &policies, &path, errors);
        label_selector(spec.at("selector"), &path.child("selector"), errors);
    },
    unconditional_update: false,
    ..Strategy::PLAIN
};

fn check_limit_range(range: &Value, errors: &mut ErrorList) {
    let path = Path::new("spec").child("limits");
    let mut types = std::collections::HashSet::new();
    for (i, limit) in range.items("spec.limits").iter().enumerate() {
        let path = path.index(i);
        let kind = limit.text("type");
        if !types.insert(kind) {
            errors.push(FieldError::duplicate(&path.child("type"), kind));
        }
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
