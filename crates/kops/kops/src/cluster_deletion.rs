//! Runs `kops delete cluster`.

use std::time::Duration;

use api_config::{Kubeconfig, kubeconfig};
use kops_api::Object;
use kops_core::{CloudName, Cluster as _};
use kops_local::fleet;
use kops_store::{Keyset, Registry};
use tokio::time::timeout;

use crate::{
    aws, environment::CommandEnvironment, error::Error, flags::DeleteCluster, instance_list,
    kubeconfig::kubeconfig_path,
};

/// The time limit for the end of all machines, which is upstream's for a cluster's resources.
const DELETION_TIMEOUT: Duration = Duration::from_secs(600);

pub(crate) async fn run(
    registry: &Registry,
    command: &DeleteCluster,
    name: &str,
    context: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    let name = command.cluster.as_deref().unwrap_or(name);
    if name.is_empty() {
        return Err(Error::Flag { flag: "--name", problem: "is required (for safety)" });
    }
    if command.external || command.region.is_some() {
        let flag = if command.external { "--external" } else { "--region" };
        let problem = "is for clusters that kOps did not create, which are not deleted here";
        return Err(Error::Flag { flag, problem });
    }
    let Some((object, _)) = registry.cluster(name)? else {
        return Err(kops_store::Error::object("cluster", name, "not found").into());
    };
    check_flags(command, &object)?;
    // The authorities are deleted with the cluster. A broken one does not prevent the deletion.
    let authority = Keyset::read(registry, name, "kubernetes-ca").ok().flatten();
    let authority = authority.map(|keyset| keyset.certificates()).unwrap_or_default();
    let is_deleted = if command.unregister {
        unregister(registry, name, command.yes, context)?
    } else if object.cloud() == CloudName::Aws {
        aws::delete(registry, &object, command.yes, context).await?;
        command.yes
    } else {
        delete_local(registry, &object, command, context).await?
    };
    if !is_deleted {
        return Ok(());
    }
    if let Err(error) = remove_context(name, &authority, context) {
        // The cluster is gone, so this is no reason to fail.
        writeln!(context.out, "The context {name} stays in the kubeconfig: {error}")?;
    }
    let verb = if command.unregister { "Unregistered" } else { "Deleted" };
    writeln!(context.out, "\n{verb} cluster: {name:?}")?;
    Ok(())
}

/// Rejects flags that would have no effect on the cluster's cloud.
fn check_flags(command: &DeleteCluster, cluster: &Object) -> Result<(), Error> {
    let aws = cluster.cloud() == CloudName::Aws;
    let problem = if aws {
        "is not supported: resources of AWS are deleted in order, so there are no attempts"
    } else {
        "is for other clouds: machines of this one end at the first attempt"
    };
    let flags = [
        ("--interval", command.interval.is_some()),
        ("--count", command.count.is_some()),
        ("--wait", command.wait.is_some() && aws),
    ];
    match flags.into_iter().find(|(_, is_set)| *is_set) {
        Some((flag, _)) => Err(Error::Flag { flag, problem }),
        None => Ok(()),
    }
}

/// Deletes the cluster's objects only. Returns `true` if they are deleted.
fn unregister(
    registry: &Registry,
    name: &str,
    yes: bool,
    context: &mut CommandEnvironment<'_>,
) -> Result<bool, Error> {
    if fleet(registry, name).owner()?.is_some() {
        let problem = "would leave machines that only kOps can end; delete the cluster instead";
        return Err(Error::Flag { flag: "--unregister", problem });
    }
    if !yes {
        writeln!(context.out, "\nMust specify --yes to unregister the cluster")?;
        return Ok(false);
    }
    registry.remove(name)?;
    Ok(true)
}

/// Ends the cluster's machines and deletes its objects. Returns `true` if they are deleted.
async fn delete_local(
    registry: &Registry,
    cluster: &Object,
    command: &DeleteCluster,
    context: &mut CommandEnvironment<'_>,
) -> Result<bool, Error> {
    let name = cluster.name();
    // Only clusters without a cloud are known to have no other resources.
    if !cluster.cloud().is_bare() {
        let problem = "may have machines in its cloud, which cannot be deleted here yet; delete it with upstream's \
                       kops";
        return Err(kops_store::Error::object("cluster", name, problem).into());
    }
    let fleet = fleet(registry, name);
    if !command.yes {
        instance_list::describe(&fleet, context.out)?;
        writeln!(context.out, "\nMust specify --yes to delete cluster")?;
        return Ok(false);
    }
    registry.check_removable(name)?;
    let user = context.user();
    let mut lock = registry.lock(name, &user, context.now)?;
    let limit = command.wait.map_or(DELETION_TIMEOUT, api_config::GoDuration::to_std);
    let removal = async {
        match timeout(limit, instances::remove(&fleet, name)).await {
            Ok(removed) => removed.map_err(Error::from),
            Err(_) => Err(Error::Deletion { seconds: limit.as_secs() }),
        }
    };
    let done = registry.while_locked(&mut lock, &user, removal).await;
    registry.unlock(lock)?;
    done?;
    registry.remove(name)?;
    Ok(true)
}

/// Removes the cluster's context, user and server from the kubeconfig. A context of the same name for another cluster
/// stays: its server has another authority.
fn remove_context(
    name: &str,
    authority: &str,
    context: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    let path = kubeconfig_path(context.environment);
    if authority.is_empty() || !path.exists() {
        return Ok(());
    }
    let own = kubeconfig::Cluster::with_ca(String::new(), authority);
    let found = Kubeconfig::load(&path)?;
    let is_own = found.context(name).is_ok_and(|found| {
        found.cluster.certificate_authority_data == own.certificate_authority_data
    });
    if is_own {
        kubeconfig::update_file(&path, |config| {
            config.remove(name);
        })?;
        writeln!(context.out, "Deleted kubectl config for {name}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use api_config::kubeconfig::User;

    use super::*;

    #[test]
    fn removes_only_the_context_of_the_deleted_cluster() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config").display().to_string();
        let environment = |name: &str| (name == "KUBECONFIG").then(|| path.clone());
        let remove = |authority: &str| {
            let mut out = Vec::new();
            let now = std::time::SystemTime::UNIX_EPOCH;
            let mut context = CommandEnvironment { now, out: &mut out, environment: &environment };
            remove_context("a.local", authority, &mut context).unwrap();
            String::from_utf8(out).unwrap()
        };
        // Without a file none is made.
        assert_eq!(remove("own"), "");
        assert!(!std::path::Path::new(&path).exists());
        let mut config = Kubeconfig::default();
        for (name, authority) in [("a.local", "own"), ("b.local", "own")] {
            let server = kubeconfig::Cluster::with_ca("https://192.0.2.1", authority);
            let mut one = Kubeconfig::single(name, server, name, User::default());
            one.contexts[0].name = name.to_owned();
            one.current_context = name.to_owned();
            config.merge(one);
        }
        config.current_context = "a.local".to_owned();
        config.write(std::path::Path::new(&path)).unwrap();
        assert_eq!(remove("other"), "");
        assert_eq!(Kubeconfig::load(std::path::Path::new(&path)).unwrap(), config);
        assert_eq!(remove("own"), "Deleted kubectl config for a.local\n");
        let left = Kubeconfig::load(std::path::Path::new(&path)).unwrap();
        let names = (&left.contexts[..], &left.clusters[..], &left.users[..]);
        assert!(matches!(names, ([context], [_], [_]) if context.name == "b.local"), "{left:?}");
        assert_eq!(left.current_context, "");
        assert_eq!(remove("own"), "");
    }
}
