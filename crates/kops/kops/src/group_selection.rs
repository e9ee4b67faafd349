//! The instance groups that flags of updates and rolling updates select.

use api_meta::Tree as _;
use kops_api::Object;
use kops_core::{
    direct::{Phase, Selection},
    roll,
};

use crate::{
    cluster_update::ClusterUpdate,
    error::Error,
    flags::{RollCluster, UpdateCluster},
};

/// The flags that select instance groups.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct GroupFilter<'a> {
    /// The names of the selected groups; empty for all.
    pub(crate) names: &'a [String],
    /// The names of the groups that are not selected.
    pub(crate) excluded: &'a [String],
    /// The roles of the selected groups; empty for all.
    pub(crate) roles: &'a [String],
}

impl<'a> From<&'a RollCluster> for GroupFilter<'a> {
    fn from(command: &'a RollCluster) -> Self {
        Self {
            names: &command.instance_group,
            excluded: &command.exclude_instance_group,
            roles: &command.instance_group_roles,
        }
    }
}

impl<'a> From<&'a UpdateCluster> for GroupFilter<'a> {
    fn from(command: &'a UpdateCluster) -> Self {
        Self { names: &command.instance_group, excluded: &[], roles: &command.instance_group_roles }
    }
}

/// Returns the selected groups in the order of a rolling update.
pub(crate) fn select_groups(
    mut all: Vec<Object>,
    filter: GroupFilter<'_>,
) -> Result<Vec<Object>, Error> {
    let names = filter.names.iter().chain(filter.excluded);
    for name in names {
        if !all.iter().any(|group| group.name() == name) {
            return Err(kops_store::Error::object("InstanceGroup", name, "not found").into());
        }
    }
    let known = [
        ("ControlPlane", ["controlplane", "control-plane", "master"]),
        ("Node", ["node", "node", "node"]),
        ("APIServer", ["apiserver", "api-server", "apiserver"]),
        ("Bastion", ["bastion", "bastion", "bastion"]),
    ];
    let mut roles = Vec::new();
    for role in filter.roles {
        let lower = role.to_ascii_lowercase();
        let found = known.iter().find(|(_, words)| words.contains(&lower.as_str()));
        let (found, _) = found.ok_or_else(|| Error::Role(role.clone()))?;
        roles.push(*found);
    }
    all.retain(|group| {
        let name = group.name().to_owned();
        (filter.names.is_empty() || filter.names.contains(&name))
            && !filter.excluded.contains(&name)
            && (roles.is_empty() || roles.contains(&group.spec.text("role")))
    });
    all.sort_by_key(|group| (roll::rank(group.spec.text("role")), group.name().to_owned()));
    Ok(all)
}

/// Returns the part of a cluster that the flags of an update select.
pub(crate) fn select_update(update: ClusterUpdate<'_>) -> Result<Selection, Error> {
    let ClusterUpdate { registry, command, cluster } = update;
    let groups = if command.selects_groups() {
        let selected = select_groups(registry.groups(cluster.name())?, command.into())?;
        Some(selected.iter().map(|group| group.name().to_owned()).collect())
    } else {
        None
    };
    Ok(Selection {
        phase: command.phase.map(Phase::from),
        overrides: Selection::parse_overrides(&command.lifecycle_overrides)?,
        groups,
        prune: command.prune,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(name: &str, role: &str) -> Object {
        let text = format!(
            "apiVersion: kops.k8s.io/v1alpha2\nkind: InstanceGroup\nmetadata: {{name: {name}}}\nspec: {{role: {role}}}\n"
        );
        Object::read("a", text.as_bytes()).unwrap()
    }

    #[test]
    fn selects_groups_and_puts_control_planes_first() {
        let all = || {
            vec![
                group("a-nodes", "Node"),
                group("cp-b", "ControlPlane"),
                group("cp-a", "ControlPlane"),
            ]
        };
        let names = |change: &dyn Fn(&mut RollCluster)| {
            let mut command = RollCluster::default();
            change(&mut command);
            let chosen = select_groups(all(), (&command).into()).map_err(|e| e.to_string())?;
            Ok::<_, String>(
                chosen.iter().map(|g| g.name().to_owned()).collect::<Vec<_>>().join(" "),
            )
        };
        assert_eq!(names(&|_| ()).unwrap(), "cp-a cp-b a-nodes");
        assert_eq!(names(&|c| c.instance_group = vec!["cp-b".into()]).unwrap(), "cp-b");
        assert_eq!(
            names(&|c| c.exclude_instance_group = vec!["cp-b".into()]).unwrap(),
            "cp-a a-nodes"
        );
        assert_eq!(
            names(&|c| c.instance_group_roles = vec!["Master".into()]).unwrap(),
            "cp-a cp-b"
        );
        assert_eq!(names(&|c| c.instance_group_roles = vec!["node".into()]).unwrap(), "a-nodes");
        assert!(
            names(&|c| c.instance_group = vec!["x".into()])
                .unwrap_err()
                .contains("\"x\" not found")
        );
        assert!(
            names(&|c| c.instance_group_roles = vec!["x".into()])
                .unwrap_err()
                .contains("role \"x\"")
        );
    }
}
