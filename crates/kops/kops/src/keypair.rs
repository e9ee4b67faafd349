//! Runs `kops create|get|promote|distrust|trust keypair`: the rotation of authorities and signing keys, step by step.

use std::{io::Write, time::SystemTime};

use api_meta::Timestamp;
use kops_api::yaml;
use kops_core::{CloudName, Cluster as _};
use kops_local::{KeyUsers, fleet};
use kops_store::{
    Change, Keyset, KeysetChange, Registry, SERVICE_ACCOUNT, key_changes, private_keyset,
};
use pki::{Cert, Key};
use serde_json::{Value, json};
use vfs::{Precondition, Secrecy};

use crate::{
    environment::CommandEnvironment,
    error::Error,
    flags::{CreateKeypair, KeypairNames},
    get, table,
};

/// The name for all rotated keysets.
const ALL: &str = "all";

/// An operation on keypairs.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum KeypairAction {
    Promote,
    Distrust,
    Trust,
}

fn is_rotated(name: &str) -> bool {
    name == SERVICE_ACCOUNT || name.contains("-ca")
}

/// Returns the names of a cluster's stored keysets.
fn stored_keysets(registry: &Registry, cluster: &str) -> Result<Vec<String>, Error> {
    let directory = format!("{cluster}/pki/private");
    let names = registry.list_entries(&directory)?.into_iter();
    Ok(names.filter(|(_, is_directory)| *is_directory).map(|(name, _)| name).collect())
}

/// Returns the keysets that a command selects.
fn selected_keysets(
    registry: &Registry,
    cluster: &str,
    keyset: &str,
) -> Result<Vec<String>, Error> {
    if keyset != ALL {
        return Ok(vec![keyset.to_owned()]);
    }
    Ok(stored_keysets(registry, cluster)?.into_iter().filter(|name| is_rotated(name)).collect())
}

/// Changes keypairs, limited by what the machines use and trust. On cloud local it holds the cluster's lock, so that no
/// update changes the machines meanwhile. Machines of other clouds are unknown here, as to upstream's command.
fn with_users(
    registry: &Registry,
    name: &str,
    context: &mut CommandEnvironment<'_>,
    work: impl FnOnce(&KeyUsers, &mut CommandEnvironment<'_>) -> Result<(), Error>,
) -> Result<(), Error> {
    let cluster = get::find_cluster(registry, name)?;
    if cluster.cloud() != CloudName::Local {
        return work(&KeyUsers::default(), context);
    }
    let lock = registry.lock(name, &context.user(), context.now)?;
    let users = KeyUsers::of_cluster(registry, &fleet(registry, name));
    let done = users.map_err(Error::from).and_then(|users| work(&users, context));
    let unlocked = registry.unlock(lock);
    done?;
    Ok(unlocked?)
}

/// A planned change of a keyset.
struct KeysetPlan {
    /// The writes of both halves, in their order.
    changes: Vec<Change>,
    /// The lines to print.
    lines: Vec<String>,
}

/// Reads a keyset, changes it, and checks that no machine loses its access. With `creates`, a missing keyset is
/// created.
fn plan_change(
    registry: &Registry,
    users: &KeyUsers,
    place: KeysetPlace<'_>,
    now: SystemTime,
    edit: impl FnOnce(&mut Keyset) -> Result<KeysetChange, kops_store::Error>,
) -> Result<KeysetPlan, Error> {
    let KeysetPlace { cluster, name, creates } = place;
    let path = private_keyset(cluster, name);
    let read = registry.read_object(&path)?;
    let parse = || match &read {
        Some((content, _)) => Ok(Keyset::parse(&path, name, content)?),
        None if creates => Ok(Keyset::empty(name)),
        None => Err(Error::from(kops_store::Error::object("keyset", name, "not found"))),
    };
    let (before, mut keyset) = (parse()?, parse()?);
    let change = edit(&mut keyset)?;
    users.check(&keyset)?;
    users.check_tokens(&before, &keyset, now)?;
    // The half with the private keys is authoritative. It is written first, and detects a concurrent change. The other
    // half is also written if a command that was stopped has left it behind.
    let mut changes = key_changes(registry, cluster, &keyset)?;
    if let Some(private) = changes.first_mut() {
        private.since =
            read.map_or(Precondition::Absent, |(_, version)| Precondition::Read(version));
    }
    if !change.has_changed {
        changes.retain(|change| change.secrecy == Secrecy::Open);
    }
    Ok(KeysetPlan { changes, lines: change.lines })
}

/// A keyset of a command.
#[derive(Clone, Copy)]
struct KeysetPlace<'a> {
    cluster: &'a str,
    name: &'a str,
    /// `true` to create a missing keyset.
    creates: bool,
}

/// Carries out the plans. All of them were checked before the first write.
fn carry_out(registry: &Registry, plans: &[KeysetPlan], out: &mut dyn Write) -> Result<(), Error> {
    for plan in plans {
        for change in &plan.changes {
            change.carry_out(registry)?;
        }
        print_lines(&plan.lines, out)?;
    }
    Ok(())
}

fn print_lines(lines: &[String], out: &mut dyn Write) -> Result<(), Error> {
    for line in lines {
        writeln!(out, "{line}")?;
    }
    Ok(())
}

