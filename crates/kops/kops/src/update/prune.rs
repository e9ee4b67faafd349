//! `update cluster --prune` of cloud local: deletes objects of add-ons that an earlier version of an add-on has left.

use kops_core::{CloudName, Cluster as _};
use kops_local::{COMMAND_PERIOD, fleet};
use kops_node::channels::{delete_leftover, find_leftovers, read_channel};
use kops_store::BOOTSTRAP_CHANNEL;

use crate::{cluster_update::ClusterUpdate, environment::CommandEnvironment, error::Error};

/// Shows the objects that add-ons no longer have, and with --yes deletes them.
pub(super) async fn run(
    update: ClusterUpdate<'_>,
    context: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    let ClusterUpdate { registry, command, cluster } = update;
    if !command.prune || cluster.cloud() != CloudName::Local {
        return Ok(());
    }
    if fleet(registry, cluster.name()).spec()?.is_none() {
        return Ok(());
    }
    let location = format!("{}/{}/{BOOTSTRAP_CHANNEL}", registry.url(), cluster.name());
    let channel = read_channel(&location)?;
    let client = command.api.open(registry, cluster, None, COMMAND_PERIOD, context)?;
    let leftovers = find_leftovers(&client, &channel).await?;
    if leftovers.is_empty() {
        writeln!(context.out, "No objects of add-ons need to be deleted")?;
    }
    for leftover in &leftovers {
        if command.yes {
            delete_leftover(&client, leftover).await?;
            writeln!(context.out, "Deleted {leftover}")?;
        } else {
            writeln!(context.out, "Will delete {leftover}")?;
        }
    }
    Ok(())
}
