//! Runs `kops version`.

use std::io::Write;

use kops_store::{KOPS_VERSION, Registry};

use crate::{error::Error, flags::ShowVersion};

/// Prints the version and, with --server, the version that last updated the cluster.
pub(crate) fn show(
    registry: &Registry,
    command: &ShowVersion,
    name: &str,
    out: &mut dyn Write,
) -> Result<(), Error> {
    let (client, server) = if command.short {
        ("", "")
    } else {
        ("Client version: ", "Last applied server version: ")
    };
    writeln!(out, "{client}{KOPS_VERSION}")?;
    if command.server {
        writeln!(out, "{server}{}", server_version(registry, name))?;
    }
    Ok(())
}

/// Returns the version that last updated a cluster, or upstream's text for the reason why it is unknown.
fn server_version(registry: &Registry, name: &str) -> String {
    if name.is_empty() || !matches!(registry.cluster(name), Ok(Some(_))) {
        return "could not fetch cluster".to_owned();
    }
    match registry.read_object(&format!("{name}/kops-version.txt")) {
        Ok(Some((content, _))) => String::from_utf8_lossy(&content).trim().to_owned(),
        _ => "could get cluster version".to_owned(),
    }
}
