//! `windlass kubectl`: runs the installed kubectl with the cluster's kubeconfig.

use std::{ffi::OsString, os::unix::process::CommandExt as _, path::PathBuf, process::Command};

use crate::{
    cluster::{Cluster, DEFAULT_NAME},
    error::Error,
};

/// Runs the installed kubectl as the cluster's administrator
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The cluster's name
    #[arg(long, default_value = DEFAULT_NAME)]
    pub name: String,
    /// The directory of the cluster's files [default: /var/lib/windlass/NAME]
    #[arg(long)]
    pub root: Option<PathBuf>,
    /// kubectl's arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub command: Vec<OsString>,
}

/// Becomes kubectl. Returns only on failure.
pub fn run(args: Args) -> Result<(), Error> {
    let cluster = Cluster::load(&args.name, &Cluster::at(&args.name, args.root.as_deref()))?;
    let mut kubectl = Command::new("kubectl");
    kubectl.args(&args.command).env("KUBECONFIG", cluster.layout().kubeconfig("admin.conf"));
    Err(Error::Start { program: "kubectl".to_owned(), source: kubectl.exec() })
}
