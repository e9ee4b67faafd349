//! Runs `kops update cluster`.

mod local;
mod prune;
mod shrink;

use kops_api::Object;
use kops_core::{CloudName, Cluster as _, Version as Release};
use kops_store::{KOPS_VERSION, Registry};

use crate::{
    aws,
    cluster_update::ClusterUpdate,
    environment::CommandEnvironment,
    error::Error,
    flags::{Target, UpdateCluster, UpdatePhase, ValidateCluster},
    get, kubeconfig, metal, terraform, validate,
};

pub(crate) async fn run(
    registry: &Registry,
    command: &UpdateCluster,
    name: &str,
    context: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    let cluster = get::find_cluster(registry, name)?;
    if !command.allow_kops_downgrade {
        check_release(registry, name)?;
    }
    check_flags(command, &cluster)?;
    kubeconfig::check_update(command, name, context)?;
    let update = ClusterUpdate { registry, command, cluster: &cluster };
    if command.target.program == Target::Terraform {
        return terraform::run(update, context).await;
    }
    if cluster.cloud() == CloudName::Gce {
        return Err(Error::TerraformOnly { cluster: name.to_owned() });
    }
    if cluster.cloud() == CloudName::Metal {
        return metal::update(update, context).await;
    }
    if cluster.cloud() == CloudName::Aws {
        return aws::update(update, context).await;
    }
    if !command.yes {
        local::plan_and_apply(update, context).await?;
        return prune::run(update, context).await;
    }
    // Hold the lock from before reading the present state until the end.
    let user = context.user();
    let mut lock = registry.lock(name, &user, context.now)?;
    let work = local::plan_and_apply(update, context);
    let done = registry.while_locked(&mut lock, &user, work).await;
    let unlocked = registry.unlock(lock);
    done?;
    unlocked?;
    let wait = ValidateCluster { api: command.api.clone(), ..ValidateCluster::for_update() };
    validate::run(registry, &wait, name, context).await?;
    prune::run(update, context).await
}

/// Rejects flags that would have no effect.
fn check_flags(command: &UpdateCluster, cluster: &Object) -> Result<(), Error> {
    let terraform = command.target.program == Target::Terraform;
    let aws = cluster.cloud() == CloudName::Aws;
    let metal = cluster.cloud() == CloudName::Metal;
    for (flag, is_given) in [("--target", terraform), ("--prune", command.prune)] {
        if is_given && metal {
            let problem =
                "is for clouds whose resources kops makes; on metal it writes the state store only";
            return Err(Error::Flag { flag, problem });
        }
    }
    if command.plan.is_some() && !command.yes {
        let problem = "is for --yes, which carries out that plan";
        return Err(Error::Flag { flag: "--plan", problem });
    }
    let has_network = [
        ("--phase", command.phase.is_some_and(|phase| phase != UpdatePhase::Cluster)),
        ("--lifecycle-overrides", !command.lifecycle_overrides.is_empty()),
    ];
    if let Some((flag, _)) = has_network.into_iter().find(|(_, given)| *given && !aws) {
        let problem = if cluster.cloud() == CloudName::Gce {
            "is not supported on gce: all resources are in one configuration"
        } else {
            "is for clouds whose network and roles kops makes; cloud local has none"
        };
        return Err(Error::Flag { flag, problem });
    }
    for (flag, is_given, problem) in [
        (
            "--instance-group",
            command.selects_groups(),
            "and --instance-group-roles are for --target=direct, because Terraform would delete the other groups; use \
             terraform apply -target",
        ),
        (
            "--prune",
            command.prune,
            "is for --target=direct: Terraform deletes what is not in its configuration",
        ),
    ] {
        if is_given && terraform {
            return Err(Error::Flag { flag, problem });
        }
    }
    if terraform && (command.needs_kubeconfig() || command.create_kube_config.is_some()) {
        let problem = "and the other flags of the kubeconfig are for --target=direct; use kops export kubeconfig";
        return Err(Error::Flag { flag: "--create-kube-config", problem });
    }
    for (flag, value, is_allowed) in [
        ("--plan-out", &command.plan_out, !terraform),
        ("--plan", &command.plan, !terraform),
        ("--out", &command.target.out, terraform || metal),
        ("--known", &command.target.known, terraform || aws || metal),
        ("--addons", &command.addons, terraform || aws || metal),
        ("--ssh-public-key", &command.ssh_public_key, terraform || aws),
    ] {
        if value.is_some() && !is_allowed {
            let target = if terraform { Target::Direct } else { Target::Terraform };
            return Err(Error::TargetFlag { flag, target });
        }
    }
    Ok(())
}

/// Rejects an update by an older kOps, which would undo fields that it does not know.
fn check_release(registry: &Registry, cluster: &str) -> Result<(), Error> {
    let Some((content, _)) = registry.read_object(&format!("{cluster}/kops-version.txt"))? else {
        return Ok(());
    };
    let last: Release = String::from_utf8_lossy(&content).trim().parse()?;
    let own: Release = KOPS_VERSION.parse()?;
    if (last.major, last.minor) > (own.major, own.minor) {
        return Err(Error::Release { cluster: cluster.to_owned(), last, own });
    }
    Ok(())
}
