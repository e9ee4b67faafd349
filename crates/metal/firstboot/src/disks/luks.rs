//! Creates and opens encrypted volumes with cryptsetup.

use std::{
    fs::{self, File},
    io::{Read, Write},
    path::Path,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use ignition::spec::Luks;

use super::{
    clevis,
    contents::{Contents, probe},
    state::{State, Volume},
};
use crate::{context::Context, error::Error, fetch::Fetcher};

const KEY_SIZE: usize = 4096;
/// The directory for key files, which is in memory, so that keys are never on a disk.
const KEYS: &str = "/run/ignition";

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
    let configured = match volume.key_file.url() {
        Some(_) => Some(fetcher.fetch(&volume.key_file).await?),
        None => None,
    };
    let contents = probe(context, device, "crypto_LUKS")?;
    let clevis = volume.clevis.is_wanted();
    let key = match (contents.kind.as_str(), volume.wipe_volume == Some(true)) {
        ("crypto_LUKS", false) => {
            check_identity(volume, &contents).map_err(refused)?;
            match configured {
                Some(key) => Key::Configured(key),
                None if clevis => Key::Removed,
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
            let key = match configured {
                Some(key) => Key::Configured(key),
                None => {
                    Key::Generated(generate_key().map_err(Error::file("reading", "/dev/urandom"))?)
                }
            };
            format(context, volume, device, key.bytes())?;
            key
        }
    };
    match &key {
        Key::Removed => clevis::open(context, volume, device)?,
        Key::Configured(key) | Key::Generated(key) => open(context, volume, device, key)?,
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

/// The key of a volume.
enum Key {
    /// A key of the config.
    Configured(Vec<u8>),
    /// A key generated in this run.
    Generated(Vec<u8>),
    /// Generated in an earlier run, and removed after clevis was bound.
    Removed,
}

impl Key {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Configured(key) | Self::Generated(key) => key,
            Self::Removed => &[],
        }
    }
}

/// Checks that an existing volume has the configured label and UUID.
fn check_identity(volume: &Luks, contents: &Contents) -> Result<(), &'static str> {
    let differs = |expected: &Option<String>, actual: &str| {
        let expected = expected.as_deref().filter(|text| !text.is_empty());
        expected.is_some_and(|expected| !expected.eq_ignore_ascii_case(actual))
    };
    if differs(&volume.label, &contents.label) || differs(&volume.uuid, &contents.uuid) {
        return Err("a volume with another label or UUID exists; set wipeVolume to replace it");
    }
    Ok(())
}

fn bind(context: &Context, volume: &Luks, device: &str, key: &Key) -> Result<(), Error> {
    let is_generated = match key {
        Key::Removed => return Ok(()),
        Key::Configured(_) => false,
        Key::Generated(_) => true,
    };
    with_key(key.bytes(), |file| {
        clevis::bind(context, &volume.clevis, device, file)?;
        if is_generated { clevis::remove_key(context, device, file) } else { Ok(()) }
    })
}

fn generate_key() -> std::io::Result<Vec<u8>> {
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
