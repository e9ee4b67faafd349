//! Settings of interfaces below `/proc/sys/net`, in the caller's network namespace.

use std::{fs, path::Path};

use crate::error::Error;

const ROOT: &str = "/proc/sys/net";

/// Writes a setting such as `ipv4/ip_forward` if it differs. `/proc/sys` is read-only in some containers, where the
/// settings are made from outside.
pub fn set_sysctl(name: &str, value: &str) -> Result<(), Error> {
    let path = format!("{ROOT}/{name}");
    if fs::read_to_string(&path).is_ok_and(|current| current.trim() == value) {
        return Ok(());
    }
    fs::write(&path, value).map_err(|source| Error::Sysctl {
        path,
        value: value.to_owned(),
        source,
    })
}

/// Reports whether the kernel has IPv6, which also sends and accepts packets on links without a configured address.
pub fn has_ipv6() -> bool {
    Path::new(ROOT).join("ipv6/conf").exists()
}

/// Makes an interface ignore router advertisements and redirects. Otherwise a Pod that sends them could become the
/// router of the node or of other Pods (CVE-2020-10749).
pub fn refuse_routes(interface: &str) -> Result<(), Error> {
    set_sysctl(&format!("ipv4/conf/{interface}/accept_redirects"), "0")?;
    // A link with a small MTU has no IPv6, even if the kernel has.
    if Path::new(ROOT).join("ipv6/conf").join(interface).exists() {
        set_sysctl(&format!("ipv6/conf/{interface}/accept_ra"), "0")?;
        set_sysctl(&format!("ipv6/conf/{interface}/accept_redirects"), "0")?;
    }
    Ok(())
}
