//! The files stage: applies users and groups, files, directories and links, units, and the keys of volumes.

mod accounts;
mod nodes;

use base64::{Engine, engine::general_purpose::STANDARD};
use ignition::{spec::Config, units};

use crate::{context::Context, disks::state::State, error::Error, fetch::Fetcher, root::Root};

pub(crate) async fn run(
    context: &Context,
    config: &Config,
    fetcher: &Fetcher,
) -> Result<(), Error> {
    let root = Root::open(&context.root)?;
    let state = State::load(&context.state_file)?;
    let passwd = accounts::apply(&root, &config.passwd, &state.directories)?;
    nodes::apply(&root, &config.storage, &passwd, fetcher).await?;
    units(&root, config)?;
    unlock(&root, &state)
}

fn units(root: &Root, config: &Config) -> Result<(), Error> {
    let masked = |path: &str| -> Result<bool, Error> {
        let link = root.stat(path)?.is_some_and(|file| file.kind == rustix::fs::FileType::Symlink);
        Ok(link && root.read_link(path)? == "/dev/null")
    };
    for step in units::plan(&config.systemd.units) {
        match step {
            units::Step::Write { path, contents } => {
                // Writing through a mask would write to /dev/null.
                if masked(&path)? {
                    root.remove(&path)?;
                }
                root.write(&path, contents.as_bytes(), 0o644, 0, 0)?;
            }
            units::Step::Mask { path } => {
                if !masked(&path)? {
                    root.remove(&path)?;
                    root.symlink(&path, "/dev/null")?;
                }
            }
            units::Step::Unmask { path } => {
                if masked(&path)? {
                    root.remove(&path)?;
                }
            }
            units::Step::Disable { unit } => disable(root, &unit)?,
        }
    }
    Ok(())
}

/// Removes the links to a disabled unit, because presets do not remove the links of a unit that the image enables.
fn disable(root: &Root, unit: &str) -> Result<(), Error> {
    for folder in root.entries(UNITS)? {
        if !folder.ends_with(".wants") && !folder.ends_with(".requires") {
            continue;
        }
        let path = format!("{UNITS}/{folder}/{unit}");
        if root.stat(&path)?.is_some_and(|file| file.kind == rustix::fs::FileType::Symlink) {
            root.remove(&path)?;
        }
    }
    Ok(())
}

const UNITS: &str = "/etc/systemd/system";
const CRYPTTAB: &str = "/etc/crypttab";

/// Writes the keys of volumes and their lines in crypttab.
fn unlock(root: &Root, state: &State) -> Result<(), Error> {
    if state.luks.is_empty() {
        return Ok(());
    }
    let existing = root.read(CRYPTTAB)?.unwrap_or_default();
    let existing = String::from_utf8_lossy(&existing).into_owned();
    let other = |line: &&str| {
        line.split_whitespace().next().is_none_or(|name| !state.luks.contains_key(name))
    };
    let mut lines: Vec<String> = existing.lines().filter(other).map(str::to_owned).collect();
    for (name, volume) in &state.luks {
        let path = match &volume.key {
            Some(key) => keep_key(root, name, key)?,
            // The system requests the key from its password agents, such as clevis.
            None => "none".to_owned(),
        };
        let discard = if volume.discard { ",discard" } else { "" };
        let network = if volume.network { ",_netdev" } else { "" };
        lines.push(format!("{name} UUID={} {path} luks{discard}{network}", volume.uuid));
    }
    root.write(CRYPTTAB, (lines.join("\n") + "\n").as_bytes(), 0o600, 0, 0)
}

/// Writes a key, given in Base64, readable by root only. Returns its path.
fn keep_key(root: &Root, name: &str, key: &str) -> Result<String, Error> {
    let path = format!("/etc/luks/{name}");
    let key = STANDARD.decode(key);
    let key = key.map_err(|error| Error::Node { path: path.clone(), reason: error.to_string() })?;
    root.make_directory("/etc/luks")?;
    root.set("/etc/luks", Some(0o700), Some(0), Some(0))?;
    root.write(&path, &key, 0o600, 0, 0)?;
    Ok(path)
}

#[cfg(test)]
mod tests;
