//! Configures the initrd's network by DHCP, on any link with a carrier.

use std::{fs, time::Duration};

use sys::Programs;
use tokio::time::Instant;

use crate::error::Error;

const SCRIPT: &str = "/usr/share/udhcpc/windlass.script";
/// The time for switches to start forwarding on a link.
const CARRIER_TIMEOUT: Duration = Duration::from_secs(60);

/// Returns the names of the Ethernet links.
fn links() -> Vec<String> {
    let entries = fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let ethernet = |name: &String| {
        let kind = fs::read_to_string(format!("/sys/class/net/{name}/type")).unwrap_or_default();
        name != "lo" && kind.trim() == "1"
    };
    let mut names: Vec<String> = names.filter(ethernet).collect();
    names.sort();
    names
}

/// Configures the first link with a DHCP server.
pub(super) fn up(programs: &dyn Programs, step: &dyn Fn(&str)) -> Result<(), Error> {
    programs.must(&["ip", "link", "set", "lo", "up"])?;
    let deadline = Instant::now() + CARRIER_TIMEOUT;
    loop {
        let links = links();
        for link in &links {
            programs.must(&["ip", "link", "set", link, "up"])?;
        }
        for link in &links {
            let carrier = fs::read_to_string(format!("/sys/class/net/{link}/carrier"));
            if carrier.is_ok_and(|carrier| carrier.trim() == "1") {
                let command = [
                    "busybox", "udhcpc", "-i", link, "-n", "-q", "-t", "5", "-T", "2", "-s", SCRIPT,
                ];
                let output = programs.run(&command, &[])?;
                if output.code == Some(0) {
                    let last = output.stderr.lines().last().unwrap_or_default().to_owned();
                    step(&format!("{link}: {last}"));
                    return Ok(());
                }
            }
        }
        if Instant::now() > deadline {
            let reason =
                format!("no DHCP server answers within {CARRIER_TIMEOUT:?} on any of {links:?}");
            return Err(Error::Refused { what: "network".into(), reason });
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}
