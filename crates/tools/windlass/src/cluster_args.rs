//! The arguments that name a cluster on this machine.

use std::path::PathBuf;

use local::Cluster;

#[derive(clap::Args)]
pub(crate) struct ClusterArgs {
    /// The cluster's name
    #[arg(long, default_value = local::DEFAULT_NAME)]
    name: String,
    /// The directory of the cluster's files [default: /var/lib/windlass/NAME]
    #[arg(long)]
    pub(crate) root: Option<PathBuf>,
}

impl ClusterArgs {
    /// Returns `true` if neither a name nor a directory was given.
    pub(crate) fn is_default(&self) -> bool {
        self.name == local::DEFAULT_NAME && self.root.is_none()
    }

    /// Returns the directory of the cluster's files.
    pub(crate) fn directory(&self) -> PathBuf {
        Cluster::at(&self.name, self.root.as_deref())
    }

    /// Reads the cluster's description.
    pub(crate) fn load(&self) -> Result<Cluster, local::Error> {
        Cluster::load(&self.name, &self.directory())
    }
}
