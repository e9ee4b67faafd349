//! Updates a cluster of cloud local: computes the difference between the wanted and the present state as a plan, and
//! with `--yes` carries it out.

use api_meta::Tree as _;
use instances::{Fleet, FleetSpec, Group, Volume};
use kops_api::Object;
use kops_core::{NodeInputs, direct::Selection};
use kops_local::{
    KeyUsers, api_addresses, applied_config, apply_fleet, build_model, check_cloud, check_members,
    check_store, check_support, fleet, fleet_spec, machine_program, needs_proxy_daemon,
    set_user_data, write_balancer_files, write_settings,
};
use kops_node::{check_programs, file_hash};
use kops_store::{
    Change, ClusterObjects, IDENTITY_CA, Keyset, Registry, StoredObject, file_changes, key_changes,
};
use vfs::{Precondition, Secrecy};

use crate::{
    cluster_update::ClusterUpdate,
    difference::{MachineSource, describe_difference},
    environment::CommandEnvironment,
    error::Error,
    group_selection::select_update,
    kubeconfig,
    kubelet_skew::{describe_limit, local_limit},
    plan::{PlanSummary, ResourceChange, hash_state, print_outdated, print_warnings},
    secret,
    update::shrink::Shrink,
};

/// A plan for the store and for the fleet.
struct Plan {
    changes: Vec<Change>,
    groups: Vec<ResourceChange>,
    /// The wanted state of the fleet.
    spec: FleetSpec,
    /// The wanted state together with the machines that have not ended yet.
    interim: FleetSpec,
    /// The hash of the state that the plan was made from; empty unless the plan is in a file.
    state: String,
    /// The machines that keep their old configuration until a rolling update: names and differences.
    outdated: Vec<(String, String)>,
    /// The notes about what the plan leaves out.
    warnings: Vec<String>,
}

impl Plan {
    fn summary(&self) -> PlanSummary<'_> {
        PlanSummary {
            list: "instanceGroups",
            resources: &self.groups,
            changes: &self.changes,
            outdated: &self.outdated,
            state: &self.state,
            warnings: &self.warnings,
        }
    }
}

/// Plans the update of a cluster, and with `--yes` carries it out.
pub(super) async fn plan_and_apply(
    update: ClusterUpdate<'_>,
    context: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    let ClusterUpdate { command, cluster, .. } = update;
    let plan = plan(update, context)?;
    plan.summary().save_and_check(command, cluster.name())?;
    if !command.yes {
        return plan.summary().propose(context.out);
    }
    execute(update, &plan, context).await
}

fn plan(update: ClusterUpdate<'_>, context: &CommandEnvironment<'_>) -> Result<Plan, Error> {
    let ClusterUpdate { registry, command, cluster: user } = update;
    let name = user.name();
    check_cloud(user)?;
    check_store(registry)?;
    let selection = select_update(update)?;
    let user_groups = registry.groups(name)?;
    if user_groups.is_empty() {
        return Err(kops_store::Error::object(
            "cluster",
            name,
            "has no instance groups; create some first",
        )
        .into());
    }
    let encryption_hash = secret::check_stored(registry, user)?;
    let fleet = fleet(registry, name);
    let old = fleet.spec()?;
    check_members(user, &user_groups)?;
    let complete = check_support(user, &user_groups, old.as_ref())?;
    let (cluster, groups) = (complete.cluster, complete.groups);
    let mut changes = Vec::new();
    let keysets = read_keysets(registry, &fleet, &cluster, context, &mut changes)?;
    let mut spec = fleet_spec(&fleet, old.as_ref(), &cluster, &groups, registry)?;
    let (url, hash) = machine_program()?;
    let wanted = cluster.spec.text("kubernetesVersion").to_owned();
    let limit = if command.ignore_kubelet_version_skew {
        None
    } else {
        local_limit(&fleet, old.as_ref(), &wanted)?
    };
    let warnings = limit.iter().map(|limit| describe_limit(limit, &wanted)).collect();
    let inputs = NodeInputs {
        api_addresses: api_addresses(&spec),
        hashes: [(url, hash.clone())].into(),
        kubelet: limit,
        encryption_hash,
        ..NodeInputs::default()
    };
    let has_proxy_daemon = old.as_ref().is_some_and(|old| needs_proxy_daemon(&fleet, old));
    let built = build_model(&cluster, groups, &keysets, inputs, has_proxy_daemon)?;
    set_user_data(&mut spec, &built.user_data);
    if selection.groups.is_some() {
        keep_other_groups(&mut spec, old.as_ref(), &fleet, &selection, &hash)?;
    }
    let outdated = outdated(&fleet, &spec, &built.objects)?;
    changes.extend(file_changes(&ClusterObjects::list(registry, name)?, built.objects)?);
    changes.retain(|change| !selection.excludes_object(&change.name));
    let state = if command.uses_plan_file() {
        hash_state(user, &user_groups, &format!("{hash} {old:?}"), &changes)
    } else {
        String::new()
    };
    let mut groups = group_changes(old.as_ref(), &spec);
    groups.extend(volume_changes(old.as_ref(), &spec));
    let interim = old.map_or_else(|| spec.clone(), |old| spec.with_machines_of(&old));
    Ok(Plan { changes, groups, spec, interim, state, outdated, warnings })
}

