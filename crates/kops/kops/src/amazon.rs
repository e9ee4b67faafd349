//! Clusters on AWS that are managed directly by AWS' API (`--target=direct`). Existing resources are read in bulk, the
//! difference from the model is a plan, and `--yes` carries out exactly that plan.

mod act;
mod world;

use kops_api::{Object, Spec as _};
use kops_core::{
    Cluster as _,
    direct::{self, Answers, ExistingResources, Scope},
    model::aws::{Body, Model, StoreObject},
};
use serde_json::Value;
use vfs::{Precondition, Secrecy};

use self::act::Actor;
use crate::{
    CommandEnvironment, Error,
    cloud::{self, Built},
    flags::UpdateCluster,
    get,
    known::CloudFacts,
    model::StoredObject,
    plan::{self, Change, ResourceChange},
    registry::{self, Registry},
    table,
};

/// A plan for the store and for AWS.
struct Plan {
    changes: Vec<Change>,
    aws: direct::Plan,
    model: Model,
    existing: ExistingResources,
}

/// Runs `update cluster`.
pub(crate) async fn update(
    registry: &Registry,
    command: &UpdateCluster,
    user: &Object,
    around: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    check_store(registry, user)?;
    let client = client(user, around)?;
    if !command.yes {
        let plan = plan(registry, command, user, &client, around).await?;
        write_plan(command, user.name(), &plan)?;
        plan::print(&resource_changes(&plan.aws), &plan.changes, &plan.aws.outdated, around)?;
        writeln!(around.out, "Must specify --yes to apply changes")?;
        return Ok(());
    }
    let who = registry::user(around);
    let mut lock = registry.lock(user.name(), around)?;
    let done = registry
        .while_held(&mut lock, &who, async {
            let plan = plan(registry, command, user, &client, around).await?;
            write_plan(command, user.name(), &plan)?;
            execute(registry, &client, plan, around).await
        })
        .await;
    let unlocked = registry.unlock(lock);
    done?;
    unlocked
}

/// Rejects a store on this machine, or another one than the locked one, because machines could not read it.
fn check_store(registry: &Registry, user: &Object) -> Result<(), Error> {
    let wanted = format!("{}/{}", registry.url(), user.name());
    let base = user.normalized().spec.text("configStore.base").trim_end_matches('/').to_owned();
    if registry.is_here() || base != wanted {
        return Err(Error::Usage(format!(
            "the cluster's machines read its configuration at {base}, but the state store has it at {wanted}: set \
             --state to the S3 store of spec.configBase"
        )));
    }
    Ok(())
}

fn client(user: &Object, around: &CommandEnvironment<'_>) -> Result<aws::Client, Error> {
    let normalized = user.normalized();
    let region = normalized.region().ok_or_else(|| {
        let problem = "has no subnet with a zone; its region is that of its subnets";
        Error::known("cluster", user.name(), problem)
    })?;
    Ok(aws::Client::open(region, around.environment)?)
}

async fn plan(
    registry: &Registry,
    command: &UpdateCluster,
    user: &Object,
    client: &aws::Client,
    around: &CommandEnvironment<'_>,
) -> Result<Plan, Error> {
    let known = CloudFacts::read(command.known.as_deref())?;
    let groups = registry.groups(user.name())?;
    let world = world::query(client, user, &groups, known.world()).await?;
    let built = cloud::build(registry, command, user, &known, world, around.now)?;
    let existing = query_resources(client, &Scope::of_model(user.name(), &built.model)).await?;
    let aws = direct::plan(&built.model, &existing)?;
    let changes = store_changes(registry, user.name(), &built)?;
    Ok(Plan { changes, aws, model: built.model, existing })
}

/// Queries all existing resources.
async fn query_resources(client: &aws::Client, scope: &Scope) -> Result<ExistingResources, Error> {
    let mut answers = Answers::default();
    loop {
        let questions = direct::next_queries(scope, &answers);
        if questions.is_empty() {
            return Ok(ExistingResources::read(scope, &answers));
        }
        for call in questions {
            // The page after the first one only has records after the wanted names.
            let result = match call.operation {
                "ListResourceRecordSets" => client
                    .call(call.service, call.operation, &call.parameters)
                    .await
                    .map(|one| vec![one]),
                _ => client.pages(call.service, call.operation, &call.parameters).await,
            };
            let pages = match result {
                Err(error) if error.is_absent() => vec![Value::Null],
                result => result?,
            };
            answers.add(call, pages);
        }
    }
}

