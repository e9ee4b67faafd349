//! What a spec must fulfil before anything is made of it, in upstream's words: people look them up.
//!
//! Fields that take one of a few values stand in `facts/values.tsv`. What depends on several fields is code, a file for
//! each part of the spec. What only the cloud knows (machine types, images) is not asked here.

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

/// The label that names the cloud of a cluster on machines of its own.
pub const CLOUD_LABEL: &str = "alpha.kops.k8s.io/cloud";
/// The annotation of a cluster that is imported, whose name needs no dot.
const MANAGEMENT_ANNOTATION: &str = "kops.kubernetes.io/management";

/// What is wrong with a cluster. `complete` says that completion has been through it: then more must be there.
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

/// What is wrong with an instance group, of a cluster if it is known.
pub fn validate_group(group: &Object, cluster: Option<&Object>) -> ErrorList {
    let mut errors = name(group);
    errors.extend(values(group).into_iter().filter(|error| {
        // Types of volumes are each cloud's own.
        let volume = error.field.as_str() == "spec.rootVolume.type";
        !volume || cluster.is_none_or(|c| c.spec.has("cloudProvider.aws"))
    }));
    group::check(group, cluster, &mut errors);
    errors
}

/// Names become DNS names, and parts of the names of everything that is made.
fn name(object: &Object) -> ErrorList {
    let at = Path::new("metadata.name");
    if object.name().is_empty() {
        return [FieldError::required(&at, "")].into();
    }
    let problems = api_meta::validation::dns1123_subdomain(object.name());
    problems.into_iter().map(|problem| FieldError::invalid(&at, object.name(), problem)).collect()
}

/// Refuses a cluster's name that no DNS zone can contain, if the cluster has records in one.
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

/// Returns `true` if a field has a value other than Go's empty string.
fn is_set(value: Option<&Value>) -> bool {
    value.is_some_and(|value| !value.is_null() && value != "")
}

/// Refuses the fields of `removed.tsv`.
fn removed(object: &Object, errors: &mut ErrorList) {
    for row in REMOVED.lines().filter(|line| !line.starts_with('#')) {
        let [kind, path, detail] = row.split('\t').collect::<Vec<_>>()[..] else { continue };
        let path = path.strip_prefix("spec.").unwrap_or(path);
        if kind == object.kind.name() && is_set(object.spec.at(path)) {
            errors.push(FieldError::forbidden(&spec(path), detail));
        }
    }
}

/// Reads a version as Go's `semver.ParseTolerant` does: a leading `v` and missing numbers are allowed.
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

/// The path of a field below another.
fn below(root: &Path, path: &str) -> Path {
    path.split('.').fold(root.clone(), |at, name| at.child(name))
}

fn spec(path: &str) -> Path {
    below(&Path::new("spec"), path)
}

/// A range with nothing set outside of its prefix.
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

/// What machines and volumes are known by is not the user's to say.
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

/// An ARN's resource: what stands after the account.
fn arn_resource(text: &str) -> Option<&str> {
    let mut parts = text.splitn(6, ':');
    (parts.next() == Some("arn")).then_some(())?;
    parts.nth(4)
}
