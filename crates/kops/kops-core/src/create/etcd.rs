//! Creates the etcd clusters, with one member per control-plane group.

use api_meta::Tree as _;
use kops_api::Object;
use serde_json::json;

use super::options::Options;
use crate::cluster::{CloudName, Cluster};

/// Adds the etcd clusters to the spec.
pub(super) fn create_clusters(options: &Options, cluster: &mut Object, control_planes: &[Object]) {
    let mut names = options.etcd_clusters.clone();
    if options.networking == "cilium-etcd" {
        names.push("cilium".to_owned());
    }
    let encrypt = options.encrypt_etcd_storage.unwrap_or(cluster.cloud() == CloudName::Aws);
    let groups: Vec<_> = control_planes.iter().map(Object::name).collect();
    let members = short_names(&groups).into_iter().zip(&groups).map(|(name, group)| {
        let mut member = json!({"name": name, "instanceGroup": group});
        if encrypt {
            member.put("encryptedVolume", true);
        }
        if !options.etcd_storage_type.is_empty() {
            member.put("volumeType", options.etcd_storage_type.clone());
        }
        member
    });
    let members: Vec<_> = members.collect();
    let clusters = names.iter().map(|name| {
        let cpu = if name == "main" { "200m" } else { "100m" };
        json!({
            "name": name, "cpuRequest": cpu, "memoryRequest": "100Mi", "etcdMembers": members,
            "manager": {"backupRetentionDays": 90},
        })
    });
    cluster.spec.put("etcdClusters", clusters.collect::<Vec<_>>());
}

/// Shortens group names to the part that distinguishes them: volume names contain it, and their length is limited.
fn short_names(groups: &[&str]) -> Vec<String> {
    let plain = |name: &&str| {
        let name = name.strip_prefix("control-plane-").unwrap_or(name);
        name.strip_prefix("master-").unwrap_or(name).to_owned()
    };
    let names: Vec<String> = groups.iter().map(plain).collect();
    let first: Vec<char> = names.first().map(|name| name.chars().collect()).unwrap_or_default();
    // Keep at least one character of the first name, and so of all names that share its beginning.
    let shared = (0..first.len().saturating_sub(1))
        .take_while(|&i| names.iter().all(|name| name.chars().nth(i) == Some(first[i])))
        .count();
    let cut = names.iter().map(|name| name.chars().skip(shared).collect::<String>());
    cut.map(|name| {
        if name.starts_with(|c: char| c.is_ascii_digit()) { format!("etcd-{name}") } else { name }
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_members_by_distinct_part_of_group_names() {
        for (groups, names) in [
            (&["control-plane-us-test-1a"][..], &["a"][..]),
            (&["control-plane-us-test-1a", "control-plane-us-test-1b"], &["a", "b"]),
            (&["master-z-1", "master-z-2", "control-plane-z-3"], &["etcd-1", "etcd-2", "etcd-3"]),
            (&["control-plane-x", "control-plane-xy"], &["x", "xy"]),
            (&["one", "two"], &["one", "two"]),
            (&[], &[]),
        ] {
            assert_eq!(short_names(groups), names);
        }
    }
}
