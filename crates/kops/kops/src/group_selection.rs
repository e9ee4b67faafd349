//! The instance groups that flags of a rolling update select.

use kops_api::{Object, Spec as _};
use kops_core::roll;

use crate::{error::Error, flags::RollCluster};

/// Returns the selected groups in the order of the update.
pub(crate) fn select_groups(
    mut all: Vec<Object>,
    command: &RollCluster,
) -> Result<Vec<Object>, Error> {
    let names = command.instance_group.iter().chain(&command.exclude_instance_group);
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
    for role in &command.instance_group_roles {
        let lower = role.to_ascii_lowercase();
        let found = known.iter().find(|(_, words)| words.contains(&lower.as_str()));
        let (found, _) = found.ok_or_else(|| Error::Role(role.clone()))?;
        roles.push(*found);
    }
    all.retain(|group| {
        let name = group.name().to_owned();
        (command.instance_group.is_empty() || command.instance_group.contains(&name))
            && !command.exclude_instance_group.contains(&name)
            && (roles.is_empty() || roles.contains(&group.spec.text("role")))
    });
    all.sort_by_key(|group| (roll::rank(group.spec.text("role")), group.name().to_owned()));
    Ok(all)
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
            let chosen = select_groups(all(), &command).map_err(|e| e.to_string())?;
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
