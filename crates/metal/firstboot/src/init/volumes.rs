//! The devices below a root: RAID arrays, which udev assembles, and encrypted volumes, which the kernel command line
//! names in systemd's format.

use std::{path::Path, time::Duration};

use sys::Programs;
use tokio::time::Instant;

use crate::{cmdline, disks::clevis, error::Error};

/// The time to wait for late disks.
const DEVICE_TIMEOUT: Duration = Duration::from_secs(90);
/// The time after which incomplete arrays are started without their missing disks.
const COMPLETE: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(100);
const NAME: &str = "rd.luks.name";
const NETWORK: &str = "rd.neednet";

/// Returns the arguments to open the volumes of an installed system, outermost first, each by UUID and name.
pub(super) fn arguments(volumes: &[(String, String)], network: bool) -> Vec<String> {
    let named = volumes.iter().map(|(uuid, name)| format!("{NAME}={uuid}={name}"));
    named.chain(network.then(|| format!("{NETWORK}=1"))).collect()
}

fn parse_volumes(line: &str) -> Vec<(&str, &str)> {
    let words = line.split_whitespace().filter_map(|word| word.strip_prefix(NAME));
    words.filter_map(|word| word.strip_prefix('=')?.split_once('=')).collect()
}

fn wants_network(line: &str) -> bool {
    cmdline::value(line, NETWORK).is_some_and(|value| value != "0")
}

/// Opens the volumes on the command line.
pub(super) fn open(line: &str, programs: &dyn Programs, step: &dyn Fn(&str)) -> Result<(), Error> {
    let volumes = parse_volumes(line);
    if wants_network(line) && !volumes.is_empty() {
        super::network::up(programs, step)?;
    }
    for (uuid, name) in volumes {
        let device = format!("/dev/disk/by-uuid/{}", uuid.to_ascii_lowercase());
        wait_for_device(&device, programs)?;
        step(&format!("opening {name}"));
        clevis::unlock(programs, &device, name, DEVICE_TIMEOUT)?;
    }
    Ok(())
}

/// Waits for a device and starts incomplete arrays if it is late.
pub(super) fn wait_for_device(device: &str, programs: &dyn Programs) -> Result<(), Error> {
    let started = Instant::now();
    let mut complete = true;
    while !Path::new(device).exists() {
        let waited = started.elapsed();
        if waited > DEVICE_TIMEOUT {
            let seconds = DEVICE_TIMEOUT.as_secs();
            return Err(Error::NoDevice { device: device.to_owned(), seconds });
        }
        if complete && waited > COMPLETE {
            complete = false;
            let output = programs.run(&["mdadm", "--incremental", "--run", "--scan"], &[])?;
            tracing::warn!(
                device,
                output = output.stderr.trim(),
                "the device is late; starting incomplete arrays"
            );
        }
        std::thread::sleep(POLL);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_own_volume_arguments() {
        let volumes = [("AB-1".to_owned(), "root".to_owned()), ("cd".to_owned(), "b".to_owned())];
        let line = arguments(&volumes, true).join(" ");
        assert_eq!(line, "rd.luks.name=AB-1=root rd.luks.name=cd=b rd.neednet=1");
        assert_eq!(parse_volumes(&line), [("AB-1", "root"), ("cd", "b")]);
        assert!(wants_network(&line) && !wants_network(&arguments(&volumes, false).join(" ")));
        assert_eq!(parse_volumes("root=UUID=x rd.luks.name=only rd.luks.names=a=b quiet"), []);
    }
}
