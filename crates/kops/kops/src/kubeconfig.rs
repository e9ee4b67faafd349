//! Writes the access of administrators to a cluster.

use std::{path::PathBuf, time::Duration};

use api_config::{GoDuration, kubeconfig};
use kops_local::{administrator, issue_kubeconfig};
use kops_store::Registry;

use crate::{environment::CommandEnvironment, error::Error, flags::ExportKubeconfig, get};

pub(crate) fn export(
    registry: &Registry,
    command: &ExportKubeconfig,
    name: &str,
    context: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    let cluster = get::find_cluster(registry, name)?;
    let Some(period) = command.admin else {
        let problem = "is required: no other authentication is supported yet";
        return Err(Error::Flag { flag: "--admin", problem });
    };
    write(registry, cluster.name(), command.kubeconfig.clone(), period.to_std(), context)
}

/// Adds the cluster's context to a kubeconfig, and makes it the current one.
pub(crate) fn write(
    registry: &Registry,
    cluster: &str,
    path: Option<PathBuf>,
    period: Duration,
    context: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    let own = issue_kubeconfig(registry, cluster, administrator(), period, context.now)?;
    let home = (context.environment)("HOME").unwrap_or_else(|| "/root".to_owned());
    let usual = || {
        let named = (context.environment)("KUBECONFIG");
        kubeconfig::file_to_change(named.as_deref(), std::path::Path::new(&home))
    };
    let path = path.unwrap_or_else(usual);
    kubeconfig::update_file(&path, |config| config.merge(own))?;
    writeln!(context.out, "kOps has set your kubectl context to {cluster}")?;
    Ok(())
}

/// Returns the lifetime of upstream's administrators' certificates.
pub(crate) fn default_lifetime() -> Duration {
    GoDuration::from_secs(18 * 3600).to_std()
}
