//! The desired state of a cluster's fleet, from its spec.

use std::{collections::BTreeSet, path::PathBuf};

use instances::{Fleet, FleetSpec, Group};
use kops_api::{Object, Spec as _};
use kops_store::Registry;

use crate::{balancer, error::Error, gateway, model::GroupUserData, repair::repair_after};

fn size(group: &Object) -> u32 {
    group.spec.int("minSize").and_then(|size| u32::try_from(size).ok()).unwrap_or(0)
}

fn is_control_plane(group: &Object) -> bool {
    group.spec.text("role") == "ControlPlane"
}

/// Returns the desired state of a fleet without user data, which is built from the machines' addresses.
pub fn fleet_spec(
    fleet: &Fleet,
    old: Option<&FleetSpec>,
    cluster: &Object,
    groups: &[Object],
    registry: &Registry,
) -> Result<FleetSpec, Error> {
    let mut spec = old.cloned().unwrap_or_default();
    cluster.name().clone_into(&mut spec.cluster);
    spec.secret =
        if registry.is_local() { vec![PathBuf::from(registry.directory())] } else { Vec::new() };
    let before = |name: &str| {
        let groups = old.map(|old| old.groups.as_slice()).unwrap_or_default();
        groups.iter().find(|group| group.name == name).cloned().unwrap_or_default()
    };
    let build_group = |object: &Object| {
        let mut group = Group {
            name: object.name().to_owned(),
            trusted: is_control_plane(object),
            user_data: String::new(),
            repair_after: repair_after(object)?,
            ..before(object.name())
        };
        group.resize(size(object));
        Ok::<_, Error>(group)
    };
    spec.groups = groups.iter().map(build_group).collect::<Result<_, _>>()?;
    if let Some(old) = old {
        check_control_planes(old, &spec)?;
    }
    let ranges = ["networking.podCIDR", "networking.serviceClusterIPRange"];
    let ranges: Vec<_> =
        ranges.iter().filter_map(|path| cluster.spec.text(path).parse().ok()).collect();
    spec.assign(&ranges)?;
    spec.companions = balancer::companions(fleet, &spec)?;
    if !registry.is_local() {
        spec.companions.push(gateway::companion(fleet));
    }
    Ok(spec)
}

/// Rejects a change of the control planes. Each is an etcd member; an additional member would find no quorum that knows
/// it, and a removed one would be missing permanently.
fn check_control_planes(old: &FleetSpec, new: &FleetSpec) -> Result<(), Error> {
    let names = |spec: &FleetSpec| -> BTreeSet<String> {
        spec.groups.iter().filter(|group| group.trusted).flat_map(Group::names).collect()
    };
    let (before, after) = (names(old), names(new));
    if before == after {
        return Ok(());
    }
    let joined = |names: &BTreeSet<String>| names.iter().cloned().collect::<Vec<_>>().join(", ");
    Err(Error::ControlPlanes { old: joined(&before), new: joined(&after) })
}

/// Sets the user data of each group.
pub fn set_user_data(spec: &mut FleetSpec, machines: &[GroupUserData]) {
    for group in &mut spec.groups {
        let found = machines.iter().find(|machine| machine.group.name() == group.name);
        group.user_data = found.map(|machine| machine.user_data.clone()).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_changes_of_control_planes() {
        let of = |groups: &[(&str, u32, bool)]| FleetSpec {
            groups: groups
                .iter()
                .map(|(name, size, trusted)| Group {
                    name: (*name).to_owned(),
                    numbers: (1..=*size).collect(),
                    trusted: *trusted,
                    ..Group::default()
                })
                .collect(),
            ..FleetSpec::default()
        };
        let old = of(&[("cp-a", 1, true), ("nodes", 1, false)]);
        assert!(check_control_planes(&old, &of(&[("nodes", 5, false), ("cp-a", 1, true)])).is_ok());
        for other in [
            of(&[("cp-a", 1, true), ("cp-b", 1, true)]),
            of(&[("cp-b", 1, true)]),
            of(&[("cp-a", 2, true)]),
            of(&[("cp-a", 1, false)]),
        ] {
            let error = check_control_planes(&old, &other).unwrap_err().to_string();
            assert!(error.contains("the cluster's control planes are cp-a-1"), "{error}");
        }
    }
}
