//! Encrypted volumes, by cryptsetup.

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

use super::contents;
use crate::{Error, fetch::Fetcher, stages::Context};

const KEY_SIZE: usize = 4096;
const KEY_FILE: &str = "/run/ignition/luks.key";

/// What the files stage writes of volumes: their keys and where they lie.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct State {
    pub(crate) luks: BTreeMap<String, Volume>,
    /// What the mount stage made to have a place for filesystems: a home among it is its user's.
    #[serde(default)]
    pub(crate) directories: Vec<String>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Volume {
    pub(crate) uuid: String,
    /// In base64.
    pub(crate) key: String,
    pub(crate) discard: bool,
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
    if volume.clevis.is_wanted() || volume.cex.enabled == Some(true) {
        return Err(refused("clevis (Tang, TPM) and CEX are not served here; name a keyFile"));
    }
    let device = volume.device.as_deref().unwrap_or_default();
    let key = match volume.key_file.url() {
        Some(_) => Some(fetcher.fetch(&volume.key_file).await?),
        None => None,
    };
    let found = contents(context, device, "crypto_LUKS")?;
    let key = match (found.kind.as_str(), volume.wipe_volume == Some(true)) {
        ("crypto_LUKS", false) => {
            let key = key.ok_or_else(|| refused("it is there, and its key was made by an earlier run; name a keyFile, or set wipeVolume"))?;
            let differs = |wanted: &Option<String>, found: &str| {
                wanted
                    .as_deref()
                    .is_some_and(|wanted| !wanted.is_empty() && !wanted.eq_ignore_ascii_case(found))
            };
            if differs(&volume.label, &found.label) || differs(&volume.uuid, &found.uuid) {
                return Err(refused(
                    "a volume with another label or UUID is there; wipeVolume lets it be replaced",
                ));
            }
            key
        }
        (kind, false) if !kind.is_empty() => {
            return Err(refused(&format!("{kind} is on {device}; wipeVolume lets it be replaced")));
        }
        (_, _) => {
            let key = match key {
                Some(key) => key,
                None => random().map_err(Error::file("reading", "/dev/urandom"))?,
            };
            format(context, volume, device, &key)?;
            key
        }
    };
    open(context, volume, device, &key)?;
    let uuid = context.programs.must(&["cryptsetup", "luksUUID", device])?.trim().to_owned();
    let discard = volume.discard == Some(true);
    state.luks.insert(volume.name.clone(), Volume { uuid, key: STANDARD.encode(key), discard });
    Ok(())
}

fn random() -> std::io::Result<Vec<u8>> {
    let mut out = vec![0; KEY_SIZE];
    File::open("/dev/urandom")?.read_exact(&mut out)?;
    Ok(out)
}

/// Runs cryptsetup with the key in a file that is there only so long.
fn with_key(context: &Context, key: &[u8], command: &[&str]) -> Result<(), Error> {
    let path = Path::new(KEY_FILE);
    write_private(path, key)?;
    let result = context.programs.must(command);
    fs::remove_file(path).map_err(Error::file("removing", path))?;
    result?;
    Ok(())
}

fn format(context: &Context, volume: &Luks, device: &str, key: &[u8]) -> Result<(), Error> {
    tracing::info!(device, name = volume.name, "making an encrypted volume");
    context.programs.must(&["wipefs", "--all", device])?;
    let mut command =
        vec!["cryptsetup", "luksFormat", "--type", "luks2", "--batch-mode", "--key-file", KEY_FILE];
    for (flag, value) in [("--label", &volume.label), ("--uuid", &volume.uuid)] {
        if let Some(value) = value.as_deref().filter(|value| !value.is_empty()) {
            command.extend([flag, value]);
        }
    }
    command.extend(volume.options.iter().map(String::as_str));
    command.push(device);
    with_key(context, key, &command)
}

fn open(context: &Context, volume: &Luks, device: &str, key: &[u8]) -> Result<(), Error> {
    if Path::new("/dev/mapper").join(&volume.name).exists() {
        return Ok(());
    }
    let mut command = vec!["cryptsetup", "luksOpen", device, &volume.name, "--key-file", KEY_FILE];
    if volume.discard == Some(true) {
        command.push("--allow-discards");
    }
    command.extend(volume.open_options.iter().map(String::as_str));
    if volume.discard == Some(true) || !volume.open_options.is_empty() {
        command.push("--persistent");
    }
    with_key(context, key, &command)
}
