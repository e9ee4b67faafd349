//! Rejects settings that machines of cloud local would ignore.

use api_meta::Cidr;
use bootstrap_core::constants::KUBERNETES_VERSION;
use kops_api::{Kind, Object, Spec as _, overlap};
use kops_core::{CloudName, Cluster as _, Version};
use serde_json::Value;

use crate::{error::Error, repair::repair_after};

/// The supported fields of a spec. Other fields are rejected instead of silently ignored.
const FIELDS: [&str; 17] = [
    "api",
    "authorization",
    "channel",
    "cloudLabels",
    "configStore",
    "etcdClusters",
    "iam",
    "kubelet",
    "kubernetesVersion",
    "networking",
    "rollingUpdate",
    "sshAccess",
    "controlPlaneKubelet",
    "kubeAPIServer",
    "clusterDNSDomain",
    "updatePolicy",
    "kubeControllerManager",
];
/// The supported fields within parts of the spec.
const PARTS: [(&str, &[&str]); 5] = [
    ("kubelet", &["anonymousAuth"]),
    ("controlPlaneKubelet", &["anonymousAuth"]),
    ("kubeAPIServer", &["anonymousAuth"]),
    ("kubeControllerManager", &[]),
    ("authorization", &["rbac"]),
];

/// The supported fields of an instance group.
const GROUP_FIELDS: [&str; 11] = [
    "cloudLabels",
    "fileAssets",
    "manager",
    "maxSize",
    "minSize",
    "nodeLabels",
    "role",
    "rollingUpdate",
    "subnets",
    "taints",
    "updatePolicy",
];

/// Rejects a cluster or an instance group with a field that this cloud would ignore, before it is stored.
pub fn check_fields(object: &Object) -> Result<(), Error> {
    let (known, parts, of) = match object.kind {
        Kind::Cluster => (&FIELDS[..], &PARTS[..], String::new()),
        _ => (&GROUP_FIELDS[..], &[][..], format!(" of instance group {}", object.name())),
    };
    let members = |path: &str| -> Vec<&String> {
        let found = if path.is_empty() { Some(&object.spec) } else { object.spec.at(path) };
        let found = found.and_then(Value::as_object).into_iter().flatten();
        found.filter(|(_, value)| !value.is_null()).map(|(name, _)| name).collect()
    };
    if let Some(name) = members("").iter().find(|name| !known.contains(&name.as_str())) {
        return unsupported(&format!("spec.{name}{of}"));
    }
    for (part, known) in parts {
        if let Some(name) = members(part).iter().find(|name| !known.contains(&name.as_str())) {
            return unsupported(&format!("spec.{part}.{name}{of}"));
        }
    }
    if object.kind == Kind::Cluster { check_subnets(&object.spec) } else { Ok(()) }
}

/// Rejects subnets that overlap, which upstream's validation permits for each cloud.
fn check_subnets(spec: &Value) -> Result<(), Error> {
    let subnets = spec.list("networking.subnets").iter();
    let range =
        |subnet: &Value| Some((subnet.text("name").to_owned(), subnet.text("cidr").parse().ok()?));
    let mut ranges: Vec<(String, Cidr)> = subnets.filter_map(range).collect();
    // Ranges are disjoint, or one covers the other. So one that overlaps any overlaps its neighbour.
    ranges.sort_by_key(|(_, range)| (range.network().address, range.prefix));
    for pair in ranges.windows(2) {
        if let [(first, a), (second, b)] = pair
            && overlap(*a, *b)
        {
            let first = format!("{a} of subnet {first:?}");
            let second = format!("{b} of subnet {second:?}");
            return Err(Error::Subnets { first, second });
        }
    }
    Ok(())
}

fn unsupported(setting: &str) -> Result<(), Error> {
    Err(Error::Unsupported { setting: setting.to_owned() })
}

/// Rejects clusters of other clouds.
pub fn check_cloud(cluster: &Object) -> Result<(), Error> {
    if cluster.cloud() == CloudName::Local {
        return Ok(());
    }
    Err(Error::Cloud { cloud: cluster.cloud().word() })
}

/// Rejects unsupported settings by name.
///
/// `users` are the stored objects before completion.
pub fn check_objects(users: &[&Object], cluster: &Object, groups: &[Object]) -> Result<(), Error> {
    users.iter().try_for_each(|object| check_fields(object))?;
    if !cluster.spec.has("networking.cni") {
        return unsupported("a Pod network other than --networking cni, which is Windlass' own");
    }
    let etcd = cluster.spec.list("etcdClusters");
    if let Some(other) = etcd.iter().map(|etcd| etcd.text("name")).find(|name| *name != "main") {
        return unsupported(&format!("etcd cluster {other:?} beside main"));
    }
    let (requested, own): (Version, Version) =
        (cluster.spec.text("kubernetesVersion").parse()?, KUBERNETES_VERSION.parse()?);
    if (requested.major, requested.minor) != (own.major, own.minor) {
        return unsupported(&format!(
            "Kubernetes {requested}: machines run this binary, which is {own}"
        ));
    }
    for group in groups {
        let (name, role) = (group.name(), group.spec.text("role"));
        if !["ControlPlane", "Node"].contains(&role) {
            return unsupported(&format!("role {role} of instance group {name}"));
        }
        if group.spec.int("minSize") != group.spec.int("maxSize") {
            return unsupported(&format!(
                "minSize of instance group {name} other than its maxSize"
            ));
        }
        repair_after(group)?;
        if role == "ControlPlane" && group.spec.int("minSize") != Some(1) {
            return unsupported(&format!(
                "a size other than 1 of instance group {name} of control planes"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rejects_overlapping_subnets_by_name() {
        let check = |ranges: &[&str]| {
            let subnet = |(number, cidr)| json!({"name": format!("s{number}"), "cidr": cidr});
            let subnets: Vec<Value> = (0..).zip(ranges).map(subnet).collect();
            check_subnets(&json!({"networking": {"subnets": subnets}}))
        };
        for disjoint in [
            &[][..],
            &["10.0.0.0/16"],
            &["10.0.128.0/17", "10.0.0.0/17", "10.1.0.0/16"],
            &["10.0.0.0/16", "fd00::/64", "", "x"],
        ] {
            assert!(check(disjoint).is_ok(), "{disjoint:?}");
        }
        for overlapping in [
            &["10.0.0.0/16", "10.0.0.0/17"][..],
            &["10.0.0.0/16", "10.0.0.0/16"],
            &["10.0.64.0/24", "10.2.0.0/16", "10.0.0.0/16"],
            &["10.0.0.0/8", "10.0.0.0/24", "10.0.1.0/24"],
            &["fd00::/48", "fd00:0:0:1::/64"],
        ] {
            assert!(matches!(check(overlapping), Err(Error::Subnets { .. })), "{overlapping:?}");
        }
        let error = check(&["10.0.0.0/17", "10.0.0.0/16"]).unwrap_err().to_string();
        assert!(
            error.contains("10.0.0.0/16 of subnet \"s1\" and 10.0.0.0/17 of subnet \"s0\" overlap"),
            "{error}"
        );
    }
}