pub(crate) fn create(
    registry: &Registry,
    command: &CreateKeypair,
    name: &str,
    context: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    let keyset = command.keyset.as_str();
    if keyset != ALL && !is_rotated(keyset) {
        return Err(Error::Keyset { operation: "adding keypair to", keyset: keyset.to_owned() });
    }
    let flags = [
        ("--cert", command.cert.is_some()),
        ("--key", command.key.is_some()),
        ("--primary", command.primary),
    ];
    if let Some(&(flag, _)) = flags.iter().find(|(_, is_set)| *is_set && keyset == ALL) {
        return Err(Error::FlagWithAll { flag });
    }
    let read = |path: &Option<String>| {
        let read = |path: &String| {
            std::fs::read_to_string(path).map_err(kops_store::Error::file("reading", path))
        };
        path.as_ref().map(read).transpose()
    };
    let (cert, key) = (read(&command.cert)?, read(&command.key)?);
    with_users(registry, name, context, |users, context| {
        let mut plans = Vec::new();
        for own in selected_keysets(registry, name, keyset)? {
            let cert = cert.as_deref().map(Cert::from_pem).transpose()?;
            let key = key.as_deref().map(Key::from_pem).transpose()?;
            let now = context.now;
            let add = |keyset: &mut Keyset| {
                let id = keyset.add(cert, key, command.primary, now)?;
                let used = [("cert", &command.cert), ("private key", &command.key)];
                let used = used.iter().filter_map(|(what, path)| {
                    Some(format!("using user provided {what}: {}", path.as_ref()?))
                });
                let lines = used.chain([format!("Created {own} {id}")]).collect();
                Ok(KeysetChange { has_changed: true, lines })
            };
            let place = KeysetPlace { cluster: name, name: &own, creates: true };
            plans.push(plan_change(registry, users, place, now, add)?);
        }
        carry_out(registry, &plans, context.out)
    })
}

pub(crate) fn apply(
    registry: &Registry,
    action: KeypairAction,
    command: &KeypairNames,
    name: &str,
    context: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    let (keyset, ids) = (command.keyset.as_str(), &command.ids);
    match action {
        KeypairAction::Promote if keyset != ALL && !is_rotated(keyset) => {
            let operation = "promoting keypairs for";
            return Err(Error::Keyset { operation, keyset: keyset.to_owned() });
        }
        KeypairAction::Promote if ids.len() > 1 => return Err(Error::Promotion),
        KeypairAction::Trust if keyset == ALL || ids.is_empty() => {
            return Err(Error::KeypairNames);
        }
        _ if keyset == ALL && !ids.is_empty() => return Err(Error::FlagWithAll { flag: "ID" }),
        _ => {}
    }
    with_users(registry, name, context, |users, context| {
        let (now, mut plans) = (Timestamp::from(context.now), Vec::new());
        for own in selected_keysets(registry, name, keyset)? {
            let edit = |keyset: &mut Keyset| match action {
                KeypairAction::Promote => keyset.promote(ids.first().map(String::as_str)),
                KeypairAction::Distrust => keyset.distrust(ids, now),
                KeypairAction::Trust => keyset.trust(ids),
            };
            let place = KeysetPlace { cluster: name, name: &own, creates: false };
            plans.push(plan_change(registry, users, place, context.now, edit)?);
        }
        carry_out(registry, &plans, context.out)
    })
}

/// The selection of `get keypairs`.
pub(crate) struct KeypairSelection<'a> {
    /// The wanted keysets; empty for all.
    pub(crate) keysets: &'a [String],
    /// `true` to include distrusted keypairs.
    pub(crate) distrusted: bool,
    pub(crate) output: &'a str,
}

pub(crate) fn show(
    registry: &Registry,
    wanted: &KeypairSelection<'_>,
    name: &str,
    out: &mut dyn Write,
) -> Result<(), Error> {
    get::find_cluster(registry, name)?;
    let mut all = Vec::new();
    for own in stored_keysets(registry, name)? {
        if wanted.keysets.is_empty() || wanted.keysets.contains(&own) {
            let keyset = Keyset::read(registry, name, &own)?;
            all.extend(keyset.map(|keyset| keyset.describe(wanted.distrusted)).transpose()?);
        }
    }
    let items: Vec<Value> = all.into_iter().flatten().collect();
    match (items.is_empty(), wanted.output) {
        (true, _) => return Err(Error::NoneFound("keypairs")),
        (_, "yaml") => write!(out, "{}", yaml::to_string(&json!(items)))?,
        (_, "json") => write!(out, "{}", json!(items))?,
        _ if wanted.distrusted => {
            let header = ["NAME", "ID", "ISSUED", "EXPIRES", "DISTRUSTED", "PRIMARY", "HASPRIVATE"];
            table::print(out, header, items.iter().map(row).collect())?;
        }
        _ => {
            let header = ["NAME", "ID", "ISSUED", "EXPIRES", "PRIMARY", "HASPRIVATE"];
            let rows = items.iter().map(row).map(|[name, id, from, to, _, primary, private]| {
                [name, id, from, to, primary, private]
            });
            table::print(out, header, rows.collect())?;
        }
    }
    Ok(())
}

fn row(item: &Value) -> [String; 7] {
    let text = |field: &str| item.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
    let day = |field: &str| text(field).get(..10).unwrap_or_default().to_owned();
    let star = |field: &str| match item.get(field).and_then(Value::as_bool) {
        Some(true) => "*".to_owned(),
        _ => String::new(),
    };
    let (from, to) = (day("notBefore"), day("notAfter"));
    [
        text("name"),
        text("id"),
        from,
        to,
        day("distrustTimestamp"),
        star("isPrimary"),
        star("hasPrivateKey"),
    ]
}
