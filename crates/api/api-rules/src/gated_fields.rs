//! Removes fields whose feature gates an operator may switch on.

use api_meta::Tree as _;
use serde_json::Value;

use crate::strategy::Strategy;

/// Removes sources of projected volumes, such as `podCertificate` (gate `PodCertificateRequest`), from an object with a
/// Pod spec, unless the old object has one. Their entries stay, and project nothing.
pub fn drop_projected_sources(
    strategy: &Strategy,
    kind: &str,
    new: &mut Value,
    old: Option<&Value>,
) {
    let uses = |object: &Value| {
        let volumes = object.at(strategy.pod_spec).items("volumes").iter();
        let mut sources = volumes.flat_map(|volume| volume.items("projected.sources"));
        sources.any(|source| source.has(kind))
    };
    if strategy.pod_spec.is_empty() || old.is_some_and(uses) {
        return;
    }
    let Some(spec) = new.at_mut(strategy.pod_spec) else { return };
    for volume in spec.items_mut("volumes") {
        for source in volume.items_mut("projected.sources") {
            source.remove(kind);
        }
    }
}

/// Removes fields of `spec` (`Strategy::coordinated_fields`, gate `CoordinatedLeaderElection`), except those that the
/// old object has.
pub fn drop_coordinated_fields(strategy: &Strategy, new: &mut Value, old: Option<&Value>) {
    for field in strategy.coordinated_fields {
        if old.is_none_or(|old| !old.at("spec").has(*field))
            && let Some(spec) = new.at_mut("spec")
        {
            spec.remove(*field);
        }
    }
}

/// Removes `schedulingGroup` (gate `GenericWorkload`) from an object with a Pod spec, unless the old object has it.
pub fn drop_scheduling_group(strategy: &Strategy, new: &mut Value, old: Option<&Value>) {
    const FIELD: &str = "schedulingGroup";
    if old.is_none_or(|old| !old.at(strategy.pod_spec).has(FIELD))
        && let Some(spec) = new.at_mut(strategy.pod_spec)
    {
        spec.remove(FIELD);
    }
}
