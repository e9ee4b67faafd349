//! Validates whole objects: names, fields with a fixed set of values, removed fields, and the parts of the spec.

use api_meta::{ErrorList, FieldError, Path, Tree as _};
use serde_json::Value;

use super::{
    access, cluster, components, group, machine, network,
    paths::{below, spec},
    pods, provider,
    values::is_set,
};
use crate::object::Object;

const VALUES: &str = include_str!("../../facts/values.tsv");
const REMOVED: &str = include_str!("../../facts/removed.tsv");

/// The annotation of an imported cluster, whose name needs no dot.
const MANAGEMENT_ANNOTATION: &str = "kops.kubernetes.io/management";

/// Validates a cluster. `complete` is `true` for a completed one, which must have more fields.
pub fn validate_cluster(cluster: &Object, complete: bool) -> ErrorList {
    let mut errors = name(cluster);
    validate_full_name(cluster, &mut errors);
    errors.extend(values(cluster));
    validate_removed(cluster, &mut errors);
    provider::validate(cluster, &mut errors);
    network::validate(cluster, complete, &mut errors);
    pods::validate(cluster, &mut errors);
    cluster::validate(&cluster.spec, complete, &mut errors);
    components::validate(cluster, &mut errors);
    machine::validate_shared(&cluster.spec, &mut errors);
    access::validate(&cluster.spec, complete, &mut errors);
    errors
}

/// Validates an instance group, together with its cluster if that is known.
pub fn validate_group(group: &Object, cluster: Option<&Object>) -> ErrorList {
    let mut errors = name(group);
    errors.extend(values(group).into_iter().filter(|error| {
        // The volume types of AWS do not apply to other clouds.
        let volume = error.field.as_str() == "spec.rootVolume.type";
        !volume || cluster.is_none_or(|c| c.spec.has("cloudProvider.aws"))
    }));
    group::validate(group, cluster, &mut errors);
    errors
}

/// Validates a name, which becomes part of DNS names and of resource names.
fn name(object: &Object) -> ErrorList {
    let at = Path::new("metadata.name");
    if object.name().is_empty() {
        return [FieldError::required(&at, "")].into();
    }
    let problems = api_meta::validation::dns1123_subdomain(object.name());
    problems.into_iter().map(|problem| FieldError::invalid(&at, object.name(), problem)).collect()
}

/// Rejects a cluster name that no DNS zone can contain, if the cluster has DNS records.
fn validate_full_name(cluster: &Object, errors: &mut ErrorList) {
    let is_imported = cluster.metadata.text(&["annotations", MANAGEMENT_ANNOTATION]) == "imported";
    let has_records = cluster.spec.text("networking.topology.dns") != "None";
    let name = cluster.name();
    if has_records && !name.is_empty() && !name.contains('.') && !is_imported {
        let detail =
            "Cluster Name must be a fully-qualified DNS name (e.g. --name=mycluster.myzone.com)";
        errors.push(FieldError::invalid(&Path::new("metadata.name"), name, detail));
    }
}

/// Rejects the fields of `removed.tsv`.
fn validate_removed(object: &Object, errors: &mut ErrorList) {
    for row in REMOVED.lines().filter(|line| !line.starts_with('#')) {
        let [kind, path, detail] = row.split('\t').collect::<Vec<_>>()[..] else { continue };
        let path = path.strip_prefix("spec.").unwrap_or(path);
        if kind == object.kind.name() && is_set(object.spec.at(path)) {
            errors.push(FieldError::forbidden(&spec(path), detail));
        }
    }
}

fn values(object: &Object) -> ErrorList {
    let mut errors = ErrorList::new();
    for row in VALUES.lines().filter(|line| !line.starts_with('#')) {
        let [kind, path, values] = row.split('\t').collect::<Vec<_>>()[..] else { continue };
        if kind != object.kind.name() {
            continue;
        }
        let values: Vec<_> = values.split(' ').collect();
        let (may_be_empty, required) = (values.contains(&"-"), values.contains(&"+"));
        let values: Vec<_> = values.into_iter().filter(|v| !["-", "+"].contains(v)).collect();
        let path = path.strip_prefix("spec.").unwrap_or(path);
        let mut check = |value: &Value, at: &Path| {
            let text = value.as_str().or((value.is_null() && required).then_some(""));
            let wrong = |text: &&str| !(values.contains(text) || may_be_empty && text.is_empty());
            if let Some(text) = text.filter(wrong) {
                errors.push(FieldError::not_supported(at, text, &values));
            }
        };
        let root = Path::new("spec");
        match path.split_once("[].") {
            Some((list, field)) => {
                for (number, item) in object.spec.items(list).iter().enumerate() {
                    let at = below(&root, list).index(number).child(field);
                    check(item.get(field).unwrap_or(&Value::Null), &at);
                }
            }
            None => check(object.spec.at(path), &below(&root, path)),
        }
    }
    errors
}
