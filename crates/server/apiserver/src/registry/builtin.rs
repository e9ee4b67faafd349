//! The definitions of the built-in kinds, built from the schema's table of resources.

use std::sync::Arc;

use api_config::FeatureGates;
use api_schema::{ApiResource, NodeId, Schema};
use auth::authz::node::POD_MEMBERS;

use super::{
    conversion,
    definition::{Definition, ServedSubresource, ServedVersion, api_version},
    object::Selectable,
    projection::Projection,
};
use crate::config::{RuntimeConfig, gate_of};

/// Returns the definitions of all built-in kinds.
pub(crate) fn builtin() -> Vec<Arc<Definition>> {
    let mut groups: Vec<(String, Vec<&'static ApiResource>)> = Vec::new();
    for resource in api_schema::resources() {
        let (group, plural) = storage_home(resource.group, resource.name);
        let home = format!("{group}/{plural}");
        match groups.iter_mut().find(|(h, _)| *h == home) {
            Some((_, versions)) => versions.push(resource),
            None => groups.push((home, vec![resource])),
        }
    }
    groups.into_iter().map(|(_, versions)| Arc::new(builtin_definition(&versions))).collect()
}

/// Returns the definitions with the versions that the configuration and the feature gates enable. As upstream, disabled
/// ones are still stored.
pub(crate) fn configured(runtime: &RuntimeConfig, features: &FeatureGates) -> Vec<Arc<Definition>> {
    let mut all = builtin();
    for definition in &mut all {
        // The definitions are not shared yet.
        let Some(definition) = Arc::get_mut(definition) else { continue };
        let plural = definition.plural.clone();
        for served in &mut definition.served {
            let on_demand = !served.enabled;
            served.enabled = runtime.serves(&served.group, &served.version, &plural, on_demand);
            if let Some(gate) = gate_of(&served.group, &plural).filter(|_| served.enabled)
                && !features.is_enabled(gate)
            {
                let (kind, version) = (&served.kind, &served.api_version);
                tracing::warn!(
                    %version,
                    "{kind} storage is disabled because the {gate} feature gate is disabled"
                );
                served.enabled = false;
            }
        }
    }
    all
}

/// A deprecated version of a group.
struct Deprecated {
    group: &'static str,
    version: &'static str,
    /// The deprecated kinds; empty for all.
    kinds: &'static [&'static str],
    since: &'static str,
    removed: &'static str,
    /// The version that upstream's warning recommends; empty for none.
    replacement: &'static str,
}

const fn deprecated(
    group: &'static str,
    version: &'static str,
    [since, removed]: [&'static str; 2],
) -> Deprecated {
    Deprecated { group, version, kinds: &[], since, removed, replacement: "" }
}

static DEPRECATED: &[Deprecated] = &[
    deprecated("admissionregistration.k8s.io", "v1alpha1", ["v1.35", "v1.38"]),
    deprecated("coordination.k8s.io", "v1alpha2", ["v1.35", "v1.38"]),
    deprecated("coordination.k8s.io", "v1beta1", ["v1.36", "v1.39"]),
    deprecated("networking.k8s.io", "v1beta1", ["v1.34", "v1.37"]),
    Deprecated {
        kinds: &["DeviceTaintRule"],
        ..deprecated("resource.k8s.io", "v1alpha3", ["v1.36", "v1.39"])
    },
    deprecated("resource.k8s.io", "v1beta1", ["v1.35", "v1.38"]),
    Deprecated {
        kinds: &["DeviceClass", "ResourceClaim", "ResourceClaimTemplate", "ResourceSlice"],
        ..deprecated("resource.k8s.io", "v1beta2", ["v1.36", "v1.39"])
    },
    Deprecated {
        replacement: "storage.k8s.io/v1",
        ..deprecated("storage.k8s.io", "v1beta1", ["v1.34", "v1.37"])
    },
];

/// Returns the warning that upstream sends with every request of a deprecated version of a kind.
fn deprecation(resource: &ApiResource) -> Option<String> {
    let (group, version, kind) = (resource.group, resource.version, resource.kind);
    let Deprecated { since, removed, replacement, .. } = DEPRECATED.iter().find(|old| {
        (old.group, old.version) == (group, version)
            && (old.kinds.is_empty() || old.kinds.contains(&kind))
    })?;
    let instead = match *replacement {
        "" => String::new(),
        version => format!("; use {version} {kind}"),
    };
    Some(format!(
        "{group}/{version} {kind} is deprecated in {since}+, unavailable in {removed}+{instead}"
    ))
}

/// Events of both groups are the same stored resource.
fn storage_home<'a>(group: &'a str, plural: &'a str) -> (&'a str, &'a str) {
    match (group, plural) {
        ("events.k8s.io", "events") => ("", "events"),
        _ => (group, plural),
    }
}

