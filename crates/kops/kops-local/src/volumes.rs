//! The volumes of a cluster's etcd members, from its spec.

use api_meta::Tree as _;
use instances::{FleetSpec, Volume};
use kops_api::Object;
use kops_core::volumes::{SIZE, VolumeTags, etcd_of, member_volume};

/// Returns the volumes of etcd's members. A volume stays while its machine's name and its etcd cluster do.
///
/// `machine_of` returns the name of a group's machine. Machines that existed without volumes keep the directories that
/// earlier versions gave them.
pub(crate) fn member_volumes(
    cluster: &Object,
    old: Option<&FleetSpec>,
    machine_of: impl Fn(&str) -> Option<String>,
) -> Vec<Volume> {
    let present = old.map(|old| old.volumes.as_slice()).unwrap_or_default();
    let mut volumes: Vec<Volume> = Vec::new();
    for etcd in cluster.spec.items("etcdClusters") {
        for member in etcd.items("etcdMembers") {
            let Some(machine) = machine_of(member.text("instanceGroup")) else { continue };
            let (_, tags) = member_volume(cluster.name(), etcd, member.text("name"));
            let is_used = |id: &str| volumes.iter().chain(present).any(|volume| volume.id == id);
            let is_own = |volume: &&Volume| {
                volume.machine == machine
                    && is_of_etcd(cluster.name(), &volume.tags, etcd.text("name"))
            };
            let volume = match present.iter().find(is_own) {
                Some(volume) => Volume { tags, ..volume.clone() },
                None if has_directory(old, &machine) => continue,
                None => {
                    let id = free_id(member.text("name"), etcd.text("name"), is_used);
                    Volume { id, machine, size: SIZE.unsigned_abs(), tags }
                }
            };
            volumes.push(volume);
        }
    }
    volumes
}

/// Reports whether the tags of a volume name a member of an etcd cluster.
pub(crate) fn is_of_etcd(cluster: &str, tags: &VolumeTags, etcd: &str) -> bool {
    etcd_of(cluster, tags) == Ok(Some(etcd))
}

/// Reports whether a machine was made by an earlier version, whose machines have directories.
fn has_directory(old: Option<&FleetSpec>, machine: &str) -> bool {
    old.is_some_and(|old| {
        old.names().any(|name| name == machine)
            && !old.volumes.iter().any(|volume| volume.machine == machine)
    })
}

/// Returns an ID that no volume has. Mount points contain it.
fn free_id(member: &str, etcd: &str, is_used: impl Fn(&str) -> bool) -> String {
    let first = format!("{member}-etcd-{etcd}");
    let others = (2..).map(|number| format!("{first}-{number}"));
    std::iter::once(first.clone()).chain(others).find(|id| !is_used(id)).unwrap_or(first)
}

#[cfg(test)]
mod tests {
    use instances::Group;
    use kops_api::Kind;
    use serde_json::json;

    use super::*;

    fn cluster(members: &[&str]) -> Object {
        let members: Vec<_> = members
            .iter()
            .map(|name| json!({"name": name, "instanceGroup": format!("cp-{name}")}))
            .collect();
        let mut cluster = Object::new(Kind::Cluster, "a.local");
        cluster.spec = json!({"etcdClusters": [{"name": "main", "etcdMembers": members}]});
        cluster
    }

    fn volumes(members: &[&str], old: Option<&FleetSpec>) -> Vec<Volume> {
        member_volumes(&cluster(members), old, |group| Some(format!("{group}-1")))
    }

    fn fleet(machines: &[&str], volumes: Vec<Volume>) -> FleetSpec {
        let group = |name: &&str| Group {
            name: (*name).to_owned(),
            numbers: [1].into(),
            trusted: true,
            ..Group::default()
        };
        FleetSpec { groups: machines.iter().map(group).collect(), volumes, ..FleetSpec::default() }
    }

    #[test]
    fn members_keep_their_volumes() {
        let first = volumes(&["a"], None);
        let shown: Vec<_> =
            first.iter().map(|v| (v.id.as_str(), v.machine.as_str(), v.size)).collect();
        assert_eq!(shown, [("a-etcd-main", "cp-a-1", 20)]);
        let fleet = fleet(&["cp-a"], first.clone());
        assert_eq!(volumes(&["a"], Some(&fleet)), first);
        // More members change the tags of the first one.
        let more = volumes(&["a", "b"], Some(&fleet));
        assert_eq!((more[0].id.as_str(), more[1].id.as_str()), ("a-etcd-main", "b-etcd-main"));
        assert_eq!(more[0].tags["k8s.io/etcd/main"], "a/a,b");
        // Another machine does not get the volume of a machine with the member's name.
        let moved = member_volumes(&cluster(&["a"]), Some(&fleet), |_| Some("cp-z-1".to_owned()));
        assert_eq!((moved[0].id.as_str(), moved[0].machine.as_str()), ("a-etcd-main-2", "cp-z-1"));
    }

    #[test]
    fn machines_of_earlier_versions_keep_their_directories() {
        let old = fleet(&["cp-a"], Vec::new());
        assert_eq!(volumes(&["a"], Some(&old)), []);
        // A further control plane gets a volume, and the first one still has none.
        let grown = volumes(&["a", "b"], Some(&old));
        assert_eq!(grown.iter().map(|v| v.machine.as_str()).collect::<Vec<_>>(), ["cp-b-1"]);
        let next = fleet(&["cp-a", "cp-b"], grown.clone());
        assert_eq!(volumes(&["a", "b"], Some(&next)), grown);
    }
}
