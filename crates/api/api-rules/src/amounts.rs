//! Amounts of resources, and a Pod's total requests and limits over all its containers.

use std::collections::BTreeMap;

use api_meta::{Quantity, Tree as _};
use serde_json::Value;

/// Amounts by resource name, such as `cpu` or `requests.memory`.
pub type Amounts = BTreeMap<String, Quantity>;

/// Parses a quantity. Returns `None` for an invalid one, which schema validation rejects where it matters.
pub fn quantity(value: &Value) -> Option<Quantity> {
    match value {
        Value::String(text) => text.parse().ok(),
        Value::Number(number) => number.to_string().parse().ok(),
        _ => None,
    }
}

/// Parses a map of quantities, such as `resources.requests`.
pub fn amounts(value: &Value) -> Amounts {
    let entries = value.as_object().into_iter().flatten();
    entries.filter_map(|(name, amount)| Some((name.clone(), quantity(amount)?))).collect()
}

/// Selects whether a Pod's total includes the overhead of its RuntimeClass.
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

/// Returns the total of `requests` or `limits` of the containers of a Pod's spec: their sum, or the peak of the
/// initialization if that is higher. The peak is an init container plus the sidecars that started before it.
pub fn containers_total(spec: &Value, field: &str) -> Amounts {
    let of = |container: &Value| amounts(container.at(&format!("resources.{field}")));
    let mut total = Amounts::new();
    for container in spec.items("containers") {
        add(&mut total, &of(container));
    }
    let (mut sidecars, mut peak) = (Amounts::new(), Amounts::new());
    for container in spec.items("initContainers") {
        let mut step = of(container);
        let is_sidecar = container.text("restartPolicy") == "Always";
        if is_sidecar {
            add(&mut total, &step);
            add(&mut sidecars, &step);
        }
        // Other resources of the sidecars entered the peak when those sidecars were added.
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
    total
}

/// Returns a Pod's total of `requests` or `limits`. Pod-level resources replace the total of the containers.
pub fn pod_total(pod: &Value, field: &str, overhead: Overhead) -> Amounts {
    let mut total = containers_total(pod.at("spec"), field);
    total.extend(amounts(pod.at(&format!("spec.resources.{field}"))));
    if overhead == Overhead::Counted {
        for (resource, more) in amounts(pod.at("spec.overhead")) {
            match total.get_mut(&resource) {
                Some(amount) => *amount += more,
                // An unset limit stays unlimited.
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
    fn totals_include_init_containers_and_sidecars() {
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
