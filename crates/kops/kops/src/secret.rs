//! Runs `kops create|get|delete secret`.

use std::io::Write;

use kops_api::Object;
use kops_core::{CloudName, Cluster as _};
use kops_store::{Registry, parse_yaml};
use serde_json::Value;

use crate::{
    error::Error,
    flags::{CreateSecret, SecretFile},
    get, input, table,
};

/// The largest secret, in bytes. Kubernetes' own limit for Secrets.
const LARGEST: u64 = 1 << 20;

/// A secret that a command creates.
struct KnownSecret {
    /// The name in the store.
    name: &'static str,
    /// The words for it in upstream's messages.
    words: &'static str,
    is_json: bool,
}

const CILIUM_PASSWORD: KnownSecret =
    KnownSecret { name: "ciliumpassword", words: "Cilium IPSec", is_json: false };
const DOCKER_CONFIG: KnownSecret =
    KnownSecret { name: "dockerconfig", words: "dockerconfig", is_json: true };
const ENCRYPTION_CONFIG: KnownSecret =
    KnownSecret { name: "encryptionconfig", words: "encryptionconfig", is_json: false };

impl CreateSecret {
    /// Returns the flags of the subcommand.
    pub(crate) fn file(&self) -> &SecretFile {
        let (Self::CiliumPassword(file) | Self::DockerConfig(file) | Self::EncryptionConfig(file)) =
            self;
        file
    }

    fn known(&self) -> KnownSecret {
        match self {
            Self::CiliumPassword(_) => CILIUM_PASSWORD,
            Self::DockerConfig(_) => DOCKER_CONFIG,
            Self::EncryptionConfig(_) => ENCRYPTION_CONFIG,
        }
    }
}

/// Stores a secret from a file.
pub(crate) fn create(registry: &Registry, command: &CreateSecret, name: &str) -> Result<(), Error> {
    let cluster = get::find_cluster(registry, name)?;
    let (file, secret) = (command.file(), command.known());
    check_cloud(&cluster, secret.name)?;
    let data = input::read_bytes(&file.filename, LARGEST)?;
    check_content(&secret, &file.filename, &data)?;
    let secrets = registry.secrets(name);
    if file.force {
        return Ok(secrets.replace(secret.name, &data)?);
    }
    if secrets.create(secret.name, &data)? {
        return Ok(());
    }
    Err(Error::SecretExists(secret.words))
}

/// Validates a secret's syntax. Errors do not quote the content.
fn check_content(secret: &KnownSecret, file: &str, data: &[u8]) -> Result<(), Error> {
    let wrong = |syntax| Error::SecretSyntax { syntax, file: file.to_owned() };
    let syntax = if secret.is_json { "JSON" } else { "YAML" };
    let tree = if secret.is_json {
        serde_json::from_slice::<Value>(data).map_err(|_| wrong(syntax))?
    } else {
        parse_yaml(file, data).map_err(|_| wrong(syntax))?
    };
    if tree.is_object() { Ok(()) } else { Err(wrong(syntax)) }
}

/// Rejects a secret that the machines of cloud local would ignore.
fn check_cloud(cluster: &Object, secret: &str) -> Result<(), Error> {
    let names = [CILIUM_PASSWORD.name, DOCKER_CONFIG.name, ENCRYPTION_CONFIG.name];
    if cluster.cloud() == CloudName::Local && names.contains(&secret) {
        return Err(Error::LocalSecret(secret.to_owned()));
    }
    Ok(())
}

/// Rejects an update of a cluster with a stored secret that its machines would ignore.
pub(crate) fn check_stored(registry: &Registry, cluster: &Object) -> Result<(), Error> {
    let names = registry.secrets(cluster.name()).names()?;
    names.iter().try_for_each(|secret| check_cloud(cluster, secret))
}

/// The selection of `get secrets`.
pub(crate) struct SecretSelection<'a> {
    /// The wanted names; empty for all.
    pub(crate) names: &'a [String],
    /// The wanted kind, from a hidden flag.
    pub(crate) kind: &'a str,
    pub(crate) output: &'a str,
}

/// Prints the names of secrets, or their content as plain text.
pub(crate) fn show(
    registry: &Registry,
    wanted: &SecretSelection<'_>,
    name: &str,
    out: &mut dyn Write,
) -> Result<(), Error> {
    match wanted.kind.to_ascii_lowercase().as_str() {
        "" | "secret" => {}
        "sshpublickey" => return Err(Error::UseInstead("kops get sshpublickey")),
        "keypair" => return Err(Error::UseInstead("kops get keypairs")),
        _ => return Err(Error::SecretType(wanted.kind.to_owned())),
    }
    get::find_cluster(registry, name)?;
    let secrets = registry.secrets(name);
    let mut names = secrets.names()?;
    names.retain(|name| wanted.names.is_empty() || wanted.names.contains(name));
    if names.is_empty() {
        return Err(Error::NoneFound("secrets"));
    }
    match wanted.output {
        "table" => table::print(out, ["NAME"], names.into_iter().map(|name| [name]).collect()),
        "plaintext" => {
            for name in names {
                let data = secrets.read(&name)?;
                let missing = || kops_store::Error::object("secret", &name, "not found");
                out.write_all(&data.ok_or_else(missing)?)?;
                writeln!(out)?;
            }
            Ok(())
        }
        output => Err(Error::SecretOutput(output.to_owned())),
    }
}

/// Deletes a secret.
pub(crate) fn delete(registry: &Registry, secret: &str, name: &str) -> Result<(), Error> {
    get::find_cluster(registry, name)?;
    Ok(registry.secrets(name).delete(secret)?)
}
