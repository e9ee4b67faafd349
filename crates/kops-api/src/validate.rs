//! What a spec must fulfil before anything is made of it, in upstream's words: people look them up.
//!
//! Fields that take one of a few values stand in `facts/values.tsv`. What depends on several fields is code, a file for
//! each part of the spec. What only the cloud knows (machine types, images) is not asked here.

mod access;
mod cluster;
mod group;
mod network;
mod pods;
mod update;

use api_meta::{Cidr, ErrorList, FieldError, Path};
use serde_json::Value;

pub use self::update::validate_cluster_update;
use crate::{Kind, Object, Spec as _};

const VALUES: &str = include_str!("../facts/values.tsv");

/// What is wrong with a cluster. `complete` says that completion has been through it: then more must be there.
pub fn validate_cluster(cluster: &Object, complete: bool) -> ErrorList {
    let mut errors = name(cluster);
    errors.extend(values(cluster));
    network::check(cluster, complete, &mut errors);
    pods::check(&cluster.spec, &mut errors);
    cluster::check(&cluster.spec, complete, &mut errors);
    access::check(&cluster.spec, &mut errors);
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
    let problems = match object.kind {
        Kind::Cluster => api_meta::validation::dns1123_subdomain(object.name()),
        _ => api_meta::validation::dns1123_subdomain(object.name()),
    };
    problems.into_iter().map(|problem| FieldError::invalid(&at, object.name(), problem)).collect()
}

fn values(object: &Object) -> ErrorList {
    let mut errors = ErrorList::new();
    for row in VALUES.lines().filter(|line| !line.starts_with('#')) {
        let [kind, path, values] = row.split('\t').collect::<Vec<_>>()[..] else { continue };
        if kind != object.kind.name() {
            continue;
        }
        let values: Vec<_> = values.split(' ').collect();
        let path = path.strip_prefix("spec.").unwrap_or(path);
        let mut check = |value: &Value, at: &Path| match value.as_str() {
            Some(text) if !values.contains(&text) => {
                errors.push(FieldError::not_supported(at, text, &values));
            }
            _ => {}
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
