//! Replacement of our components by upstream's and back. Needs `WINDLASS_PEER`, the directory of upstream's binaries,
//! but for `earlier` and `skew`.

mod adopted;
mod earlier;
mod joined;
mod results;
mod site;
mod skew;
mod takeover;

use std::path::PathBuf;

/// Returns the directory of upstream's binaries. Prints a message if `WINDLASS_PEER` is not set.
fn peer() -> Option<PathBuf> {
    let directory = std::env::var_os("WINDLASS_PEER").map(PathBuf::from);
    if directory.is_none() {
        eprintln!("skipped: WINDLASS_PEER, the directory of upstream's binaries, is not set");
    }
    directory
}
