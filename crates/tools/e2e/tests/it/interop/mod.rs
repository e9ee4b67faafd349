//! Upstream's components in the place of ours and back, where `WINDLASS_PEER` names the directory that holds them.

mod adopted;
mod joined;
mod results;
mod site;
mod takeover;

use std::path::PathBuf;

/// The directory of upstream's binaries; says so if there is none.
fn peer() -> Option<PathBuf> {
    let directory = std::env::var_os("WINDLASS_PEER").map(PathBuf::from);
    if directory.is_none() {
        eprintln!("skipped: WINDLASS_PEER names no directory of upstream's binaries");
    }
    directory
}
