//! Volumes that Tang servers or the machine's TPM open, by the program clevis.

use std::{path::Path, thread::sleep, time::Duration};

use tokio::time::Instant;

use ignition::spec::{Clevis, Luks};
use sys::Programs;

use crate::{Error, stages::Context};

/// A server may be a moment later than the network.
const PAUSE: Duration = Duration::from_secs(1);

/// Lets clevis open a volume to which the key in a file is one. A volume that it opens already is left as it is.
pub(super) fn bind(
    context: &Context,
    clevis: &Clevis,
    device: &str,
    key: &str,
) -> Result<(), Error> {
    let bound = context.programs.must(&["clevis", "luks", "list", "-d", device])?;
    if !bound.trim().is_empty() {
        tracing::info!(device, bound = bound.trim(), "clevis opens the volume already");
        return Ok(());
    }
    let policy = clevis.policy();
    tracing::info!(device, pin = policy.pin, "binding the volume");
    let command =
        ["clevis", "luks", "bind", "-f", "-k", key, "-d", device, &policy.pin, &policy.config];
    let patience = if clevis.needs_network() { context.patience } else { Duration::ZERO };
    again(patience, || Ok(context.programs.must(&command).map(drop)?))
}

/// Takes away the key by which clevis was let in, so that nothing else opens the volume.
pub(super) fn remove_key(context: &Context, device: &str, key: &str) -> Result<(), Error> {
    context.programs.must(&["cryptsetup", "luksRemoveKey", "--batch-mode", device, key])?;
    Ok(())
}

/// Opens a volume of an earlier run.
pub(super) fn open(context: &Context, volume: &Luks, device: &str) -> Result<(), Error> {
    let network = volume.clevis.needs_network();
    let patience = if network { context.patience } else { Duration::ZERO };
    unlock(context.programs.as_ref(), device, &volume.name, patience)
}

pub(crate) fn unlock(
    programs: &dyn Programs,
    device: &str,
    name: &str,
    patience: Duration,
) -> Result<(), Error> {
    if Path::new("/dev/mapper").join(name).exists() {
        return Ok(());
    }
    let command = ["clevis", "luks", "unlock", "-d", device, "-n", name];
    again(patience, || Ok(programs.must(&command).map(drop)?))
}

/// Tries until it works or patience is at its end.
fn again(patience: Duration, work: impl Fn() -> Result<(), Error>) -> Result<(), Error> {
    let deadline = Instant::now() + patience;
    loop {
        match work() {
            Err(error) if Instant::now() < deadline => {
                tracing::warn!(%error, "trying again");
                sleep(PAUSE);
            }
            outcome => return outcome,
        }
    }
}
