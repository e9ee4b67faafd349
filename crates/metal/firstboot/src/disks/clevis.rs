//! Volumes that Tang servers or the machine's TPM unlock, by the program clevis.

use std::{path::Path, thread::sleep, time::Duration};

use tokio::time::Instant;

use ignition::spec::{Clevis, Luks};
use sys::Programs;

use crate::{context::Context, error::Error};

/// The pause between attempts. A server may become reachable shortly after the network is up.
const PAUSE: Duration = Duration::from_secs(1);

/// Binds a volume to clevis, with a key file that unlocks it. An existing binding is kept.
pub(super) fn bind(
    context: &Context,
    clevis: &Clevis,
    device: &str,
    key: &str,
) -> Result<(), Error> {
    let bound = context.programs.must(&["clevis", "luks", "list", "-d", device])?;
    if !bound.trim().is_empty() {
        tracing::info!(device, bound = bound.trim(), "clevis is bound to the volume already");
        return Ok(());
    }
    let policy = clevis.policy();
    tracing::info!(device, pin = policy.pin, "binding the volume");
    let command =
        ["clevis", "luks", "bind", "-f", "-k", key, "-d", device, &policy.pin, &policy.config];
    let timeout = if clevis.needs_network() { context.device_timeout } else { Duration::ZERO };
    retry(timeout, || Ok(context.programs.must(&command).map(drop)?))
}

/// Removes the key that was used for binding, so that only clevis unlocks the volume.
pub(super) fn remove_key(context: &Context, device: &str, key: &str) -> Result<(), Error> {
    context.programs.must(&["cryptsetup", "luksRemoveKey", "--batch-mode", device, key])?;
    Ok(())
}

/// Unlocks a volume of an earlier run.
pub(super) fn open(context: &Context, volume: &Luks, device: &str) -> Result<(), Error> {
    let network = volume.clevis.needs_network();
    let timeout = if network { context.device_timeout } else { Duration::ZERO };
    unlock(context.programs.as_ref(), device, &volume.name, timeout)
}

pub(crate) fn unlock(
    programs: &dyn Programs,
    device: &str,
    name: &str,
    timeout: Duration,
) -> Result<(), Error> {
    if Path::new("/dev/mapper").join(name).exists() {
        return Ok(());
    }
    let command = ["clevis", "luks", "unlock", "-d", device, "-n", name];
    retry(timeout, || Ok(programs.must(&command).map(drop)?))
}

/// Retries until success or the deadline.
fn retry(timeout: Duration, work: impl Fn() -> Result<(), Error>) -> Result<(), Error> {
    let deadline = Instant::now() + timeout;
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
