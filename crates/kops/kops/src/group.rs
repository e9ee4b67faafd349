//! Runs `kops create instancegroup`.

use api_meta::Tree as _;
use kops_api::{Kind, Object};
use kops_aws::{CloudFacts, query_machine_types};
use kops_core::{
    CloudName, Cluster as _,
    channel::Channel,
    create::{NewGroup, create_group},
};
use kops_store::{Registry, read_channel};
use serde_json::json;

use crate::{
    change::{CLUSTER_LABEL, store_group},
    editor,
    environment::CommandEnvironment,
    error::Error,
    flags::CreateGroup,
    get,
    role::parse_role,
};

pub(crate) async fn create(
    registry: &Registry,
    command: &CreateGroup,
    name: &str,
    context: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    let cluster = get::find_cluster(registry, name)?;
    if registry.group(name, &command.group)?.is_some() {
        let problem = "already exists";
        return Err(kops_store::Error::object("instance group", &command.group, problem).into());
    }
    let role = parse_role(&command.role)?;
    let group = propose(command, &cluster, role, context).await?;
    if command.dry_run {
        if command.output.is_empty() {
            return Err(Error::MissingOutput);
        }
        return get::print_documents(&[group], &command.output, true, context.out);
    }
    if !command.output.is_empty() {
        return Err(Error::Flag { flag: "--output", problem: "is for --dry-run" });
    }
    let now = context.now;
    if !command.edit {
        return store_group(registry, name, group, now);
    }
    let stored = editor::edit(&group, context, |edited| {
        store_group(registry, name, with_cluster(edited, name)?, now)
    })?;
    // A proposal that was not changed is stored, too.
    if stored.is_none() { store_group(registry, name, group, now) } else { Ok(()) }
}

/// Returns the group that the flags describe. On AWS, a default machine type that the user's table lacks is queried.
async fn propose(
    command: &CreateGroup,
    cluster: &Object,
    role: &str,
    context: &CommandEnvironment<'_>,
) -> Result<Object, Error> {
    let facts = CloudFacts::read(command.known.as_deref())?;
    facts.check(cluster.cloud())?;
    let mut world = facts.world();
    if cluster.cloud() == CloudName::Aws && !world.default_machine_types.contains_key(role) {
        world = query_machine_types(cluster, world, context.environment).await?;
    }
    let wanted = NewGroup {
        name: &command.group,
        role,
        subnets: &command.subnet,
        zones: &command.zone,
        image: &command.image,
    };
    let is_bare = cluster.cloud().is_bare();
    let channel = if is_bare || !command.image.is_empty() {
        Channel::default()
    } else {
        read_channel(cluster.spec.text("channel"), true)?
    };
    let group = create_group(cluster, &wanted, &channel, &world)?;
    if !is_bare && group.spec.text("machineType").is_empty() {
        return Err(Error::MachineType { group: group.name().to_owned() });
    }
    Ok(group)
}

/// Returns an edited group with the label of its cluster.
fn with_cluster(mut edited: Object, cluster: &str) -> Result<Object, Error> {
    if edited.kind != Kind::InstanceGroup {
        let edited = edited.kind.name().to_owned();
        return Err(Error::Renamed { edited, stored: "an InstanceGroup".to_owned() });
    }
    edited.metadata.put("labels", json!({ CLUSTER_LABEL: cluster }));
    Ok(edited)
}
