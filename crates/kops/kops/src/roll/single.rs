//! Runs `kops delete instance`: replaces one machine, like a rolling update of it alone.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
};

use kops_api::Object;
use kops_local::{COMMAND_PERIOD, check_cloud};
use kops_store::Registry;

use super::Roll;
use crate::{
    cloud::{Cloud, GroupState, MachineState, aws::AwsCloud, local::LocalCloud},
    environment::CommandEnvironment,
    error::Error,
    flags::{DeleteInstance, RollCluster},
    get,
};

/// A machine to delete, and its group.
pub(super) struct FoundMachine {
    pub(super) group: GroupState,
    pub(super) machine: MachineState,
}

/// Drains a machine and ends it. Its group makes another one: with --surge before, else after its end.
pub(crate) async fn run(
    registry: &Registry,
    command: &DeleteInstance,
    name: &str,
    context: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    let cluster = get::find_cluster(registry, name)?;
    if let Some(cloud) = AwsCloud::open(registry, &cluster, context)? {
        return delete(registry, command, cluster, cloud, context).await;
    }
    check_cloud(&cluster)?;
    let cloud = LocalCloud::new(registry, name, !command.cloudonly);
    delete(registry, command, cluster, cloud, context).await
}

async fn delete<C: Cloud>(
    registry: &Registry,
    command: &DeleteInstance,
    cluster: Object,
    cloud: C,
    context: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    let client = if command.cloudonly {
        None
    } else {
        Some(command.connection.open(registry, &cluster, None, COMMAND_PERIOD, context)?)
    };
    let flags = RollCluster {
        yes: command.yes,
        cloudonly: command.cloudonly,
        fail_on_drain_error: command.fail_on_drain_error,
        fail_on_validate_error: command.fail_on_validate_error,
        post_drain_delay: command.post_drain_delay,
        validation_timeout: command.validation_timeout,
        validate_count: command.validate_count,
        ..RollCluster::default()
    };
    let (now, user, name) = (context.now, context.user(), cluster.name().to_owned());
    let roll = Roll {
        command: &flags,
        cloud,
        cluster,
        groups: Vec::new(),
        client,
        due: BTreeSet::new(),
        asks: Cell::new(false),
        context: RefCell::new(context),
    };
    let found = roll.find(&command.instance).await?;
    found.machine.check_claimants()?;
    let id = &found.machine.id;
    match (&roll.client, found.machine.node_name()) {
        (None, _) => roll.print(&format!("Instance {id} found for deletion"))?,
        (Some(_), Some(node)) => {
            roll.print(&format!("Instance {id} ({node}) found for deletion"))?;
        }
        (Some(_), None) if found.group.is_bastion() => {}
        (Some(_), None) => return Err(Error::MissingNode(id.clone())),
    }
    if !command.yes {
        return roll.print("\nMust specify --yes to delete instance");
    }
    let mut lock = registry.lock(&name, &user, now)?;
    let work = roll.delete(&found, command.surge);
    let done = registry.while_locked(&mut lock, &user, work).await;
    registry.unlock(lock)?;
    done
}

impl<C: Cloud> Roll<'_, '_, C> {
    /// Finds a machine by its ID or, with the API, by the name of its Node. An ID comes before all names, because a
    /// machine can choose the name of its Node.
    pub(super) async fn find(&self, instance: &str) -> Result<FoundMachine, Error> {
        let groups = self.observe().await?.groups;
        let all = || {
            groups
                .iter()
                .flat_map(|group| group.machines.iter().map(move |machine| (group, machine)))
        };
        let has_node = |machine: &MachineState| {
            machine.node_name() == Some(instance)
                || machine.claimants.iter().any(|node| node == instance)
        };
        let found = all().find(|(_, machine)| machine.id == instance);
        match found.or_else(|| all().find(|(_, machine)| has_node(machine))) {
            Some((group, machine)) => {
                Ok(FoundMachine { group: group.clone(), machine: machine.clone() })
            }
            None => Err(Error::MissingInstance(instance.to_owned())),
        }
    }

    async fn delete(&self, found: &FoundMachine, surge: bool) -> Result<(), Error> {
        let (group, machine) = (&found.group, &found.machine);
        let names = [machine.name.clone()];
        if !machine.detached {
            if surge && group.is_control_plane() {
                self.print("cannot detach control-plane instances. Assuming --surge=false")?;
            }
            if !surge || group.is_control_plane() {
                return self.replace(machine, group).await;
            }
            self.detach(&names, group).await?;
            self.validate(&group.name, self.command.validate_count).await?;
        }
        self.drain_machine(machine, group).await?;
        self.cloud.release(group, &names).await
    }
}