fn builtin_definition(versions: &[&'static ApiResource]) -> Definition {
    let first = versions[0];
    let (group, plural) = storage_home(first.group, first.name);
    let strategy = api_rules::strategy(group, plural);
    let selectable = Selectable::all(strategy.selectable);
    let shown: Vec<ServedVersion> = versions.iter().map(|r| served(r)).collect();
    Definition {
        group: group.into(),
        plural: plural.into(),
        namespaced: first.namespaced,
        prefix: format!("/registry/{}/", strategy.storage_path.unwrap_or(plural)).into(),
        projection: projection(group, plural, &selectable),
        consulted: consulted(group, plural),
        selectable,
        // The storage version is the one without a conversion.
        storage: shown.iter().position(|version| version.conversion.is_none()).unwrap_or(0),
        served: shown,
        custom: None,
        converter: None,
        strategy,
    }
}

/// Returns the projection for a kind. Observers see the whole objects of kinds with few writes.
fn projection(group: &str, plural: &str, selectable: &[Selectable]) -> Projection {
    match (group, plural) {
        ("", "pods") => Selectable::projection(selectable, &POD_MEMBERS),
        ("", "services" | "persistentvolumes")
        | ("storage.k8s.io", "volumeattachments")
        | ("networking.k8s.io", "ipaddresses" | "servicecidrs")
        | (
            "rbac.authorization.k8s.io",
            "roles" | "clusterroles" | "rolebindings" | "clusterrolebindings",
        )
        | ("flowcontrol.apiserver.k8s.io", "flowschemas" | "prioritylevelconfigurations")
        | ("apiregistration.k8s.io", "apiservices")
        | ("admissionregistration.k8s.io", _) => Projection::whole(),
        _ => Selectable::projection(selectable, &[]),
    }
}

/// Returns the members of a kind's objects that controllers and checks of this server read. Only definitions of custom
/// kinds have large members that none of them reads: the schemas.
fn consulted(group: &str, plural: &str) -> Projection {
    match (group, plural) {
        ("apiextensions.k8s.io", "customresourcedefinitions") => {
            Projection::of(["metadata.name", "spec.group", "status"])
        }
        _ => Projection::whole(),
    }
}

fn served(resource: &'static ApiResource) -> ServedVersion {
    let schema = Schema::builtin();
    let node = schema.kind(resource.group, resource.version, resource.kind).unwrap_or(NodeId(0));
    let shared = |words: &[&'static str]| words.iter().map(|w| Arc::from(*w)).collect();
    ServedVersion {
        group: resource.group.into(),
        version: resource.version.into(),
        api_version: api_version(resource.group, resource.version).into(),
        kind: resource.kind.into(),
        list_kind: format!("{}List", resource.kind).into(),
        singular: resource.singular.into(),
        verbs: shared(&resource.verbs),
        short_names: shared(&resource.short_names),
        categories: shared(&resource.categories),
        storage_version_hash: resource.storage_version_hash.into(),
        subresources: resource
            .subresources
            .iter()
            .map(|s| ServedSubresource {
                name: s.name.into(),
                group: s.group.into(),
                version: s.version.into(),
                kind: s.kind.into(),
                foreign: s.foreign,
                verbs: shared(&s.verbs),
            })
            .collect(),
        schema: schema.clone(),
        node,
        conversion: conversion::between(resource.group, resource.version, resource.name),
        warning: deprecation(resource).map(Into::into),
        columns: None,
        scale: None,
        enabled: !resource.on_demand,
    }
}
