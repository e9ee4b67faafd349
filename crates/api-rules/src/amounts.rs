//! Amounts of resources, and what a Pod asks for and may use of them over all its containers.

use std::collections::BTreeMap;

use api_meta::{Quantity, Tree as _};
use serde_json::Value;

/// Amounts by the name of their resource, such as `cpu` or `requests.memory`.
pub type Amounts = BTreeMap<String, Quantity>;

/// What is no quantity reads as none: the schema has refused it where it matters.
pub fn quantity(value: &Value) -> Option<Quantity> {
    match value {
        Value::String(text) => text.parse().ok(),
        Value::Number(number) => number.to_string().parse().ok(),
        _ => None,
    }
}

/// A map of quantities, such as `resources.requests`.
pub fn amounts(value: &Value) -> Amounts {
    let entries = value.as_object().into_iter().flatten();
    entries.filter_map(|(name, amount)| Some((name.clone(), quantity(amount)?))).collect()
}

/// Whether a Pod's totals count what its RuntimeClass adds.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Overhead {
    Counted,
    Left,
}

fn add(total: &mut Amounts, more: &Amounts) {
    for (resource, amount) in more {
        *total.entry(resource.clone()).or_insert(Quantity::ZERO) += *amount;
    }
}

fn raise(total: &mut Amounts, to: &Amounts) {
    for (resource, amount) in to {
        let have = total.entry(resource.clone()).or_insert(*amount);
        if *have < *amount {
            *have = *amount;
        }
    }
}

/// A Pod's total of `requests` or `limits`: what its containers take together, or the most that one step of its
/// initialisation takes (an init container beside the sidecars started before it), whichever is more. What the Pod says
/// of itself as a whole comes before what its containers say.
pub fn pod_total(pod: &Value, field: &str, overhead: Overhead) -> Amounts {
    let of = |container: &Value| amounts(container.at(&format!("resources.{field}")));
    let mut total = Amounts::new();
    for container in pod.items("spec.containers") {
        add(&mut total, &of(container));
    }
    let (mut sidecars, mut peak) = (Amounts::new(), Amounts::new());
    for container in pod.items("spec.initContainers") {
        let mut step = of(container);
        let is_sidecar = container.text("restartPolicy") == "Always";
        if is_sidecar {
            add(&mut total, &step);
            add(&mut sidecars, &step);
        }
        // What the sidecars take of other resources is in the peak since they were added.
        for (resource, amount) in &mut step {
            let beside = sidecars.get(resource).copied().unwrap_or(Quantity::ZERO);
            if is_sidecar {
                *amount = beside;
            } else {
                *amount += beside;
            }
        }
        raise(&mut peak, &step);
    }
    raise(&mut total, &peak);
    total.extend(amounts(pod.at(&format!("spec.resources.{field}"))));
    if overhead == Overhead::Counted {
        for (resource, more) in amounts(pod.at("spec.overhead")) {
            match total.get_mut(&resource) {
                Some(amount) => *amount += more,
                // No limit is no limit, whatever is added.
                None if field == "limits" => {}
                None => drop(total.insert(resource, more)),
            }
        }
    }
    total
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn totals_follow_the_life_of_a_pod() {
        let asks = |cpu: &str| json!({"resources": {"requests": {"cpu": cpu}}});
        let sidecar =
            |cpu: &str| json!({"restartPolicy": "Always", "resources": {"requests": {"cpu": cpu}}});
        let cases = [
            (json!({"containers": [asks("1"), asks("500m")]}), "1500m"),
            (json!({"containers": [asks("1")], "initContainers": [asks("3"), asks("2")]}), "3"),
            (json!({"containers": [asks("1")], "initContainers": [sidecar("1"), asks("3")]}), "4"),
            (json!({"containers": [asks("1")], "initContainers": [asks("3"), sidecar("1")]}), "3"),
            (json!({"containers": [asks("4")], "initContainers": [sidecar("1")]}), "5"),
            (json!({"containers": [asks("1")], "overhead": {"cpu": "250m"}}), "1250m"),
            (
                json!({"containers": [asks("1")], "resources": {"requests": {"cpu": "2"}}, "overhead": {"cpu": "1"}}),
                "3",
            ),
        ];
        for (spec, want) in cases {
            let pod = json!({"spec": spec});
            assert_eq!(
                pod_total(&pod, "requests", Overhead::Counted)["cpu"].to_string(),
                want,
                "{pod}"
            );
        }
        assert!(
            pod_total(&json!({"spec": {"overhead": {"cpu": "1"}}}), "limits", Overhead::Counted)
                .is_empty()
        );
    }
}
