//! The desired state of a cluster's fleet, from its spec.

use std::{collections::BTreeMap, path::PathBuf};

use api_meta::Tree as _;
use instances::{Fleet, FleetSpec, Group};
use kops_api::Object;
use kops_store::Registry;

use crate::{
    balancer, error::Error, gateway, model::GroupUserData, repair::repair_after,
    volumes::member_volumes,
};

fn size(group: &Object) -> u32 {
    group.spec.opt_int("minSize").and_then(|size| u32::try_from(size).ok()).unwrap_or(0)
}

/// Reports whether a group's machines are control planes.
pub(crate) fn is_control_plane(group: &Object) -> bool {
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
    let machine_of = |name: &str| {
        spec.groups.iter().find(|group| group.trusted && group.name == name)?.members().next()
    };
    spec.volumes = member_volumes(cluster, old, machine_of);
    let ranges = ["networking.podCIDR", "networking.serviceClusterIPRange"];
    let ranges: Vec<_> =
        ranges.iter().filter_map(|path| cluster.spec.text(path).parse().ok()).collect();
    // Machines that end keep their addresses until then, so that new ones get others.
    let mut all = old.map_or_else(|| spec.clone(), |old| spec.with_machines_of(old));
    all.assign(&ranges)?;
    (spec.link, spec.addresses) = (all.link, all.addresses);
    spec.assign(&ranges)?;
    spec.companions = balancer::companions(fleet, &spec)?;
    if !registry.is_local() {
        spec.companions.push(gateway::companion(fleet));
    }
    Ok(spec)
}

/// Returns the names of the control planes' machines, by group.
pub(crate) fn control_plane_names(groups: &[Object]) -> BTreeMap<String, Vec<String>> {
    let control_planes = groups.iter().filter(|group| is_control_plane(group));
    let names = control_planes.map(|object| {
        let mut group = Group { name: object.name().to_owned(), ..Group::default() };
        group.resize(size(object));
        (group.name.clone(), group.names().collect())
    });
    names.collect()
}

/// Sets the user data of each group.
pub fn set_user_data(spec: &mut FleetSpec, machines: &[GroupUserData]) {
    for group in &mut spec.groups {
        let found = machines.iter().find(|machine| machine.group.name() == group.name);
        group.user_data = found.map(|machine| machine.user_data.clone()).unwrap_or_default();
    }
}
