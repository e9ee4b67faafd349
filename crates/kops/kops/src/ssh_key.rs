//! Runs `kops create|get|delete sshpublickey`.

use std::io::Write;

use kops_api::Object;
use kops_core::{CloudName, Cluster as _};
use kops_store::{Registry, SshKey};
use serde_json::{Value, json};

use crate::{document, error::Error, get, input, table};

/// The largest file with a public key, in bytes.
const LARGEST: u64 = 64 << 10;

/// Stores the public key of a file.
pub(crate) fn create(registry: &Registry, file: &str, name: &str) -> Result<(), Error> {
    let cluster = get::find_cluster(registry, name)?;
    let content = input::read_bytes(file, LARGEST)?;
    let key = parse(&cluster, file, &content)?;
    Ok(registry.add_ssh_key(name, &key, &content)?)
}

/// Parses a public key for the machines of a cluster.
pub(crate) fn parse(cluster: &Object, file: &str, content: &[u8]) -> Result<SshKey, Error> {
    if cluster.cloud() == CloudName::Local {
        let problem = "is of cloud local, whose machines run no SSH server";
        return Err(kops_store::Error::object("cluster", cluster.name(), problem).into());
    }
    Ok(SshKey::parse(file, content)?)
}

/// Prints the public keys.
pub(crate) fn print(
    registry: &Registry,
    cluster: &Object,
    output: &str,
    out: &mut dyn Write,
) -> Result<(), Error> {
    let keys = registry.ssh_keys(cluster.name())?;
    let item = |key: &SshKey| json!({"id": key.fingerprint, "publicKey": key.line});
    let items = Value::from(keys.iter().map(item).collect::<Vec<_>>());
    match output {
        "yaml" | "json" => document::print(out, output, &items)?,
        _ if keys.is_empty() => return Err(Error::NoneFound("SSH public key")),
        _ => {
            let rows = keys.into_iter().map(|key| [key.fingerprint]);
            table::print(out, ["ID"], rows.collect())?;
        }
    }
    Ok(())
}

/// Deletes the public keys.
pub(crate) fn delete(registry: &Registry, name: &str) -> Result<(), Error> {
    get::find_cluster(registry, name)?;
    Ok(registry.delete_ssh_keys(name)?)
}
