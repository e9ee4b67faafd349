//! Runs `kops create|get|delete secret`.

use std::{io::Write, path::Path};

use api_meta::Tree as _;
use encryption::EncryptionConfiguration;
use kops_api::Object;
use kops_core::{CloudName, Cluster as _, content_hash, registry_credentials};
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
    KnownSecret { name: kops_store::DOCKER_CONFIG, words: "dockerconfig", is_json: true };
const ENCRYPTION_CONFIG: KnownSecret =
    KnownSecret { name: kops_store::ENCRYPTION_CONFIG, words: "encryptionconfig", is_json: false };

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
    let data = input::read_bytes(&file.filename, LARGEST)?;
    check_content(&secret, &file.filename, &data)?;
    check_cloud(&cluster, secret.name, &data)?;
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

/// Rejects a secret that the machines of cloud local would ignore or could not use.
fn check_cloud(cluster: &Object, secret: &str, data: &[u8]) -> Result<(), Error> {
    if cluster.cloud() != CloudName::Local {
        return Ok(());
    }
    match secret {
        name if name == CILIUM_PASSWORD.name => Err(Error::LocalSecret(secret.to_owned())),
        name if name == DOCKER_CONFIG.name => Ok(registry_credentials(data).map(drop)?),
        name if name == ENCRYPTION_CONFIG.name => parse_encryption(data).map(drop),
        _ => Ok(()),
    }
}

/// Parses and validates the configuration of encryption at rest, as the API server does. Errors do not quote keys.
fn parse_encryption(config: &[u8]) -> Result<EncryptionConfiguration, Error> {
    let name = ENCRYPTION_CONFIG.name;
    let text = std::str::from_utf8(config).map_err(|_| Error::EncryptionConfig)?;
    let parsed = EncryptionConfiguration::parse(Path::new(name), text);
    let parsed = parsed.map_err(|_| Error::EncryptionConfig)?;
    let problems: Vec<_> = parsed.errors(false).into();
    if problems.is_empty() {
        return Ok(parsed);
    }
    Err(kops_api::Error::Fields { what: format!("secret {name:?}"), problems }.into())
}

/// Reports whether a configuration stores everything unencrypted: the first provider of an entry encrypts, and all of
/// them decrypt.
fn writes_plainly(config: &EncryptionConfiguration) -> bool {
    let mut writers = config.resources.iter().map(|entry| entry.providers.first());
    writers.all(|first| first.is_some_and(|provider| provider.identity.is_some()))
}

/// Rejects an update of a cluster with a stored secret that its machines would ignore or could not use. Returns the
/// hash of the configuration of encryption at rest; empty without encryption.
pub(crate) fn check_stored(registry: &Registry, cluster: &Object) -> Result<String, Error> {
    let secrets = registry.secrets(cluster.name());
    let mut encryption = None;
    for name in secrets.names()? {
        if let Some(data) = secrets.read(&name)? {
            check_cloud(cluster, &name, &data)?;
            if name == ENCRYPTION_CONFIG.name {
                encryption = Some(data);
            }
        }
    }
    encryption_hash(registry, cluster, encryption)
}

/// Returns the hash of the configuration of encryption at rest. An update that would make stored data unreadable is
/// rejected.
fn encryption_hash(
    registry: &Registry,
    cluster: &Object,
    config: Option<Vec<u8>>,
) -> Result<String, Error> {
    let name = cluster.name();
    if cluster.spec.flag("encryptionConfig") {
        let config = config.ok_or_else(|| Error::MissingEncryptionConfig(name.to_owned()))?;
        return Ok(content_hash(&config));
    }
    let before = registry.last_complete_cluster(name)?;
    let was_encrypted = before.is_some_and(|old| old.spec.flag("encryptionConfig"));
    let is_plain = |config: Vec<u8>| Ok::<_, Error>(writes_plainly(&parse_encryption(&config)?));
    if was_encrypted && !config.map(is_plain).transpose()?.unwrap_or(false) {
        return Err(Error::EncryptionEnd(name.to_owned()));
    }
    Ok(String::new())
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