/// Reads the keysets of a cluster. Missing ones are generated, and added to the changes.
fn read_keysets(
    registry: &Registry,
    fleet: &Fleet,
    cluster: &Object,
    context: &CommandEnvironment<'_>,
    changes: &mut Vec<Change>,
) -> Result<Vec<Keyset>, Error> {
    let name = cluster.name();
    let users = KeyUsers::of_configured(registry, fleet)?;
    let mut keysets = Vec::new();
    for key in Keyset::names(cluster) {
        let keyset = match Keyset::read(registry, name, &key)? {
            Some(keyset) => keyset,
            None => {
                let keyset = Keyset::generate(&key, context.now)?;
                changes.extend(key_changes(registry, name, &keyset)?);
                keyset
            }
        };
        users.check(&keyset)?;
        keysets.push(keyset);
    }
    Ok(keysets)
}

/// Keeps the groups that the flags do not select as they are. Their machines read the configuration that is stored for
/// their group, which stays too.
fn keep_other_groups(
    spec: &mut FleetSpec,
    old: Option<&FleetSpec>,
    fleet: &Fleet,
    selection: &Selection,
    program: &str,
) -> Result<(), Error> {
    let Some(old) = old else { return Err(Error::NoMachines) };
    let is_kept = |group: &&Group| !selection.has_group(&group.name);
    let kept: Vec<&Group> = old.groups.iter().filter(is_kept).collect();
    // A machine that is made again rejects a program with another hash than in its configuration.
    if !kept.is_empty() && file_hash(&fleet.binary())? != program {
        return Err(Error::ProgramChanged);
    }
    spec.groups.retain(|group| selection.has_group(&group.name));
    for group in kept {
        for name in group.names() {
            if let Some(address) = old.addresses.get(&name) {
                spec.addresses.insert(name, *address);
            }
        }
        spec.groups.push(group.clone());
    }
    Ok(spec.assign(&[])?)
}

/// Returns the machines that differ from the new configuration of their group, with the differences.
fn outdated(
    fleet: &Fleet,
    spec: &FleetSpec,
    objects: &[StoredObject],
) -> Result<Vec<(String, String)>, Error> {
    let mut all = Vec::new();
    for group in &spec.groups {
        let config = format!("/{}/nodeupconfig.yaml", group.name);
        let config = objects.iter().find(|object| object.name.ends_with(&config));
        let new = MachineSource {
            user_data: &group.user_data,
            config: config.map(|config| config.content.as_bytes()),
        };
        for name in group.names() {
            let machine = fleet.machine(&name)?;
            if let Some(machine) = machine.filter(|machine| machine.version() != group.version()) {
                // The file on the machine is verified by its hash.
                let config = applied_config(fleet, &name);
                let old =
                    MachineSource { user_data: &machine.user_data, config: config.as_deref() };
                all.push((name, describe_difference(old, new)));
            }
        }
    }
    Ok(all)
}

