//! The arguments that name a cluster on this machine.

use std::path::PathBuf;

use crate::{
    cluster::{Cluster, DEFAULT_NAME},
    error::Error,
};

/// The cluster on this machine that a command is for.
#[derive(Clone, Debug, clap::Args)]
pub struct ClusterArgs {
    /// The cluster's name
    #[arg(long, default_value = DEFAULT_NAME)]
    pub name: String,
    /// The directory of the cluster's files [default: /var/lib/windlass/NAME]
    #[arg(long)]
    pub root: Option<PathBuf>,
}

impl ClusterArgs {
    /// Returns `true` if neither a name nor a directory was given.
    pub fn is_default(&self) -> bool {
        self.name == DEFAULT_NAME && self.root.is_none()
    }

    /// Returns the directory of the cluster's files.
    pub fn directory(&self) -> PathBuf {
        Cluster::at(&self.name, self.root.as_deref())
    }

    /// Reads the cluster's description.
    pub fn load(&self) -> Result<Cluster, Error> {
        Cluster::load(&self.name, &self.directory())
    }
}
