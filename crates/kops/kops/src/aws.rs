//! Runs commands for clusters on AWS that are managed directly by AWS' API (`--target=direct`). Existing resources are
//! read in bulk, the difference from the model is a plan, and `--yes` carries out exactly that plan.

use std::path::Path;

use kops_api::Object;
use kops_aws::{
    Actor, Client, CloudFacts, ModelInputs, build_model, check_store, deletion_scope, erase,
    open_client, query_groups, query_resources, query_world, store_changes,
};
use kops_core::{
    direct::{self, ExistingResources, Lifecycle, Scope},
    model::aws::Model,
};
use kops_store::{Change, ClusterObjects, Registry};
use serde_json::Value;

use crate::{
    cluster_update::ClusterUpdate,
    document,
    environment::CommandEnvironment,
    error::Error,
    get,
    group_selection::select_update,
    instance_list::status,
    kubeconfig,
    kubelet_skew::remote_limit,
    plan::{PlanSummary, ResourceChange, hash_state, print_outdated, print_warnings},
    table,
};

/// A plan for the store and for AWS.
struct Plan {
    changes: Vec<Change>,
    aws: direct::Plan,
    model: Model,
    existing: ExistingResources,
    /// The changes of AWS in the form that is shown.
    resources: Vec<ResourceChange>,
    /// The hash of the state that the plan was made from; empty unless the plan is in a file.
    state: String,
    /// The notes about what the plan leaves out.
    warnings: Vec<String>,
}