fn group_changes(old: Option<&FleetSpec>, spec: &FleetSpec) -> Vec<ResourceChange> {
    let before =
        |name: &str| old.and_then(|old| old.groups.iter().find(|group| group.name == name));
    let mut changes = Vec::new();
    for group in &spec.groups {
        let (verb, fields) = match before(&group.name) {
            Some(old) if old == group => continue,
            None => {
                ("create", vec![("Size", group.size().to_string()), ("UserData", group.version())])
            }
            Some(old) => ("modify", changed_fields(old, group)),
        };
        let fields = fields.into_iter().map(|(field, value)| (field.to_owned(), value));
        changes.push(ResourceChange {
            kind: "InstanceGroup",
            name: group.name.clone(),
            verb,
            fields: fields.collect(),
        });
    }
    for group in old.map(|old| old.groups.as_slice()).unwrap_or_default() {
        if !spec.groups.iter().any(|other| other.name == group.name) {
            let fields = vec![("Size".to_owned(), format!("{} -> 0", group.size()))];
            let (kind, name) = ("InstanceGroup", group.name.clone());
            changes.push(ResourceChange { kind, name, verb: "delete", fields });
        }
    }
    changes
}

/// Returns the changes of volumes. Volumes are deleted with their cluster only.
fn volume_changes(old: Option<&FleetSpec>, spec: &FleetSpec) -> Vec<ResourceChange> {
    let before = |id: &str| old?.volumes.iter().find(|volume| volume.id == id);
    let change = |volume: &Volume| {
        let tags: Vec<_> =
            volume.tags.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let tags = ("Tags".to_owned(), tags.join(", "));
        let (verb, fields) = match before(&volume.id) {
            Some(old) if old == volume => return None,
            Some(_) => ("modify", vec![tags]),
            None => {
                let size = ("Size".to_owned(), format!("{} GiB", volume.size));
                ("create", vec![size, ("Machine".to_owned(), volume.machine.clone()), tags])
            }
        };
        Some(ResourceChange { kind: "Volume", name: volume.id.clone(), verb, fields })
    };
    spec.volumes.iter().filter_map(change).collect()
}

/// Returns the fields that differ, with the old and the new values.
fn changed_fields(old: &Group, new: &Group) -> Vec<(&'static str, String)> {
    let period = |group: &Group| match group.repair_after {
        Some(seconds) => format!("{seconds}s"),
        None => "never".to_owned(),
    };
    let mut fields = Vec::new();
    if old.size() != new.size() {
        fields.push(("Size", format!("{} -> {}", old.size(), new.size())));
    }
    let kept: Vec<String> = new.names().collect();
    let ended: Vec<String> = old.names().filter(|name| !kept.contains(name)).collect();
    if !ended.is_empty() {
        fields.push(("Drained", ended.join(", ")));
    }
    if old.user_data != new.user_data {
        fields.push(("UserData", format!("{} -> {}", old.version(), new.version())));
    }
    if old.repair_after != new.repair_after {
        fields.push(("RepairAfter", format!("{} -> {}", period(old), period(new))));
    }
    fields
}

/// Carries out the plan. Each object is changed only if it has not changed since the plan was made. Machines end last,
/// so that their Pods can move to new ones.
async fn execute(
    update: ClusterUpdate<'_>,
    plan: &Plan,
    context: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    let ClusterUpdate { registry, command, cluster } = update;
    check_programs()?;
    let name = cluster.name();
    for change in &plan.changes {
        change.carry_out(registry)?;
    }
    let fleet = fleet(registry, name);
    fleet.write(&plan.interim)?;
    publish_identity(registry, name, &fleet)?;
    write_settings(registry, &fleet, &plan.spec, context.environment)?;
    write_balancer_files(registry, &fleet, &plan.spec, context.now)?;
    apply_fleet(&fleet, &plan.interim)?;
    if command.create_kube_config != Some(false) {
        let lifetime =
            command.admin.map_or_else(kubeconfig::default_lifetime, api_config::GoDuration::to_std);
        kubeconfig::write_updated(update, Some(lifetime), context)?;
    }
    let shrink = Shrink::new(&fleet, plan.interim.clone(), &plan.spec);
    shrink.run(registry, cluster, &command.api, context).await?;
    let changed = plan.changes.len() + plan.groups.len();
    writeln!(context.out, "\n{changed} resources were changed.")?;
    print_outdated(&plan.outdated, context.out)?;
    print_warnings(&plan.warnings, context.out)?;
    if plan.groups.iter().any(|group| group.verb == "create") {
        writeln!(context.out, "\nCluster is starting.  It should be ready in a few minutes.\n")?;
    }
    Ok(())
}

