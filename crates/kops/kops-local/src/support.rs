//! Decides what cloud local supports. The commands that write specs and `update` call the same function, so no spec is
//! stored that `update` cannot apply.

use std::collections::BTreeSet;

use api_meta::Tree as _;
use instances::FleetSpec;
use kops_api::Object;
use kops_core::{CloudName, Cluster as _, Version};
use kops_node::nodeup::ETCD_CPU;
use kops_store::ETCD;
use serde_json::Value;
use version::KUBERNETES_VERSION;

use crate::{
    dns::check_dns,
    error::Error,
    fields::check_fields,
    model::complete_objects,
    repair::repair_after,
    spec::{control_plane_names, is_control_plane},
    subnets::check_subnets,
    volumes::is_of_etcd,
};

/// A complete cluster with its complete instance groups.
pub struct CompleteCluster {
    /// The cluster.
    pub cluster: Object,
    /// The groups.
    pub groups: Vec<Object>,
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

/// Completes a cluster and its groups, and rejects by name what cloud local does not support. `fleet` is the state of
/// its machines, if they exist.
///
/// The objects are those of the user. Groups may be missing while the cluster has no machines, because they are stored
/// after their cluster.
pub fn check_support(
    cluster: &Object,
    groups: &[Object],
    fleet: Option<&FleetSpec>,
) -> Result<CompleteCluster, Error> {
    check_cloud(cluster)?;
    std::iter::once(cluster).chain(groups).try_for_each(check_fields)?;
    check_subnets(&cluster.spec)?;
    check_dns(cluster)?;
    check_etcd(&cluster.spec)?;
    let (complete, complete_groups) = complete_objects(cluster, groups)?;
    if !complete.spec.has("networking.cni") {
        unsupported("a Pod network other than --networking cni, which is Windlass' own")?;
    }
    let (requested, own): (Version, Version) =
        (complete.spec.text("kubernetesVersion").parse()?, KUBERNETES_VERSION.parse()?);
    if (requested.major, requested.minor) != (own.major, own.minor) {
        unsupported(&format!("Kubernetes {requested}: machines run this binary, which is {own}"))?;
    }
    complete_groups.iter().try_for_each(check_group)?;
    if let Some(fleet) = fleet {
        let wanted = control_plane_names(&complete_groups);
        check_control_planes(fleet, &wanted.values().flatten().cloned().collect())?;
        check_etcd_clusters(fleet, &complete)?;
        check_members(cluster, groups)?;
    }
    Ok(CompleteCluster { cluster: complete, groups: complete_groups })
}

/// Rejects a cluster with an etcd member whose group does not exist. Its etcd cluster would never have all members.
pub fn check_members(cluster: &Object, groups: &[Object]) -> Result<(), Error> {
    let is_there =
        |name: &str| groups.iter().any(|group| group.name() == name && is_control_plane(group));
    match member_groups(cluster).into_iter().find(|name| !is_there(name)) {
        None => Ok(()),
        Some(group) => Err(Error::MemberGroup { group: group.to_owned() }),
    }
}

/// Returns the groups of etcd's members.
fn member_groups(cluster: &Object) -> BTreeSet<&str> {
    let members =
        cluster.spec.items("etcdClusters").iter().flat_map(|etcd| etcd.items("etcdMembers"));
    members.map(|member| member.text("instanceGroup")).collect()
}

fn check_group(group: &Object) -> Result<(), Error> {
    let name = group.name();
    if group.spec.opt_int("minSize") != group.spec.opt_int("maxSize") {
        unsupported(&format!("minSize of instance group {name} other than its maxSize"))?;
    }
    repair_after(group).map(|_| ())
}

/// Rejects the end of a control plane, whose etcd member would be missing permanently. New control planes join etcd one
/// after another.
fn check_control_planes(fleet: &FleetSpec, after: &BTreeSet<String>) -> Result<(), Error> {
    let groups = fleet.groups.iter().filter(|group| group.trusted);
    let before: BTreeSet<String> = groups.flat_map(instances::Group::names).collect();
    let removed: Vec<String> = before.difference(after).cloned().collect();
    if removed.is_empty() {
        return Ok(());
    }
    Err(Error::ControlPlanes { removed: removed.join(", ") })
}

/// Rejects settings of etcd clusters that would not act, and names that the tags of volumes cannot hold. Each Pod has
/// the requests of `init`'s, so only upstream's default is accepted. The cluster must not be completed.
fn check_etcd(spec: &Value) -> Result<(), Error> {
    for (index, etcd) in spec.items("etcdClusters").iter().enumerate() {
        let (is_main, at) = (etcd.text("name") == ETCD, format!("spec.etcdClusters[{index}]"));
        let cpu = if is_main { ETCD_CPU } else { "100m" };
        if !["", cpu].contains(&etcd.text("cpuRequest")) {
            unsupported(&format!("{at}.cpuRequest other than {cpu}"))?;
        }
        if !is_main && etcd.has("manager.backupInterval") {
            unsupported(&format!("{at}.manager.backupInterval, because only main is backed up"))?;
        }
        let mut names = etcd.items("etcdMembers").iter().map(|member| member.text("name"));
        if let Some(name) = names.find(|name| name.contains([',', '/'])) {
            unsupported(&format!("{at}.etcdMembers: a comma or a slash in the name {name:?}"))?;
        }
    }
    Ok(())
}

/// Rejects an etcd cluster that running control planes do not have. Its members would wait for each other, while a
/// rolling update replaces one machine after another.
fn check_etcd_clusters(fleet: &FleetSpec, cluster: &Object) -> Result<(), Error> {
    if !fleet.groups.iter().any(|group| group.trusted) {
        return Ok(());
    }
    for etcd in cluster.spec.items("etcdClusters") {
        let name = etcd.text("name");
        let has_volume =
            fleet.volumes.iter().any(|volume| is_of_etcd(cluster.name(), &volume.tags, name));
        // Machines of earlier versions have the main one, in a directory.
        if name != ETCD && !has_volume {
            unsupported(&format!(
                "a new etcd cluster, {name}, on control planes that run already"
            ))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use instances::{Group, Volume};
    use kops_core::volumes::member_volume;
    use serde_json::json;

    use super::*;

    fn object(text: &str) -> Object {
        Object::read("test", text.as_bytes()).unwrap()
    }

    /// Returns a cluster whose etcd has a member on each of the given groups.
    fn cluster(members: &[&str]) -> Object {
        let members: Vec<_> =
            members.iter().map(|name| format!("{{name: {name}, instanceGroup: {name}}}")).collect();
        object(&format!(
            "apiVersion: kops.k8s.io/v1alpha2\nkind: Cluster\nmetadata:\n  name: demo.local\n  labels: \
             {{alpha.kops.k8s.io/cloud: local}}\nspec:\n  configBase: file:///state/demo.local\n  kubernetesVersion: \
             1.36.1\n  networking: {{cni: {{}}}}\n  nonMasqueradeCIDR: 100.64.0.0/10\n  authorization: {{rbac: \
             {{}}}}\n  iam: {{}}\n  etcdClusters:\n  - {{name: main, etcdMembers: [{}]}}\n  subnets: [{{name: a, zone: \
             z, type: Public}}]\n  topology: {{dns: {{type: None}}}}\n",
            members.join(", ")
        ))
    }

    fn group(name: &str, role: &str, size: u32) -> Object {
        object(&format!(
            "apiVersion: kops.k8s.io/v1alpha2\nkind: InstanceGroup\nmetadata:\n  name: {name}\n  labels: \
             {{kops.k8s.io/cluster: demo.local}}\nspec: {{role: {role}, minSize: {size}, maxSize: {size}, subnets: [a]}}\n"
        ))
    }

    #[test]
    fn accepts_more_control_planes_and_rejects_the_end_of_one() {
        let of = |name: &str, size: u32, trusted| Group {
            name: name.to_owned(),
            numbers: (1..=size).collect(),
            trusted,
            ..Group::default()
        };
        let fleet = FleetSpec {
            groups: vec![of("cp-a", 1, true), of("nodes", 1, false)],
            ..FleetSpec::default()
        };
        let problem = |members: &[&str], groups: &[Object], fleet| {
            let checked = check_support(&cluster(members), groups, fleet);
            checked.map_or_else(|error| error.to_string(), |_| "accepted".to_owned())
        };
        let (cp, nodes) = (group("cp-a", "Master", 1), group("nodes", "Node", 5));
        let both = [cp.clone(), nodes.clone()];
        assert_eq!(problem(&["cp-a"], &both, Some(&fleet)), "accepted");
        // Groups are stored after their cluster.
        assert_eq!(problem(&["cp-a"], &[], None), "accepted");
        let more = [cp.clone(), group("cp-b", "Master", 1), group("cp-c", "Master", 1)];
        assert_eq!(problem(&["cp-a", "cp-b", "cp-c"], &more, Some(&fleet)), "accepted");
        let mut three = fleet.clone();
        three.groups.extend([of("cp-b", 1, true), of("cp-c", 1, true)]);
        for (fleet, members, groups, expected) in [
            (&fleet, &["cp-a"][..], vec![nodes.clone()], "cp-a-1 would end"),
            (&fleet, &["cp-a", "cp-b", "cp-c"], both.to_vec(), "\"cp-b\" is not one"),
            (&fleet, &["cp-a"], vec![group("cp-a", "Master", 2)], "must have minSize set to 1"),
            (&fleet, &["cp-a"], more.to_vec(), "must have a member"),
            (&fleet, &["cp-b"], vec![group("cp-b", "Master", 1)], "cp-a-1 would end"),
            (&three, &["cp-a"], both.to_vec(), "cp-b-1, cp-c-1 would end"),
        ] {
            let text = problem(members, &groups, Some(fleet));
            assert!(text.contains(expected), "{expected}: {text}");
        }
    }

    #[test]
    fn rejects_settings_of_etcd_that_do_not_act() {
        let check = |etcd: Value| {
            let result = check_etcd(&json!({"etcdClusters": [etcd]}));
            result.map_or_else(|error| error.to_string(), |()| "accepted".to_owned())
        };
        for (name, cpu, expected) in [
            ("main", "200m", "accepted"),
            ("main", "100m", "spec.etcdClusters[0].cpuRequest other than 200m"),
            ("events", "100m", "accepted"),
            ("events", "200m", "spec.etcdClusters[0].cpuRequest other than 100m"),
        ] {
            let text = check(json!({"name": name, "cpuRequest": cpu}));
            assert!(text.contains(expected), "{name} {cpu}: {text}");
        }
        for (name, expected) in [("main", "accepted"), ("events", "only main is backed up")] {
            let manager = json!({"backupInterval": "1h", "backupRetentionDays": 90});
            let text = check(json!({"name": name, "manager": manager}));
            assert!(text.contains(expected), "{name}: {text}");
        }
        for (member, expected) in
            [("a-1.b", "accepted"), ("a,b", "the name \"a,b\""), ("../a", "the name \"../a\"")]
        {
            let text = check(json!({"name": "main", "etcdMembers": [{"name": member}]}));
            assert!(text.contains(expected), "{member}: {text}");
        }
    }

    #[test]
    fn rejects_new_etcd_clusters_on_running_control_planes() {
        let etcd = |name: &str| json!({"name": name, "etcdMembers": [{"name": "a"}]});
        let mut both = cluster(&["cp-a"]);
        both.spec = json!({"etcdClusters": [etcd("main"), etcd("events")]});
        let volume = |name: &str| {
            let (_, tags) = member_volume("demo.local", &etcd(name), "a");
            Volume { id: name.to_owned(), tags, ..Volume::default() }
        };
        let group = Group { name: "cp-a".to_owned(), trusted: true, ..Group::default() };
        let fleet = |names: &[&str]| FleetSpec {
            groups: vec![group.clone()],
            volumes: names.iter().map(|name| volume(name)).collect(),
            ..FleetSpec::default()
        };
        check_etcd_clusters(&FleetSpec::default(), &both).unwrap();
        check_etcd_clusters(&fleet(&["main", "events"]), &both).unwrap();
        for names in [&[][..], &["main"]] {
            let text = check_etcd_clusters(&fleet(names), &both).unwrap_err().to_string();
            assert!(text.contains("a new etcd cluster, events,"), "{text}");
        }
        both.spec = json!({"etcdClusters": [etcd("main")]});
        check_etcd_clusters(&fleet(&[]), &both).unwrap();
    }

    #[test]
    fn rejects_members_without_a_group() {
        let text = check_members(&cluster(&["cp-a"]), &[group("cp-a", "Node", 1)]).unwrap_err();
        assert!(text.to_string().contains("\"cp-a\""), "{text}");
        check_members(&cluster(&["cp-a"]), &[group("cp-a", "Master", 1)]).unwrap();
    }
}
