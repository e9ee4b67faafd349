//! The default StorageClass as an add-on, as an administrator of a cluster of `init` applies it.

use bootstrap_core::addons;

use crate::Error;

/// The one thing to be done about it.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Command {
    /// Prints the StorageClass of node-local directories for `kubectl apply -f -`, and what its provisioner may do
    Print,
}

/// Prints the objects as YAML.
pub async fn print() -> Result<(), Error> {
    print!("{}", api_config::yaml::to_string_all(&addons::storage::objects())?);
    Ok(())
}