/// Stores the authority of machine identities for kops-controller.
fn publish_identity(registry: &Registry, cluster: &str, fleet: &Fleet) -> Result<(), Error> {
    let name = format!("{cluster}/{}", IDENTITY_CA);
    let pem = fleet.authority()?.cert().to_pem();
    let since = match registry.read_object(&name)? {
        Some((old, _)) if old == pem.as_bytes() => return Ok(()),
        Some((_, version)) => Precondition::Read(version),
        None => Precondition::Absent,
    };
    Ok(registry.write_object(&name, pem.as_bytes(), &since, Secrecy::Open)?)
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs};

    use super::*;

    fn group(name: &str, numbers: &[u32], user_data: &str) -> Group {
        Group {
            name: name.to_owned(),
            numbers: numbers.iter().copied().collect(),
            user_data: user_data.to_owned(),
            ..Group::default()
        }
    }

    fn spec(groups: &[Group]) -> FleetSpec {
        let mut spec = FleetSpec {
            cluster: "a.local".to_owned(),
            link: "172.29.7.0/24".to_owned(),
            groups: groups.to_vec(),
            ..FleetSpec::default()
        };
        spec.assign(&[]).unwrap();
        spec
    }

    #[test]
    fn shows_new_volumes_and_changed_tags() {
        let volume = |id: &str, tag: &str| Volume {
            id: id.to_owned(),
            machine: format!("{id}-1"),
            size: 20,
            tags: [("k".to_owned(), tag.to_owned())].into(),
        };
        let of = |volumes| FleetSpec { volumes, ..FleetSpec::default() };
        let old = of(vec![volume("a", "1"), volume("b", "1")]);
        let new = of(vec![volume("a", "1"), volume("b", "2"), volume("c", "1")]);
        let changes = volume_changes(Some(&old), &new);
        let shown: Vec<_> = changes.iter().map(|change| (change.verb, &*change.name)).collect();
        assert_eq!(shown, [("modify", "b"), ("create", "c")]);
        assert_eq!(changes[0].fields, [("Tags".to_owned(), "k=2".to_owned())]);
        assert_eq!(volume_changes(None, &old).len(), 2);
    }

    #[test]
    fn keeps_machines_of_unselected_groups_as_they_are() {
        let dir = tempfile::tempdir().unwrap();
        let fleet = Fleet::at(dir.path());
        fs::create_dir_all(fleet.programs()).unwrap();
        fs::write(fleet.binary(), "program").unwrap();
        let program = file_hash(&fleet.binary()).unwrap();
        let old = spec(&[
            group("cp", &[1], "old"),
            group("gone", &[1], "old"),
            group("nodes", &[1, 2], "old"),
        ]);
        let groups = [
            group("added", &[1, 2], "new"),
            group("cp", &[1], "new"),
            group("nodes", &[1, 2, 3], "new"),
        ];
        let mut new = FleetSpec { groups: groups.to_vec(), ..old.clone() };
        let mut all = new.with_machines_of(&old);
        all.assign(&[]).unwrap();
        new.addresses = all.addresses;
        new.assign(&[]).unwrap();
        let select = |names: &[&str]| Selection {
            groups: Some(names.iter().map(|name| (*name).to_owned()).collect()),
            ..Selection::default()
        };
        let mut kept = new.clone();
        keep_other_groups(&mut kept, Some(&old), &fleet, &select(&["cp"]), &program).unwrap();
        let found = |name: &str| kept.groups.iter().find(|group| group.name == name);
        assert_eq!(found("cp"), Some(&new.groups[1]));
        for same in ["nodes", "gone"] {
            let before = old.groups.iter().find(|group| group.name == same);
            assert_eq!(found(same), before, "{same}");
        }
        assert_eq!(found("added"), None);
        for name in old.names() {
            assert_eq!(kept.addresses.get(&name), old.addresses.get(&name), "{name}");
        }
        let addresses: BTreeSet<_> = kept.addresses.values().collect();
        assert_eq!(addresses.len(), kept.names().count());
        // Nothing is kept if there is nothing, and no machine may be left with another program.
        let select = select(&["cp"]);
        let error = keep_other_groups(&mut new.clone(), None, &fleet, &select, &program);
        assert!(matches!(error, Err(Error::NoMachines)));
        let error = keep_other_groups(&mut new.clone(), Some(&old), &fleet, &select, "other");
        assert!(matches!(error, Err(Error::ProgramChanged)));
    }
}
