//! Creates and opens encrypted volumes with cryptsetup.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use ignition::spec::Luks;
use serde::{Deserialize, Serialize};

use super::{clevis, contents};
use crate::{Error, fetch::Fetcher, stages::Context};

const KEY_SIZE: usize = 4096;
/// The directory for key files, which is in memory, so that keys are never on a disk.
const KEYS: &str = "/run/ignition";

/// The state for later stages: keys and devices of volumes.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct State {
    pub(crate) luks: BTreeMap<String, Volume>,
    /// The directories that the mount stage created as mount points. The files stage assigns homes among them to their
    /// users.
    #[serde(default)]
    pub(crate) directories: Vec<String>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Volume {
    pub(crate) uuid: String,
    /// The key in Base64; `None` if clevis unlocks the volume.
    pub(crate) key: Option<String>,
    pub(crate) discard: bool,
    /// `true` if unlocking requires the network.
    #[serde(default)]
    pub(crate) network: bool,
}

impl State {
    pub(crate) fn keep(&self, path: &Path) -> Result<(), Error> {
        let text = serde_json::to_vec(self).unwrap_or_default();
        write_private(path, &text)
    }

    pub(crate) fn load(path: &Path) -> Result<Self, Error> {
        match fs::read(path) {
            Ok(bytes) => {
                serde_json::from_slice(&bytes).map_err(|e| Error::file("reading", path)(e.into()))
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(Error::file("reading", path)(error)),
        }
    }
}

fn write_private(path: &Path, contents: &[u8]) -> Result<(), Error> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(Error::file("making", parent))?;
    }
    let mut options = fs::OpenOptions::new();
    let file = options.write(true).create(true).truncate(true).mode(0o600).open(path);
    file.and_then(|mut file| file.write_all(contents)).map_err(Error::file("writing", path))
}

pub(super) async fn apply(
    context: &Context,
    volume: &Luks,
    fetcher: &Fetcher,
    state: &mut State,
) -> Result<(), Error> {
    let refused = |reason: &str| Error::Refused {
        what: format!("volume {}", volume.name),
        reason: reason.to_owned(),
    };
    if volume.cex.enabled == Some(true) {
        return Err(refused("CEX requires IBM Z, which has no node image"));
    }
    let device = volume.device.as_deref().unwrap_or_default();
    let given = match volume.key_file.url() {
        Some(_) => Some(fetcher.fetch(&volume.key_file).await?),
        None => None,
    };
    let found = contents(context, device, "crypto_LUKS")?;
    let clevis = volume.clevis.is_wanted();
    let key = match (found.kind.as_str(), volume.wipe_volume == Some(true)) {
        ("crypto_LUKS", false) => {
            same(volume, &found).map_err(refused)?;
            match given {
                Some(key) => Key::Given(key),
                None if clevis => Key::Gone,
                None => {
                    return Err(refused(
                        "it exists, with a key that an earlier run generated; set keyFile or wipeVolume",
                    ));
                }
            }
        }
        (kind, false) if !kind.is_empty() => {
            return Err(refused(&format!(
                "{device} contains {kind}; set wipeVolume to replace it"
            )));
        }
        (_, _) => {
            let key = match given {
                Some(key) => Key::Given(key),
                None => Key::Made(random().map_err(Error::file("reading", "/dev/urandom"))?),
            };
            format(context, volume, device, key.bytes())?;
            key
        }
    };
    match &key {
        Key::Gone => clevis::open(context, volume, device)?,
        Key::Given(key) | Key::Made(key) => open(context, volume, device, key)?,
    }
    if clevis {
        bind(context, volume, device, &key)?;
    }
    let uuid = context.programs.must(&["cryptsetup", "luksUUID", device])?.trim().to_owned();
    let discard = volume.discard == Some(true);
    // A key next to the volume would bypass clevis.
    let key = (!clevis).then(|| STANDARD.encode(key.bytes()));
    let network = volume.clevis.needs_network();
    state.luks.insert(volume.name.clone(), Volume { uuid, key, discard, network });
    Ok(())
}

enum Key {
    /// A key of the config.
    Given(Vec<u8>),
    /// A key generated in this run.
    Made(Vec<u8>),
    /// Generated in an earlier run, and removed after clevis was bound.
    Gone,
}

impl Key {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Given(key) | Self::Made(key) => key,
            Self::Gone => &[],
        }
    }
}

/// Checks that an existing volume has the configured label and UUID.
fn same(volume: &Luks, found: &super::Contents) -> Result<(), &'static str> {
    let differs = |wanted: &Option<String>, found: &str| {
        wanted
            .as_deref()
            .is_some_and(|wanted| !wanted.is_empty() && !wanted.eq_ignore_ascii_case(found))
    };
    if differs(&volume.label, &found.label) || differs(&volume.uuid, &found.uuid) {
        return Err("a volume with another label or UUID exists; set wipeVolume to replace it");
    }
    Ok(())
}

fn bind(context: &Context, volume: &Luks, device: &str, key: &Key) -> Result<(), Error> {
    let made = match key {
        Key::Gone => return Ok(()),
        Key::Given(_) => false,
        Key::Made(_) => true,
    };
    with_key(key.bytes(), |file| {
        clevis::bind(context, &volume.clevis, device, file)?;
        if made { clevis::remove_key(context, device, file) } else { Ok(()) }
    })
}

fn random() -> std::io::Result<Vec<u8>> {
    let mut out = vec![0; KEY_SIZE];
    File::open("/dev/urandom")?.read_exact(&mut out)?;
    Ok(out)
}

/// Passes the key in a temporary file with a unique name.
fn with_key(key: &[u8], work: impl FnOnce(&str) -> Result<(), Error>) -> Result<(), Error> {
    let folder = Path::new(KEYS);
    let failed = |error| Error::file("writing a key into", folder)(error);
    fs::create_dir_all(folder).map_err(failed)?;
    let mut file = tempfile::NamedTempFile::with_prefix_in("luks.", folder).map_err(failed)?;
    file.write_all(key).map_err(failed)?;
    work(&file.path().display().to_string())?;
    file.close().map_err(Error::file("removing a key from", folder))
}

fn format(context: &Context, volume: &Luks, device: &str, key: &[u8]) -> Result<(), Error> {
    tracing::info!(device, name = volume.name, "making an encrypted volume");
    context.programs.must(&["wipefs", "--all", device])?;
    let mut command = vec!["cryptsetup", "luksFormat", "--type", "luks2", "--batch-mode"];
    for (flag, value) in [("--label", &volume.label), ("--uuid", &volume.uuid)] {
        if let Some(value) = value.as_deref().filter(|value| !value.is_empty()) {
            command.extend([flag, value]);
        }
    }
    command.extend(volume.options.iter().map(String::as_str));
    with_key(key, |file| {
        let command = [&command[..], &["--key-file", file, device]].concat();
        Ok(context.programs.must(&command).map(drop)?)
    })
}

fn open(context: &Context, volume: &Luks, device: &str, key: &[u8]) -> Result<(), Error> {
    if Path::new("/dev/mapper").join(&volume.name).exists() {
        return Ok(());
    }
    let mut command = vec!["cryptsetup", "luksOpen", device, &volume.name];
    if volume.discard == Some(true) {
        command.push("--allow-discards");
    }
    command.extend(volume.open_options.iter().map(String::as_str));
    if volume.discard == Some(true) || !volume.open_options.is_empty() {
        command.push("--persistent");
    }
    with_key(key, |file| {
        let command = [&command[..], &["--key-file", file]].concat();
        Ok(context.programs.must(&command).map(drop)?)
    })
}

#[cfg(test)]
mod tests;