fn store_changes(registry: &Registry, cluster: &str, built: &Built) -> Result<Vec<Change>, Error> {
    let mut changes = Vec::new();
    for keyset in built.new_keysets() {
        changes.extend(plan::key_changes(registry, cluster, keyset)?);
    }
    if let Some((name, key)) = &built.ssh_key {
        let (name, content) = (name.clone(), Some(key.clone()));
        let (secrecy, since) = (Secrecy::Open, Precondition::Absent);
        changes.push(Change { kind: "SSHCredential", name, content, secrecy, since });
    }
    let base = format!("{}/{cluster}/", registry.url());
    let mut kept = Vec::new();
    for resource in built.model.resources.values() {
        let Body::StoreObject(StoreObject { bucket, key, content }) = &resource.body else {
            continue;
        };
        let url = format!("s3://{bucket}/{key}");
        let Some(name) = url.strip_prefix(&base) else {
            let text = format!(
                "{url} is outside of the cluster's state store {base}: use --target=terraform"
            );
            return Err(Error::Usage(text));
        };
        let (name, content) = (name.to_owned(), content.clone());
        kept.push(StoredObject { name, content, secrecy: Secrecy::Open, kind: "ManagedFile" });
    }
    changes.extend(plan::file_changes(registry, cluster, kept)?);
    Ok(changes)
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

fn write_plan(command: &UpdateCluster, cluster: &str, plan: &Plan) -> Result<(), Error> {
    match &command.plan_out {
        None => Ok(()),
        Some(path) => plan::write_plan(
            path,
            cluster,
            "resources",
            &resource_changes(&plan.aws),
            &plan.changes,
            &plan.aws.outdated,
        ),
    }
}

/// Carries out the plan. Machines come last, because they read the objects written before.
async fn execute(
    registry: &Registry,
    client: &aws::Client,
    plan: Plan,
    around: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    for change in &plan.changes {
        change.carry_out(registry)?;
    }
    let begins =
        plan.aws.changes.iter().any(|one| one.verb == "create" && one.task() == "AutoscalingGroup");
    let count = plan.changes.len() + plan.aws.changes.len();
    Actor::new(client, &plan.model, &plan.existing, plan.aws.ids)
        .carry_out(&plan.aws.changes)
        .await?;
    writeln!(around.out, "\n{count} resources were changed.")?;
    plan::print_outdated(&plan.aws.outdated, around)?;
    if begins {
        writeln!(around.out, "\nCluster is starting.  It should be ready in a few minutes.\n")?;
    }
    Ok(())
}

/// Runs `delete cluster`: deletes the resources tagged as the cluster's own, then its objects in the store.
pub(crate) async fn delete(
    registry: &Registry,
    user: &Object,
    yes: bool,
    around: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    let name = user.name();
    let client = client(user, around)?;
    let scope = world::deletion(&client, registry, user).await?;
    let mut erasures = direct::plan_deletion(&query_resources(&client, &scope).await?);
    // Parts of other resources are not shown.
    let parts =
        ["SecurityGroupRule", "IAMRolePolicy", "EventBridgeTarget", "RouteTableAssociation"];
    let rows =
        erasures.iter().map(|one| (one.task(), one)).filter(|(task, _)| !parts.contains(task));
    let rows =
        rows.map(|(task, one)| [task.to_owned(), one.name().to_owned(), one.id().to_owned()]);
    table::print(around.out, ["TYPE", "NAME", "ID"], rows.collect())?;
    if !yes {
        writeln!(around.out, "\nMust specify --yes to delete cluster")?;
        return Ok(());
    }
    registry.check_removable(name)?;
    let mut lock = registry.lock(name, around)?;
    let who = registry::user(around);
    let work = async {
        act::erase(&client, &erasures).await?;
        // A second pass deletes resources that appeared in between or were blocked.
        erasures = direct::plan_deletion(&query_resources(&client, &scope).await?);
        act::erase(&client, &erasures).await
    };
    let done = registry.while_held(&mut lock, &who, work).await;
    registry.unlock(lock)?;
    done?;
    registry.remove(name)?;
    writeln!(around.out, "\nDeleted cluster: {name:?}")?;
    Ok(())
}

/// Runs `get instances`.
pub(crate) async fn instances(
    registry: &Registry,
    name: &str,
    output: &str,
    around: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    let user = get::named(registry, name)?;
    let client = client(&user, around)?;
    let existing = query_resources(&client, &Scope::of_name(name)).await?;
    let state = |group: &direct::Group, machine: &direct::Machine| {
        if machine.is_outdated(group) { "NeedsUpdate" } else { "UpToDate" }
    };
    let all = existing
        .groups
        .values()
        .flat_map(|group| group.machines.iter().map(move |one| (group, one)));
    if output == "table" {
        let row = |(group, one): (&direct::Group, &direct::Machine)| {
            let (id, state) = (one.id.clone(), state(group, one).to_owned());
            [id, state, group.instance_group.clone(), one.zone.clone(), one.state.clone()]
        };
        let header = ["ID", "STATUS", "INSTANCE-GROUP", "ZONE", "STATE"];
        return table::print(around.out, header, all.map(row).collect());
    }
    let tree = |(group, one): (&direct::Group, &direct::Machine)| {
        serde_json::json!({"id": one.id, "status": state(group, one), "instanceGroup": group.instance_group,
            "zone": one.zone, "state": one.state})
    };
    let all = Value::Array(all.map(tree).collect());
    match output {
        "yaml" => write!(around.out, "{}", kops_api::yaml::to_string(&all))?,
        _ => writeln!(around.out, "{all}")?,
    }
    Ok(())
}

/// Reports whether a cluster runs on AWS.
pub(crate) fn is_aws(cluster: &Object) -> bool {
    cluster.cloud() == kops_core::CloudName::Aws
}