impl Plan {
    fn summary(&self) -> PlanSummary<'_> {
        PlanSummary {
            list: "resources",
            resources: &self.resources,
            changes: &self.changes,
            outdated: &self.aws.outdated,
            state: &self.state,
            warnings: &self.warnings,
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
    let client = open_client(user, context.environment)?;
    if !command.yes {
        let plan = plan(update, &client, context).await?;
        plan.summary().save(command, user.name())?;
        return plan.summary().propose(context.out);
    }
    let lock_user = context.user();
    let mut lock = registry.lock(user.name(), &lock_user, context.now)?;
    let done = registry
        .while_locked(&mut lock, &lock_user, async {
            let plan = plan(update, &client, context).await?;
            plan.summary().save_and_check(command, user.name())?;
            execute(registry, &client, plan, context).await?;
            if command.needs_kubeconfig() || command.create_kube_config == Some(true) {
                let period = command.admin.map(api_config::GoDuration::to_std);
                kubeconfig::write_updated(update, period, context)?;
            }
            Ok::<_, Error>(())
        })
        .await;
    let unlocked = registry.unlock(lock);
    done?;
    Ok(unlocked?)
}

async fn plan(
    update: ClusterUpdate<'_>,
    client: &Client,
    context: &CommandEnvironment<'_>,
) -> Result<Plan, Error> {
    let ClusterUpdate { registry, command, cluster: user } = update;
    let selection = select_update(update)?;
    let facts = CloudFacts::read(command.target.known.as_deref())?;
    let stored = ClusterObjects::list(registry, user.name())?;
    let groups = stored.groups()?;
    let world = query_world(client, user, &groups.objects, facts.world()).await?;
    // A new cluster has no control planes that kubelets could be newer than.
    let is_new = !stored.has(&format!("{}/cluster-completed.spec", user.name()));
    let mut warnings = Vec::new();
    let limit = if command.ignore_kubelet_version_skew || is_new {
        None
    } else {
        remote_limit(update, context, &mut warnings).await?
    };
    let inputs = ModelInputs {
        user,
        groups: &groups.objects,
        stored: &stored,
        facts: &facts,
        addons: command.addons.as_deref().map(Path::new),
        ssh_public_key: command.ssh_public_key.as_deref(),
        kubelet: limit,
    };
    let built = build_model(registry, &inputs, world, context.now)?;
    let existing = query_resources(client, &Scope::of_model(user.name(), &built.model)).await?;
    let mut aws = direct::plan(&built.model, &existing, &selection)?;
    warnings.append(&mut aws.warnings);
    let mut changes = store_changes(registry, &stored, groups.copies, &built)?;
    changes.retain(|change| !selection.excludes_object(&change.name));
    limit_changes(&mut changes, selection.store_lifecycle(), &mut warnings)?;
    let state = if command.uses_plan_file() {
        hash_state(user, &groups.objects, &format!("{existing:?}"), &changes)
    } else {
        String::new()
    };
    let resources = resource_changes(&aws);
    Ok(Plan { changes, resources, aws, model: built.model, existing, state, warnings })
}

/// Removes the changes of the store that the lifecycle of its objects forbids.
fn limit_changes(
    changes: &mut Vec<Change>,
    lifecycle: Lifecycle,
    warnings: &mut Vec<String>,
) -> Result<(), Error> {
    if lifecycle.is_applied() {
        return Ok(());
    }
    for change in changes.drain(..) {
        let what = format!("{}/{}", change.kind, change.name);
        match lifecycle {
            Lifecycle::ExistsAndValidates => return Err(Error::StoreLifecycle { what }),
            Lifecycle::ExistsAndWarnIfChanges => {
                warnings.push(format!("{what} differs and is not changed"));
            }
            _ => {}
        }
    }
    Ok(())
}

fn resource_changes(plan: &direct::Plan) -> Vec<ResourceChange> {
    let shown = |change: &direct::Change| ResourceChange {
        kind: change.task(),
        name: change.name.clone(),
        verb: change.verb,
        fields: change.details.clone(),
    };
    plan.changes.iter().map(shown).collect()
}

/// Carries out the plan. Machines come last, because they read the objects written before.
async fn execute(
    registry: &Registry,
    client: &Client,
    plan: Plan,
    context: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    for change in &plan.changes {
        change.carry_out(registry)?;
    }
    let mut changes = plan.aws.changes.iter();
    let is_new = changes.any(|c| c.verb == "create" && c.task() == "AutoscalingGroup");
    let count = plan.changes.len() + plan.aws.changes.len();
    let mut warnings = plan.warnings;
    let mut actor = Actor::new(client, &plan.model, &plan.existing, plan.aws.ids);
    warnings.extend(actor.carry_out(&plan.aws.changes).await?);
    writeln!(context.out, "\n{count} resources were changed.")?;
    print_warnings(&warnings, context.out)?;
    print_outdated(&plan.aws.outdated, context.out)?;
    if is_new {
        writeln!(context.out, "\nCluster is starting.  It should be ready in a few minutes.\n")?;
    }
    Ok(())
}

/// Runs `delete cluster`: deletes the resources tagged as the cluster's own, then its objects in the store.
pub(crate) async fn delete(
    registry: &Registry,
    user: &Object,
    yes: bool,
    context: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    let name = user.name();
    let client = open_client(user, context.environment)?;
    let scope = deletion_scope(&client, registry, user).await?;
    let mut erasures = direct::plan_deletion(&query_resources(&client, &scope).await?);
    // Parts of other resources are not shown.
    let parts =
        ["SecurityGroupRule", "IAMRolePolicy", "EventBridgeTarget", "RouteTableAssociation"];
    let rows =
        erasures.iter().map(|one| (one.task(), one)).filter(|(task, _)| !parts.contains(task));
    let rows =
        rows.map(|(task, one)| [task.to_owned(), one.name().to_owned(), one.id().to_owned()]);
    table::print(context.out, ["TYPE", "NAME", "ID"], rows.collect())?;
    if !yes {
        writeln!(context.out, "\nMust specify --yes to delete cluster")?;
        return Ok(());
    }
    registry.check_removable(name)?;
    let lock_user = context.user();
    let mut lock = registry.lock(name, &lock_user, context.now)?;
    let work = async {
        erase(&client, &erasures).await?;
        // A second pass deletes resources that appeared in between or were blocked.
        erasures = direct::plan_deletion(&query_resources(&client, &scope).await?);
        Ok::<_, Error>(erase(&client, &erasures).await?)
    };
    let done = registry.while_locked(&mut lock, &lock_user, work).await;
    registry.unlock(lock)?;
    done?;
    Ok(registry.remove(name)?)
}

/// Runs `get instances`.
pub(crate) async fn list_instances(
    registry: &Registry,
    name: &str,
    output: &str,
    context: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    let user = get::find_cluster(registry, name)?;
    let client = open_client(&user, context.environment)?;
    let groups = query_groups(&client, name).await?;
    let state = |group: &direct::Group, machine: &direct::Machine| {
        status(machine.detached, machine.is_outdated(group))
    };
    let all = groups.values().flat_map(|group| group.machines.iter().map(move |one| (group, one)));
    if output == "table" {
        let row = |(group, one): (&direct::Group, &direct::Machine)| {
            let (id, state) = (one.id.clone(), state(group, one).to_owned());
            [id, state, group.instance_group.clone(), one.zone.clone(), one.state.clone()]
        };
        let header = ["ID", "STATUS", "INSTANCE-GROUP", "ZONE", "STATE"];
        return table::print(context.out, header, all.map(row).collect());
    }
    let tree = |(group, one): (&direct::Group, &direct::Machine)| {
        serde_json::json!({"id": one.id, "status": state(group, one), "instanceGroup": group.instance_group,
            "zone": one.zone, "state": one.state})
    };
    let all = Value::Array(all.map(tree).collect());
    document::print(context.out, output, &all)
}
