//! Runs `kops reconcile cluster`: updates a cluster and replaces its machines, the control plane first. Kubelets of
//! workers keep their version until the second update, when every control plane has the new one.

use kops_local::check_cloud;
use kops_store::Registry;

use crate::{
    environment::CommandEnvironment,
    error::Error,
    flags::{Connection, ReconcileCluster, RollCluster, UpdateCluster},
    get, roll, update,
};

/// The roles of the first rolling update.
const CONTROL_PLANE_ROLES: &str = "--instance-group-roles=apiserver,control-plane";

/// The flags of a rolling update, parsed from the command line that a user would write.
#[derive(clap::Parser)]
struct RollCommand {
    #[command(flatten)]
    flags: RollCluster,
}

pub(crate) async fn run(
    registry: &Registry,
    command: &ReconcileCluster,
    name: &str,
    context: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    // Only machines of cloud local are replaced one by one. Check this before anything is changed.
    check_cloud(&get::find_cluster(registry, name)?)?;
    let update = UpdateCluster {
        yes: command.yes,
        allow_kops_downgrade: command.allow_kops_downgrade,
        api: command.api.clone(),
        ..UpdateCluster::default()
    };
    if !command.yes {
        return update::run(registry, &update, name, context).await;
    }
    writeln!(context.out, "Updating control plane configuration")?;
    // The update also waits until the API is served and the cluster is valid.
    update::run(registry, &update, name, context).await?;
    writeln!(context.out, "Performing rolling-update for control plane")?;
    roll::run(registry, &roll_flags(&[CONTROL_PLANE_ROLES], &command.api)?, name, context).await?;
    writeln!(context.out, "Updating node configuration")?;
    update::run(registry, &update, name, context).await?;
    writeln!(context.out, "Performing rolling-update for nodes")?;
    roll::run(registry, &roll_flags(&[], &command.api)?, name, context).await?;
    writeln!(context.out, "Pruning old resources that are no longer used")?;
    update::run(registry, &UpdateCluster { prune: true, ..update }, name, context).await
}

fn roll_flags(flags: &[&str], api: &Connection) -> Result<RollCluster, Error> {
    let all = ["rolling-update", "--yes"].iter().chain(flags);
    let parsed = <RollCommand as clap::Parser>::try_parse_from(all).map_err(Error::Arguments)?;
    Ok(RollCluster { api: api.clone(), ..parsed.flags })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rolls_control_plane_before_nodes() {
        let api = Connection::default();
        let first = roll_flags(&[CONTROL_PLANE_ROLES], &api).unwrap_or_else(|e| panic!("{e}"));
        assert!(first.yes && !first.force && !first.cloudonly);
        assert_eq!(first.instance_group_roles, ["apiserver", "control-plane"]);
        let second = roll_flags(&[], &api).unwrap_or_else(|e| panic!("{e}"));
        assert!(second.yes && second.instance_group_roles.is_empty());
    }
}
