//! The default StorageClass as an add-on: prints the objects that an administrator applies to a cluster of `init`.

use bootstrap_core::addons;

use crate::error::Error;

/// The commands for the add-on.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Command {
    /// Prints the StorageClass of node-local volumes, and its provisioner's RBAC rules, for `kubectl apply -f -`
    Print,
}

/// Prints the objects as YAML.
pub async fn print() -> Result<(), Error> {
    print!("{}", api_config::yaml::to_string_all(&addons::storage::objects())?);
    Ok(())
}
