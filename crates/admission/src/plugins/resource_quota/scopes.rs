//! Which objects a quota counts.

use api_meta::GroupResource;
use serde_json::Value;

use super::scope_terms;
use crate::{
    Request,
    tree::{integer, is_set, items, text},
};

/// Whether an object is in every scope of a quota. Only Pods have scopes: a quota with scopes counts nothing else.
pub(super) fn all_match(quota: &Value, request: &Request<'_>, object: &Value) -> bool {
    let terms = scope_terms(quota);
    terms.is_empty()
        || request.on(&GroupResource::PODS)
            && terms
                .iter()
                .all(|(scope, operator, values)| matches(scope, operator, values, object))
}

fn matches(scope: &str, operator: &str, values: &[&str], pod: &Value) -> bool {
    let terminating =
        integer(pod, "/spec/activeDeadlineSeconds").is_some_and(|seconds| seconds >= 0);
    match scope {
        "Terminating" => terminating,
        "NotTerminating" => !terminating,
        "BestEffort" => is_best_effort(pod),
        "NotBestEffort" => !is_best_effort(pod),
        "CrossNamespacePodAffinity" => crosses_namespaces(pod),
        "PriorityClass" => {
            let class = text(pod, "/spec/priorityClassName");
            match operator {
                "In" => values.contains(&class),
                "NotIn" => !values.contains(&class),
                "DoesNotExist" => class.is_empty(),
                _ => !class.is_empty(),
            }
        }
        _ => false,
    }
}

fn is_best_effort(pod: &Value) -> bool {
    let states = |holder: &Value| {
        ["/resources/requests", "/resources/limits"].iter().any(|field| {
            let amounts = crate::tree::amounts(holder, field);
            amounts
                .iter()
                .any(|(r, amount)| ["cpu", "memory"].contains(&r.as_str()) && !amount.is_zero())
        })
    };
    !states(&pod["spec"])
        && ["/spec/containers", "/spec/initContainers"]
            .iter()
            .all(|list| !items(pod, list).any(states))
}

/// Whether an affinity term names namespaces, by which a Pod can keep others' from being placed.
fn crosses_namespaces(pod: &Value) -> bool {
    let crosses = |term: &Value| {
        items(term, "/namespaces").next().is_some() || is_set(term, "/namespaceSelector")
    };
    ["podAffinity", "podAntiAffinity"].iter().any(|kind| {
        let affinity = &pod["spec"]["affinity"][kind];
        items(affinity, "/requiredDuringSchedulingIgnoredDuringExecution").any(crosses)
            || items(affinity, "/preferredDuringSchedulingIgnoredDuringExecution")
                .any(|t| crosses(&t["podAffinityTerm"]))
    })
}
