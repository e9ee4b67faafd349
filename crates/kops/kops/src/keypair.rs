//! Runs `kops create|get|promote|distrust|trust keypair`: the rotation of authorities and signing keys, step by step.

use std::io::Write;

use api_meta::Timestamp;
use kops_api::yaml;
use kops_core::{CloudName, Cluster as _};
use pki::{Cert, Key};
use serde_json::{Value, json};
use vfs::{Precondition, Secrecy};

use crate::{
    CommandEnvironment, Error,
    flags::{KeypairNames, MakeKeypair, ShowKeypairs},
    get,
    keys::{self, Changed, Keyset},
    registry::Registry,
    table,
};

/// The name for all rotated keysets.
const ALL: &str = "all";

/// An operation on keypairs.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Act {
    Promote,
    Distrust,
    Trust,
}

fn is_rotated(name: &str) -> bool {
    name == "service-account" || name.contains("-ca")
}

/// Returns the names of a cluster's stored keysets.
fn stored_keysets(registry: &Registry, cluster: &str) -> Result<Vec<String>, Error> {
    let directory = format!("{cluster}/pki/private");
    let names = registry.entries(&directory)?.into_iter();
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

/// Checks that the cluster's keypairs may be changed here.
fn check_changeable(registry: &Registry, name: &str) -> Result<(), Error> {
    let cluster = get::named(registry, name)?;
    if cluster.cloud() == CloudName::Local {
        let problem = "is of cloud local, whose machines know only the primary keypairs: they are not rotated yet";
        return Err(Error::known("cluster", name, problem));
    }
    Ok(())
}

/// Reads a keyset, changes it, and writes both halves if it changed. With `begins`, a missing keyset is created.
fn change(
    registry: &Registry,
    cluster: &str,
    name: &str,
    begins: bool,
    work: impl FnOnce(&mut Keyset) -> Result<Changed, Error>,
    out: &mut dyn Write,
) -> Result<(), Error> {
    let path = keys::private_path(cluster, name);
    let (mut keyset, read) = match registry.content(&path)? {
        Some((content, version)) => {
            (Keyset::parse(&path, name, &content)?, Precondition::Read(version))
        }
        None if begins => (Keyset::empty(name), Precondition::Absent),
        None => return Err(Error::known("keyset", name, "not found")),
    };
    let changed = work(&mut keyset)?;
    if changed.any {
        // The half with the private keys is authoritative. It is written first, and detects a concurrent change.
        let issued = keys::issued_path(cluster, name);
        let since = registry
            .content(&issued)?
            .map_or(Precondition::Absent, |(_, read)| Precondition::Read(read));
        let private = keyset.document(true)?;
        registry.put(&path, private.as_bytes(), &read, Secrecy::Private)?;
        registry.put(&issued, keyset.document(false)?.as_bytes(), &since, Secrecy::Open)?;
    }
    for line in changed.lines {
        writeln!(out, "{line}")?;
    }
    Ok(())
}

pub(crate) fn create(
    registry: &Registry,
    command: &MakeKeypair,
    name: &str,
    around: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    let keyset = command.keyset.as_str();
    if keyset != ALL && !is_rotated(keyset) {
        return Err(Error::Usage(format!("adding keypair to {keyset:?} is not supported")));
    }
    let flags = [
        ("--cert", command.cert.is_some()),
        ("--key", command.key.is_some()),
        ("--primary", command.primary),
    ];
    if let Some((flag, _)) = flags.iter().find(|(_, given)| *given && keyset == ALL) {
        return Err(Error::Usage(format!("cannot specify {flag} with \"all\"")));
    }
    check_changeable(registry, name)?;
    let read = |path: &Option<String>| {
        let read =
            |path: &String| std::fs::read_to_string(path).map_err(Error::file("reading", path));
        path.as_ref().map(read).transpose()
    };
    let (cert, key) = (read(&command.cert)?, read(&command.key)?);
    for own in selected_keysets(registry, name, keyset)? {
        let cert = cert.as_deref().map(Cert::from_pem).transpose()?;
        let key = key.as_deref().map(Key::from_pem).transpose()?;
        let now = around.now;
        let add = |keyset: &mut Keyset| {
            let id = keyset.add(cert, key, command.primary, now)?;
            let used = [("cert", &command.cert), ("private key", &command.key)];
            let used = used.iter().filter_map(|(what, path)| {
                Some(format!("using user provided {what}: {}", path.as_ref()?))
            });
            let lines = used.chain([format!("Created {own} {id}")]).collect();
            Ok(Changed { any: true, lines })
        };
        change(registry, name, &own, true, add, around.out)?;
    }
    Ok(())
}

pub(crate) fn act(
    registry: &Registry,
    act: Act,
    command: &KeypairNames,
    name: &str,
    around: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    let (keyset, ids) = (command.keyset.as_str(), &command.ids);
    let wrong = |text: &str| Err(Error::Usage(text.to_owned()));
    match act {
        Act::Promote if keyset != ALL && !is_rotated(keyset) => {
            return wrong(&format!("promoting keypairs for {keyset:?} is not supported"));
        }
        Act::Promote if ids.len() > 1 => return wrong("can only promote to one keyset at a time"),
        Act::Trust if keyset == ALL || ids.is_empty() => {
            return wrong("must specify names of keypairs to trust");
        }
        _ if keyset == ALL && !ids.is_empty() => return wrong("cannot specify ID with \"all\""),
        _ => {}
    }
    check_changeable(registry, name)?;
    let now = Timestamp::from(around.now);
    for own in selected_keysets(registry, name, keyset)? {
        let work = |keyset: &mut Keyset| match act {
            Act::Promote => keyset.promote(ids.first().map(String::as_str)),
            Act::Distrust => keyset.distrust(ids, now),
            Act::Trust => keyset.trust(ids),
        };
        change(registry, name, &own, false, work, around.out)?;
    }
    Ok(())
}

pub(crate) fn show(
    registry: &Registry,
    command: &ShowKeypairs,
    name: &str,
    out: &mut dyn Write,
) -> Result<(), Error> {
    get::named(registry, name)?;
    let mut all = Vec::new();
    for own in stored_keysets(registry, name)? {
        if command.show.names.is_empty() || command.show.names.contains(&own) {
            let keyset = keys::read(registry, name, &own)?;
            all.extend(keyset.map(|keyset| keyset.described(command.distrusted)).transpose()?);
        }
    }
    let items: Vec<Value> = all.into_iter().flatten().collect();
    match (items.is_empty(), command.show.output.as_str()) {
        (true, _) => return Err(Error::Usage("no keypairs found".to_owned())),
        (_, "yaml") => write!(out, "{}", yaml::to_string(&json!(items)))?,
        (_, "json") => write!(out, "{}", json!(items))?,
        _ if command.distrusted => {
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
