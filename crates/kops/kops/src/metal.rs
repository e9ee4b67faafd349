//! Runs `kops update cluster` for clusters on machines that kOps does not make: writes the objects that the machines
//! read from the state store, and the machines' boot configurations.

use std::{collections::BTreeMap, fs, path::Path};

use kops_aws::{CloudFacts, ModelInputs, build_metal_model, check_store, metal_changes};
use kops_core::CloudName;
use kops_store::{Change, ClusterObjects};
use tokio::task::yield_now;

use crate::{
    cluster_update::ClusterUpdate,
    environment::CommandEnvironment,
    error::Error,
    kubeconfig,
    plan::{PlanSummary, hash_state},
};

/// The changes of the store, and the boot configurations by instance group.
struct Plan {
    changes: Vec<Change>,
    boot_configs: BTreeMap<String, String>,
    state: String,
}

impl Plan {
    fn summary(&self) -> PlanSummary<'_> {
        PlanSummary {
            list: "resources",
            resources: &[],
            changes: &self.changes,
            outdated: &[],
            state: &self.state,
            warnings: &[],
        }
    }
}

/// Runs `update cluster`.
pub(crate) async fn update(
    update: ClusterUpdate<'_>,
    context: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    let ClusterUpdate { registry, command, cluster: user } = update;
    check_store(registry, user)?;
    if !command.yes {
        let plan = plan(update, context)?;
        plan.summary().save(command, user.name())?;
        return plan.summary().propose(context.out);
    }
    let lock_user = context.user();
    let mut lock = registry.lock(user.name(), &lock_user, context.now)?;
    let done = registry.while_locked(&mut lock, &lock_user, apply(update, context)).await;
    let unlocked = registry.unlock(lock);
    done?;
    Ok(unlocked?)
}

async fn apply(
    update: ClusterUpdate<'_>,
    context: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    let ClusterUpdate { registry, command, cluster: user } = update;
    let plan = plan(update, context)?;
    plan.summary().save_and_check(command, user.name())?;
    for change in &plan.changes {
        change.carry_out(registry)?;
        // Let the lock be renewed.
        yield_now().await;
    }
    writeln!(context.out, "\n{} objects of the state store were changed.", plan.changes.len())?;
    if let Some(out) = &command.target.out {
        write_boot_configs(Path::new(out), &plan)?;
        writeln!(context.out, "The boot configurations of machines have been placed into {out}")?;
    }
    if command.needs_kubeconfig() || command.create_kube_config == Some(true) {
        let period = command.admin.map(api_config::GoDuration::to_std);
        kubeconfig::write_updated(update, period, context)?;
    }
    Ok(())
}

fn plan(update: ClusterUpdate<'_>, context: &CommandEnvironment<'_>) -> Result<Plan, Error> {
    let ClusterUpdate { registry, command, cluster: user } = update;
    if command.selects_groups() {
        let problem = "and --instance-group-roles are not for cloud metal: machines are configured one by one";
        return Err(Error::Flag { flag: "--instance-group", problem });
    }
    let facts = CloudFacts::read(command.target.known.as_deref())?;
    facts.check(CloudName::Metal)?;
    let stored = ClusterObjects::list(registry, user.name())?;
    let groups = stored.groups()?.objects;
    let inputs = ModelInputs {
        user,
        groups: &groups,
        stored: &stored,
        facts: &facts,
        addons: command.addons.as_deref().map(Path::new),
        ssh_public_key: None,
        kubelet: None,
    };
    let built = build_metal_model(registry, &inputs, facts.world(), context.now)?;
    let changes = metal_changes(registry, &stored, &built)?;
    let state = if command.uses_plan_file() {
        hash_state(user, &groups, "", &changes)
    } else {
        String::new()
    };
    Ok(Plan { changes, boot_configs: built.model.boot_configs, state })
}

/// Writes a file for each instance group, which its machines get as `/opt/kops/conf/kube_env.yaml`.
fn write_boot_configs(directory: &Path, plan: &Plan) -> Result<(), Error> {
    let shown = directory.display().to_string();
    fs::create_dir_all(directory)
        .map_err(kops_store::Error::file("making the directory", &shown))?;
    for (group, text) in &plan.boot_configs {
        let path = directory.join(format!("{group}.yaml"));
        fs::write(&path, text)
            .map_err(kops_store::Error::file("writing", &path.display().to_string()))?;
    }
    Ok(())
}
