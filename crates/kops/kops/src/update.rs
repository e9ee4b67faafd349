//! Runs `kops update cluster`: computes the difference between the wanted and the present state as a plan, and with
//! `--yes` carries it out.

use kops_api::Object;
use kops_core::{NodeInputs, Version as Release};
use vfs::{Precondition, Secrecy};

use crate::{
    CommandEnvironment, Error, KOPS, amazon,
    flags::{Target, UpdateCluster, ValidateCluster},
    gateway, get,
    keys::{self, Keyset},
    kubeconfig, local,
    model::{self, StoredObject},
    nodeup,
    plan::{self, Change, ResourceChange, file_changes, key_changes},
    registry::Registry,
    terraform, validate,
    why::{self, MachineSource},
};

struct Plan {
    changes: Vec<Change>,
    groups: Vec<ResourceChange>,
    wanted: instances::FleetSpec,
    /// The machines that keep their old configuration until a rolling update: names and differences.
    outdated: Vec<(String, String)>,
}

pub(crate) async fn run(
    registry: &Registry,
    command: &UpdateCluster,
    name: &str,
    around: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    let cluster = get::named(registry, name)?;
    check_release(registry, name)?;
    check_flags(command, &cluster)?;
    if command.target == Target::Terraform {
        return terraform::run(registry, command, &cluster, around);
    }
    if amazon::is_aws(&cluster) {
        return amazon::update(registry, command, &cluster, around).await;
    }
    // Hold the lock from before reading the present state until the end.
    let lock = if command.yes { Some(registry.lock(name, around)?) } else { None };
    let done = plan_and_apply(registry, command, &cluster, around);
    if let Some(lock) = lock {
        let unlocked = registry.unlock(lock);
        done?;
        unlocked?;
        let wait = ValidateCluster::patient();
        return validate::run(registry, &wait, name, around).await;
    }
    done
}

/// Rejects flags that would have no effect.
fn check_flags(command: &UpdateCluster, cluster: &Object) -> Result<(), Error> {
    let terraform = command.target == Target::Terraform;
    let aws = amazon::is_aws(cluster);
    for (flag, given, meant) in [
        ("--plan-out", &command.plan_out, !terraform),
        ("--out", &command.out, terraform),
        ("--known", &command.known, terraform || aws),
        ("--addons", &command.addons, terraform || aws),
        ("--ssh-public-key", &command.ssh_public_key, terraform || aws),
    ] {
        if given.is_some() && !meant {
            let other = if terraform { "direct" } else { "terraform" };
            return Err(Error::Usage(format!("{flag} is for --target={other}")));
        }
    }
    Ok(())
}

/// Rejects an update by an older kOps, which would undo fields that it does not know.
fn check_release(registry: &Registry, cluster: &str) -> Result<(), Error> {
    let Some((content, _)) = registry.content(&format!("{cluster}/kops-version.txt"))? else {
        return Ok(());
    };
    let last: Release = String::from_utf8_lossy(&content).trim().parse()?;
    let own: Release = KOPS.parse()?;
    if (last.major, last.minor) > (own.major, own.minor) {
        let text = format!(
            "cluster {cluster:?} was last updated by kOps {last}, but this is {own}: use the newer one"
        );
        return Err(Error::Usage(text));
    }
    Ok(())
}

fn plan_and_apply(
    registry: &Registry,
    command: &UpdateCluster,
    cluster: &Object,
    around: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    let plan = plan(registry, cluster, around)?;
    if let Some(path) = &command.plan_out {
        plan::write_plan(
            path,
            cluster.name(),
            "instanceGroups",
            &plan.groups,
            &plan.changes,
            &plan.outdated,
        )?;
    }
    if !command.yes {
        plan::print(&plan.groups, &plan.changes, &plan.outdated, around)?;
        writeln!(around.out, "Must specify --yes to apply changes")?;
        return Ok(());
    }
    execute(registry, cluster.name(), &plan, around)
}

fn plan(
    registry: &Registry,
    user: &Object,
    around: &CommandEnvironment<'_>,
) -> Result<Plan, Error> {
    let name = user.name();
    local::check_cloud(user)?;
    let user_groups = registry.groups(name)?;
    if user_groups.is_empty() {
        return Err(Error::known("cluster", name, "has no instance groups; create some first"));
    }
    let (cluster, groups) = model::completed(user, &user_groups)?;
    let users: Vec<_> = std::iter::once(user).chain(&user_groups).collect();
    local::check(&users, &cluster, &groups)?;
    let mut changes = Vec::new();
    let mut keysets = Vec::new();
    for key in keys::names(&cluster) {
        match keys::read(registry, name, &key)? {
            Some(keyset) => keysets.push(keyset),
            None => {
                let made = Keyset::make(&key, around.now)?;
                changes.extend(key_changes(registry, name, &made)?);
                keysets.push(made);
            }
        }
    }
    let fleet = local::fleet(registry, name);
    let old = fleet.wanted()?;
    let mut wanted = local::wanted_fleet(&fleet, old.as_ref(), &cluster, &groups, registry)?;
    let (url, hash) = local::program()?;
    let inputs = NodeInputs {
        api_addresses: local::api_addresses(&wanted),
        hashes: [(url, hash)].into(),
        ..NodeInputs::default()
    };
    let built = model::build(&cluster, groups, &keysets, inputs)?;
    local::set_user_data(&mut wanted, &built.machines);
    let outdated = outdated(&fleet, &wanted, &built.kept)?;
    changes.extend(file_changes(registry, name, built.kept)?);
    let groups = group_changes(old.as_ref(), &wanted);
    Ok(Plan { changes, groups, wanted, outdated })
}

