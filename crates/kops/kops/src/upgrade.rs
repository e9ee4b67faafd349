//! Runs `kops upgrade cluster`: stores the versions that a channel recommends.

use api_meta::Tree as _;
use kops_api::{Kind, Object};
use kops_core::{
    World,
    upgrade::{Upgrade, UpgradeAction, UpgradeInputs, plan_upgrade},
};
use kops_store::{KOPS_VERSION, Registry, read_channel};
use vfs::Version;

use crate::{
    change::{self, Replacement},
    environment::CommandEnvironment,
    error::Error,
    flags::UpgradeCluster,
    table,
};

/// The channel of clusters that name none.
const DEFAULT_CHANNEL: &str = "stable";

pub(crate) fn run(
    registry: &Registry,
    command: &UpgradeCluster,
    name: &str,
    context: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    if name.is_empty() {
        return Err(Error::Flag { flag: "--name", problem: "is required" });
    }
    let Some((cluster, version)) = registry.cluster(name)? else {
        return Err(kops_store::Error::object("cluster", name, "was not found").into());
    };
    let (groups, versions) = read_groups(registry, name)?;
    let own = cluster.spec.text("channel");
    let wanted = [command.channel.as_str(), own, DEFAULT_CHANNEL];
    let location = wanted.into_iter().find(|name| !name.is_empty()).unwrap_or_default();
    let inputs = UpgradeInputs {
        location,
        channel: &read_channel(location, true)?,
        version: &command.kubernetes_version,
        kops: &KOPS_VERSION.parse()?,
        world: &World::default(),
    };
    let plan = plan_upgrade(&cluster, &groups, &inputs)?;
    for warning in &plan.warnings {
        writeln!(context.out, "Warning: {warning}")?;
    }
    if plan.actions.is_empty() {
        writeln!(context.out, "\nNo upgrade required")?;
        return Ok(());
    }
    print_actions(&plan.actions, context)?;
    if !command.yes {
        writeln!(context.out, "\nMust specify --yes to perform upgrade")?;
        return Ok(());
    }
    let old: Vec<Object> = std::iter::once(cluster).chain(groups).collect();
    let versions = std::iter::once(version).chain(versions).collect();
    change::store_replacements(registry, name, changed(old, versions, plan), context)?;
    writeln!(context.out, "\nUpdates applied to configuration.")?;
    writeln!(context.out, "You can now apply these changes, using `kops update cluster {name}`")?;
    Ok(())
}

/// Returns a cluster's groups, and the version of each.
fn read_groups(registry: &Registry, cluster: &str) -> Result<(Vec<Object>, Vec<Version>), Error> {
    let mut groups = Vec::new();
    let mut versions = Vec::new();
    for group in registry.groups(cluster)? {
        if let Some((group, version)) = registry.group(cluster, group.name())? {
            groups.push(group);
            versions.push(version);
        }
    }
    Ok((groups, versions))
}

/// Returns the objects that the upgrade changes, the cluster first.
fn changed(old: Vec<Object>, versions: Vec<Version>, plan: Upgrade) -> Vec<Replacement> {
    let new = std::iter::once(plan.cluster).chain(plan.groups);
    let all = old.into_iter().zip(versions).zip(new);
    let changed = all.filter(|((old, _), new)| old.spec != new.spec || old.kind == Kind::Cluster);
    changed.map(|((_, since), object)| Replacement { object, since }).collect()
}

fn print_actions(
    actions: &[UpgradeAction],
    context: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    let row = |action: &UpgradeAction| {
        let UpgradeAction { item, property, old, new } = action.clone();
        [item, property.to_owned(), old, new]
    };
    let header = ["ITEM", "PROPERTY", "OLD", "NEW"];
    table::print(context.out, header, actions.iter().map(row).collect())
}
