//! `kops update cluster`: what is wanted, what there is, the difference as a plan, and with `--yes` its execution.

use kops_api::Object;
use kops_core::{NodeInputs, Version as Release};
use serde_json::json;
use vfs::{Secrecy, Since};

use crate::{
    Error, KOPS, Surroundings,
    flags::{Target, UpdateCluster, ValidateCluster},
    gateway, get,
    keys::{self, Keyset},
    kubeconfig, local,
    model::{self, Kept},
    nodeup,
    registry::Registry,
    terraform, validate,
    why::{self, Made},
};

/// Directories of a cluster in which what is not wanted any more is deleted.
const OWNED: [&str; 3] = ["igconfig", "manifests", "addons"];

/// One change of the store.
struct Change {
    kind: &'static str,
    /// The object's whole name.
    name: String,
    /// What is to be there; nothing if the object is to go.
    content: Option<String>,
    secrecy: Secrecy,
    /// What was there when the plan was made.
    since: Since,
}

impl Change {
    fn verb(&self) -> &'static str {
        match (&self.content, &self.since) {
            (None, _) => "delete",
            (_, Since::Absent) => "create",
            _ => "modify",
        }
    }
}

/// What is done with a group's machines.
struct GroupChange {
    name: String,
    verb: &'static str,
    told: Vec<(&'static str, String)>,
}

struct Plan {
    changes: Vec<Change>,
    groups: Vec<GroupChange>,
    wanted: instances::Wanted,
    /// Machines that go on as they were made, and are replaced by a rolling update only: their names, and what differs.
    outdated: Vec<(String, String)>,
}

pub(crate) async fn run(
    registry: &Registry,
    command: &UpdateCluster,
    name: &str,
    around: &mut Surroundings<'_>,
) -> Result<(), Error> {
    let cluster = get::named(registry, name)?;
    check_release(registry, name)?;
    check_flags(command)?;
    if command.target == Target::Terraform {
        return terraform::run(registry, command, &cluster, around);
    }
    // Whoever changes things holds off the others from before it looks until it is done.
    let lock = if command.yes { Some(registry.lock(name, around)?) } else { None };
    let done = look_and_change(registry, command, &cluster, around);
    if let Some(lock) = lock {
        let unlocked = registry.unlock(lock);
        done?;
        unlocked?;
        let wait = ValidateCluster::patient();
        return validate::run(registry, &wait, name, around).await;
    }
    done
}

/// Flags that would do nothing are not taken.
fn check_flags(command: &UpdateCluster) -> Result<(), Error> {
    let terraform = command.target == Target::Terraform;
    for (flag, given, meant) in [
        ("--plan-out", &command.plan_out, !terraform),
        ("--out", &command.out, terraform),
        ("--known", &command.known, terraform),
        ("--addons", &command.addons, terraform),
        ("--ssh-public-key", &command.ssh_public_key, terraform),
    ] {
        if given.is_some() && !meant {
            let other = if terraform { "direct" } else { "terraform" };
            return Err(Error::Usage(format!("{flag} is for --target={other}")));
        }
    }
    Ok(())
}

/// Who is older than the one that last changed the cluster would undo what it does not know of.
fn check_release(registry: &Registry, cluster: &str) -> Result<(), Error> {
    let Some((content, _)) = registry.content(&format!("{cluster}/kops-version.txt"))? else {
        return Ok(());
    };
    let last: Release = String::from_utf8_lossy(&content).trim().parse()?;
    let own: Release = KOPS.parse()?;
    if (last.major, last.minor) > (own.major, own.minor) {
        let text = format!(
            "cluster {cluster:?} was last updated by kOps {last}, and this is {own}: use the newer one"
        );
        return Err(Error::Usage(text));
    }
    Ok(())
}

fn look_and_change(
    registry: &Registry,
    command: &UpdateCluster,
    cluster: &Object,
    around: &mut Surroundings<'_>,
) -> Result<(), Error> {
    let plan = plan(registry, cluster, around)?;
    if let Some(path) = &command.plan_out {
        let text = document(cluster.name(), &plan).to_string();
        std::fs::write(path, text).map_err(Error::file("writing the plan to", path))?;
    }
    if !command.yes {
        print(&plan, around)?;
        writeln!(around.out, "Must specify --yes to apply changes")?;
        return Ok(());
    }
    execute(registry, cluster.name(), &plan, around)
}

fn plan(registry: &Registry, user: &Object, around: &Surroundings<'_>) -> Result<Plan, Error> {
    let name = user.name();
    local::check_cloud(user)?;
    let user_groups = registry.groups(name)?;
    if user_groups.is_empty() {
        return Err(Error::known("cluster", name, "has no instance groups; create some first"));
    }
    let (cluster, groups) = model::completed(user, &user_groups)?;
    local::check(user, &cluster, &groups)?;
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
    let mut wanted = local::places(&fleet, old.as_ref(), &cluster, &groups, registry)?;
    let (url, hash) = local::program()?;
    let inputs = NodeInputs {
        api_addresses: local::api_addresses(&wanted),
        hashes: [(url, hash)].into(),
        ..NodeInputs::default()
    };
    let built = model::build(&cluster, groups, &keysets, inputs)?;
    local::instruct(&mut wanted, &built.machines);
    let outdated = outdated(&fleet, &wanted, &built.kept)?;
    changes.extend(file_changes(registry, name, built.kept)?);
    let groups = group_changes(old.as_ref(), &wanted);
    Ok(Plan { changes, groups, wanted, outdated })
}

/// Machines that were made of something else than their group is to be made of, and what differs.
fn outdated(
    fleet: &instances::Fleet,
    wanted: &instances::Wanted,
    kept: &[Kept],
) -> Result<Vec<(String, String)>, Error> {
    let mut all = Vec::new();
    for group in &wanted.groups {
        let config = format!("/{}/nodeupconfig.yaml", group.name);
        let config = kept.iter().find(|one| one.name.ends_with(&config));
        let new = Made {
            user_data: &group.user_data,
            config: config.map(|config| config.content.as_bytes()),
        };
        for name in group.names() {
            let made = fleet.machine(&name)?;
            if let Some(made) = made.filter(|machine| machine.version() != group.version()) {
                // The machine has kept it, and is believed by its hash alone.
                let kept = nodeup::CONFIG.trim_start_matches('/');
                let kept = std::fs::read(fleet.disk(&name).join(kept)).ok();
                let old = Made { user_data: &made.user_data, config: kept.as_deref() };
                all.push((name, why::why(old, new)));
            }
        }
    }
    Ok(all)
}

fn key_changes(registry: &Registry, cluster: &str, keyset: &Keyset) -> Result<Vec<Change>, Error> {
    let change = |name: String, private: bool| {
        // The private half is missing: nothing that is there can belong to the new one.
        let since = match registry.content(&name)? {
            None => Since::Absent,
            Some((_, version)) => Since::Read(version),
        };
        let secrecy = if private { Secrecy::Private } else { Secrecy::Open };
        let content = Some(keyset.document(private)?);
        Ok::<_, Error>(Change { kind: "Keypair", name, content, secrecy, since })
    };
    Ok(vec![
        change(keys::private_path(cluster, &keyset.name), true)?,
        change(keys::issued_path(cluster, &keyset.name), false)?,
    ])
}

/// What differs between the objects that are to be there and those that are.
fn file_changes(registry: &Registry, cluster: &str, kept: Vec<Kept>) -> Result<Vec<Change>, Error> {
    let mut changes = Vec::new();
    let mut left = Vec::new();
    for directory in OWNED {
        left.extend(registry.names(&format!("{cluster}/{directory}"))?);
    }
    for one in kept {
        let name = format!("{cluster}/{}", one.name);
        left.retain(|other| *other != name);
        let since = match registry.content(&name)? {
            Some((old, _)) if old == one.content.as_bytes() => continue,
            Some((_, version)) => Since::Read(version),
            None => Since::Absent,
        };
        let (kind, secrecy) = (one.kind, one.secrecy);
        changes.push(Change { kind, name, content: Some(one.content), secrecy, since });
    }
    // Written with the machines, whose authority it is.
    left.retain(|name| *name != format!("{cluster}/{}", local::IDENTITY_CA));
    for name in left {
        if let Some((_, version)) = registry.content(&name)? {
            let (kind, secrecy, since) = ("ManagedFile", Secrecy::Open, Since::Read(version));
            changes.push(Change { kind, name, content: None, secrecy, since });
        }
    }
    Ok(changes)
}

fn group_changes(old: Option<&instances::Wanted>, wanted: &instances::Wanted) -> Vec<GroupChange> {
    let before =
        |name: &str| old.and_then(|old| old.groups.iter().find(|group| group.name == name));
    let mut changes = Vec::new();
    for group in &wanted.groups {
        let (verb, told) = match before(&group.name) {
            Some(old) if old == group => continue,
            None => {
                ("create", vec![("Size", group.size().to_string()), ("UserData", group.version())])
            }
            Some(old) => {
                let mut told = Vec::new();
                if old.size() != group.size() {
                    told.push(("Size", format!("{} -> {}", old.size(), group.size())));
                }
                if old.user_data != group.user_data {
                    told.push(("UserData", format!("{} -> {}", old.version(), group.version())));
                }
                if old.repair_after != group.repair_after {
                    let said = |group: &instances::Group| match group.repair_after {
                        Some(seconds) => format!("{seconds}s"),
                        None => "never".to_owned(),
                    };
                    told.push(("RepairAfter", format!("{} -> {}", said(old), said(group))));
                }
                ("modify", told)
            }
        };
        changes.push(GroupChange { name: group.name.clone(), verb, told });
    }
    for group in old.map(|old| old.groups.as_slice()).unwrap_or_default() {
        if !wanted.groups.iter().any(|other| other.name == group.name) {
            let told = vec![("Size", format!("{} -> 0", group.size()))];
            changes.push(GroupChange { name: group.name.clone(), verb: "delete", told });
        }
    }
    changes
}

fn document(cluster: &str, plan: &Plan) -> serde_json::Value {
    let objects: Vec<_> = plan
        .changes
        .iter()
        .map(|change| json!({"action": change.verb(), "kind": change.kind, "name": change.name}))
        .collect();
    let groups: Vec<_> = plan
        .groups
        .iter()
        .map(|change| json!({"action": change.verb, "name": change.name}))
        .collect();
    let outdated: Vec<_> =
        plan.outdated.iter().map(|(name, why)| json!({"name": name, "why": why})).collect();
    json!({"cluster": cluster, "objects": objects, "instanceGroups": groups, "needsRollingUpdate": outdated})
}

fn print(plan: &Plan, around: &mut Surroundings<'_>) -> Result<(), Error> {
    let out = &mut around.out;
    let mut any = false;
    for verb in ["create", "modify", "delete"] {
        let groups: Vec<_> = plan.groups.iter().filter(|change| change.verb == verb).collect();
        let files: Vec<_> = plan.changes.iter().filter(|change| change.verb() == verb).collect();
        if groups.is_empty() && files.is_empty() {
            continue;
        }
        any = true;
        writeln!(out, "Will {verb} resources:")?;
        for group in groups {
            writeln!(out, "  InstanceGroup/{}", group.name)?;
            for (field, value) in &group.told {
                writeln!(out, "  \t{field:<20}\t{value}")?;
            }
            writeln!(out)?;
        }
        for change in files {
            writeln!(out, "  {}/{}", change.kind, change.name)?;
        }
        writeln!(out)?;
    }
    if !any {
        writeln!(out, "No changes need to be applied")?;
    }
    if !plan.outdated.is_empty() {
        writeln!(out, "Machines that kops rolling-update cluster replaces, and why:")?;
        for (name, why) in &plan.outdated {
            writeln!(out, "  {name}: {why}")?;
        }
        writeln!(out)?;
    }
    Ok(())
}

/// Changes just what the plan says: each object only if it still is what the plan was made from.
fn execute(
    registry: &Registry,
    cluster: &str,
    plan: &Plan,
    around: &mut Surroundings<'_>,
) -> Result<(), Error> {
    for change in &plan.changes {
        match (&change.content, &change.since) {
            (Some(content), since) => {
                registry.put(&change.name, content.as_bytes(), since, change.secrecy)?;
            }
            (None, Since::Read(version)) => registry.drop_object(&change.name, version)?,
            (None, Since::Absent) => {}
        }
    }
    let fleet = local::fleet(registry, cluster);
    fleet.write(&plan.wanted)?;
    publish_identity(registry, cluster, &fleet)?;
    gateway::equip(registry, &fleet, &plan.wanted, around)?;
    local::equip_balancer(registry, &fleet, &plan.wanted, around.now)?;
    local::apply(&fleet, &plan.wanted)?;
    kubeconfig::write(registry, cluster, None, kubeconfig::usual_period(), around)?;
    let changed = plan.changes.len() + plan.groups.len();
    writeln!(around.out, "\n{changed} resources were changed.")?;
    print_outdated(plan, around)?;
    if plan.groups.iter().any(|group| group.verb == "create") {
        writeln!(around.out, "\nCluster is starting.  It should be ready in a few minutes.\n")?;
    }
    Ok(())
}

fn print_outdated(plan: &Plan, around: &mut Surroundings<'_>) -> Result<(), Error> {
    if !plan.outdated.is_empty() {
        let names: Vec<_> = plan.outdated.iter().map(|(name, _)| name.as_str()).collect();
        let names = names.join(", ");
        writeln!(
            around.out,
            "Changes may require instances to restart: kops rolling-update cluster replaces {names}"
        )?;
    }
    Ok(())
}

/// kops-controller learns from the store whose signature tells who a machine is.
fn publish_identity(
    registry: &Registry,
    cluster: &str,
    fleet: &instances::Fleet,
) -> Result<(), Error> {
    let name = format!("{cluster}/{}", local::IDENTITY_CA);
    let pem = fleet.authority()?.cert().to_pem();
    let since = match registry.content(&name)? {
        Some((old, _)) if old == pem.as_bytes() => return Ok(()),
        Some((_, version)) => Since::Read(version),
        None => Since::Absent,
    };
    registry.put(&name, pem.as_bytes(), &since, Secrecy::Open)
}