/// Returns the machines that differ from the new configuration of their group, with the differences.
fn outdated(
    fleet: &instances::Fleet,
    wanted: &instances::FleetSpec,
    kept: &[StoredObject],
) -> Result<Vec<(String, String)>, Error> {
    let mut all = Vec::new();
    for group in &wanted.groups {
        let config = format!("/{}/nodeupconfig.yaml", group.name);
        let config = kept.iter().find(|one| one.name.ends_with(&config));
        let new = MachineSource {
            user_data: &group.user_data,
            config: config.map(|config| config.content.as_bytes()),
        };
        for name in group.names() {
            let made = fleet.machine(&name)?;
            if let Some(made) = made.filter(|machine| machine.version() != group.version()) {
                // The file on the machine is verified by its hash.
                let kept = nodeup::APPLIED_CONFIG.trim_start_matches('/');
                let kept = std::fs::read(fleet.disk(&name).join(kept)).ok();
                let old = MachineSource { user_data: &made.user_data, config: kept.as_deref() };
                all.push((name, why::describe_difference(old, new)));
            }
        }
    }
    Ok(all)
}

fn group_changes(
    old: Option<&instances::FleetSpec>,
    wanted: &instances::FleetSpec,
) -> Vec<ResourceChange> {
    let before =
        |name: &str| old.and_then(|old| old.groups.iter().find(|group| group.name == name));
    let mut changes = Vec::new();
    for group in &wanted.groups {
        let (verb, fields) = match before(&group.name) {
            Some(old) if old == group => continue,
            None => {
                ("create", vec![("Size", group.size().to_string()), ("UserData", group.version())])
            }
            Some(old) => {
                let mut fields = Vec::new();
                if old.size() != group.size() {
                    fields.push(("Size", format!("{} -> {}", old.size(), group.size())));
                }
                if old.user_data != group.user_data {
                    fields.push(("UserData", format!("{} -> {}", old.version(), group.version())));
                }
                if old.repair_after != group.repair_after {
                    let period_text = |group: &instances::Group| match group.repair_after {
                        Some(seconds) => format!("{seconds}s"),
                        None => "never".to_owned(),
                    };
                    fields.push((
                        "RepairAfter",
                        format!("{} -> {}", period_text(old), period_text(group)),
                    ));
                }
                ("modify", fields)
            }
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
        if !wanted.groups.iter().any(|other| other.name == group.name) {
            let fields = vec![("Size".to_owned(), format!("{} -> 0", group.size()))];
            let (kind, name) = ("InstanceGroup", group.name.clone());
            changes.push(ResourceChange { kind, name, verb: "delete", fields });
        }
    }
    changes
}

/// Carries out the plan. Each object is changed only if it has not changed since the plan was made.
fn execute(
    registry: &Registry,
    cluster: &str,
    plan: &Plan,
    around: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    for change in &plan.changes {
        change.carry_out(registry)?;
    }
    let fleet = local::fleet(registry, cluster);
    fleet.write(&plan.wanted)?;
    publish_identity(registry, cluster, &fleet)?;
    gateway::write_settings(registry, &fleet, &plan.wanted, around)?;
    local::write_balancer_files(registry, &fleet, &plan.wanted, around.now)?;
    local::apply(&fleet, &plan.wanted)?;
    kubeconfig::write(registry, cluster, None, kubeconfig::default_lifetime(), around)?;
    let changed = plan.changes.len() + plan.groups.len();
    writeln!(around.out, "\n{changed} resources were changed.")?;
    plan::print_outdated(&plan.outdated, around)?;
    if plan.groups.iter().any(|group| group.verb == "create") {
        writeln!(around.out, "\nCluster is starting.  It should be ready in a few minutes.\n")?;
    }
    Ok(())
}

/// Stores the authority of machine identities for kops-controller.
fn publish_identity(
    registry: &Registry,
    cluster: &str,
    fleet: &instances::Fleet,
) -> Result<(), Error> {
    let name = format!("{cluster}/{}", local::IDENTITY_CA);
    let pem = fleet.authority()?.cert().to_pem();
    let since = match registry.content(&name)? {
        Some((old, _)) if old == pem.as_bytes() => return Ok(()),
        Some((_, version)) => Precondition::Read(version),
        None => Precondition::Absent,
    };
    registry.put(&name, pem.as_bytes(), &since, Secrecy::Open)
}
