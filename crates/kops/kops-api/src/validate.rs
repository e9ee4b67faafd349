//! Validates specs, with upstream's messages, so that users can look them up.
//!
//! Fields with a fixed set of values are in `facts/values.tsv`. Rules that involve several fields are code, with a file
//! for each part of the spec. Facts that only the cloud knows (machine types, images) are not checked. Read
//! [`validate_cluster`] first.

mod access;
mod cluster;
mod components;
mod group;
mod machine;
mod network;
mod pods;
mod provider;
mod update;

use api_meta::{Cidr, ErrorList, FieldError, Path};
use serde_json::Value;

pub use self::update::validate_cluster_update;
use crate::{Object, Spec as _};

const VALUES: &str = include_str!("../facts/values.tsv");
const REMOVED: &str = include_str!("../facts/removed.tsv");

/// The label that names the cloud of a cluster without a cloud provider: metal or local.
pub const CLOUD_LABEL: &str = "alpha.kops.k8s.io/cloud";
/// The annotation of an imported cluster, whose name needs no dot.
const MANAGEMENT_ANNOTATION: &str = "kops.kubernetes.io/management";

/// Validates a cluster. `complete` is `true` for a completed one, which must have more fields.
pub fn validate_cluster(cluster: &Object, complete: bool) -> ErrorList {
    let mut errors = name(cluster);
    full_name(cluster, &mut errors);
    errors.extend(values(cluster));
    removed(cluster, &mut errors);
    provider::check(cluster, &mut errors);
    network::check(cluster, complete, &mut errors);
    pods::check(cluster, &mut errors);
    cluster::check(&cluster.spec, complete, &mut errors);
    components::check(cluster, &mut errors);
    machine::check_shared(&cluster.spec, &mut errors);
    access::check(&cluster.spec, complete, &mut errors);
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
    group::check(group, cluster, &mut errors);
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
fn full_name(cluster: &Object, errors: &mut ErrorList) {
    let annotations = cluster.metadata.get("annotations");
    let imported = annotations.and_then(|all| all.get(MANAGEMENT_ANNOTATION));
    let has_records = cluster.spec.text("networking.topology.dns") != "None";
    let name = cluster.name();
    if has_records
        && !name.is_empty()
        && !name.contains('.')
        && imported.and_then(Value::as_str) != Some("imported")
    {
        let detail =
            "Cluster Name must be a fully-qualified DNS name (e.g. --name=mycluster.myzone.com)";
        errors.push(FieldError::invalid(&Path::new("metadata.name"), name, detail));
    }
}

/// Reports whether a field has a value other than Go's empty string.
fn is_set(value: Option<&Value>) -> bool {
    value.is_some_and(|value| !value.is_null() && value != "")
}

/// Rejects the fields of `removed.tsv`.
fn removed(object: &Object, errors: &mut ErrorList) {
    for row in REMOVED.lines().filter(|line| !line.starts_with('#')) {
        let [kind, path, detail] = row.split('\t').collect::<Vec<_>>()[..] else { continue };
        let path = path.strip_prefix("spec.").unwrap_or(path);
        if kind == object.kind.name() && is_set(object.spec.at(path)) {
            errors.push(FieldError::forbidden(&spec(path), detail));
        }
    }
}

/// Parses a version as Go's `semver.ParseTolerant` does: a leading `v` and missing numbers are allowed.
fn version(text: &str) -> Option<[u64; 3]> {
    let plain = text.trim().trim_start_matches('v');
    let plain = plain.split(['-', '+']).next().unwrap_or_default();
    let numbers: Vec<u64> = plain.split('.').map(|n| n.parse().ok()).collect::<Option<_>>()?;
    (numbers.len() <= 3).then(|| std::array::from_fn(|i| numbers.get(i).copied().unwrap_or(0)))
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
                for (number, item) in object.spec.list(list).iter().enumerate() {
                    let at = below(&root, list).index(number).child(field);
                    check(item.get(field).unwrap_or(&Value::Null), &at);
                }
            }
            None => check(object.spec.at(path).unwrap_or(&Value::Null), &below(&root, path)),
        }
    }
    errors
}

/// Returns the path of a field below another.
fn below(root: &Path, path: &str) -> Path {
    path.split('.').fold(root.clone(), |at, name| at.child(name))
}

fn spec(path: &str) -> Path {
    below(&Path::new("spec"), path)
}

/// Validates a range, which must have no bits set outside its prefix.
fn range(at: &Path, text: &str, errors: &mut ErrorList) -> Option<Cidr> {
    let Ok(range) = text.parse::<Cidr>() else {
        let hint = match text.parse::<std::net::IpAddr>() {
            Ok(address) if address.is_ipv4() => format!(" (did you mean \"{text}/32\")"),
            Ok(_) => format!(" (did you mean \"{text}/64\")"),
            Err(_) => String::new(),
        };
        errors.push(FieldError::invalid(at, text, format!("Could not be parsed as a CIDR{hint}")));
        return None;
    };
    if range.network() != range {
        let hint = range.network();
        let detail = format!("Network contains bits outside prefix (did you mean \"{hint}\")");
        errors.push(FieldError::invalid(at, text, detail));
    }
    Some(range.network())
}

fn overlap(a: Cidr, b: Cidr) -> bool {
    a.contains(b.address) || b.contains(a.address)
}

/// Rejects labels that identify machines and volumes, because kOps sets them.
fn cloud_label(key: &str, errors: &mut ErrorList) {
    const PREFIXES: [&str; 3] = ["kubernetes.io/cluster/", "k8s.io/role/", "kops.k8s.io/"];
    let at = spec("cloudLabels").child(key);
    if ["Name", "KubernetesCluster"].contains(&key) {
        let detail = format!("{key:?} is a reserved label and cannot be used as a custom label");
        errors.push(FieldError::forbidden(&at, detail));
    }
    if let Some(prefix) = PREFIXES.iter().find(|prefix| key.starts_with(**prefix)) {
        let detail =
            format!("{prefix:?} is a reserved label prefix and cannot be used as a custom label");
        errors.push(FieldError::forbidden(&at, detail));
    }
}

/// Returns an ARN's resource, the part after the account.
fn arn_resource(text: &str) -> Option<&str> {
    let mut parts = text.splitn(6, ':');
    (parts.next() == Some("arn")).then_some(())?;
    parts.nth(4)
}
