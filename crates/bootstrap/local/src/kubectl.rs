//! `windlass kubectl`: runs the installed kubectl with the cluster's kubeconfig.

use std::{ffi::OsString, os::unix::process::CommandExt as _, process::Command};

use crate::{cluster_args::ClusterArgs, error::Error};

/// Runs the installed kubectl as the cluster's administrator
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// kubectl's arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub command: Vec<OsString>,
}

/// Becomes kubectl. Returns only on failure.
pub fn run(args: Args) -> Result<(), Error> {
    let cluster = args.cluster.load()?;
    let mut kubectl = Command::new("kubectl");
    kubectl.args(&args.command).env("KUBECONFIG", cluster.layout().kubeconfig("admin.conf"));
    Err(Error::Start { program: "kubectl".to_owned(), source: kubectl.exec() })
}
