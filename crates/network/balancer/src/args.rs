//! The command line.

use std::{net::SocketAddr, path::PathBuf};

/// Balances this node's connections over the cluster's API servers
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// The address for the node's components
    #[arg(long, default_value = "127.0.0.1:7445")]
    pub listen: SocketAddr,
    /// The file of known API servers, one host:port per line; rewritten when the cluster's servers change
    #[arg(long)]
    pub servers: PathBuf,
    /// The CA file for the API servers' certificates
    #[arg(long)]
    pub certificate_authority: PathBuf,
    /// The kubeconfig for querying the cluster's API servers; while it does not exist, those in the file are used
    #[arg(long)]
    pub kubeconfig: PathBuf,
}
