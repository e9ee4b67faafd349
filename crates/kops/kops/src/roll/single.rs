//! Runs `kops delete instance`: replaces one machine, like a rolling update of it alone.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
};

use instances::{Group, Machine};
use kops_local::{COMMAND_PERIOD, ClusterState, check_cloud, fleet};
use kops_store::Registry;

use super::Roll;
use crate::{
    environment::CommandEnvironment,
    error::Error,
    flags::{DeleteInstance, RollCluster},
    get,
};

/// A machine to delete, and its group.
struct FoundMachine {
    group: Group,
    machine: Machine,
}

/// Drains a machine and ends it. Its group makes another one: with --surge before, else after its end.
pub(crate) async fn run(
    registry: &Registry,
    command: &DeleteInstance,
    name: &str,
    context: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    let cluster = get::find_cluster(registry, name)?;
    check_cloud(&cluster)?;
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
    let (now, user) = (context.now, context.user());
    let roll = Roll {
        registry,
        command: &flags,
        fleet: fleet(registry, name),
        cluster,
        groups: Vec::new(),
        client,
        due: BTreeSet::new(),
        asks: Cell::new(false),
        context: RefCell::new(context),
    };
    let state = roll.observe(&roll.fleet.spec()?.unwrap_or_default()).await?;
    let found = roll.find(&command.instance, &state)?;
    let id = &found.machine.id;
    match (&roll.client, state.joined_node(&found.machine.name)) {
        (None, _) => roll.print(&format!("Instance {id} found for deletion"))?,
        (Some(_), Some(_)) => {
            let node = &found.machine.name;
            roll.print(&format!("Instance {id} ({node}) found for deletion"))?;
        }
        (Some(_), None) => return Err(Error::MissingNode(id.clone())),
    }
    if !command.yes {
        return roll.print("\nMust specify --yes to delete instance");
    }
    let mut lock = registry.lock(name, &user, now)?;
    let work = roll.delete(&found, command.surge, &state);
    let done = registry.while_locked(&mut lock, &user, work).await;
    registry.unlock(lock)?;
    done
}

impl Roll<'_, '_> {
    /// Finds a machine by its ID or, with the API, by the name of its Node.
    fn find(&self, instance: &str, state: &ClusterState) -> Result<FoundMachine, Error> {
        for group in self.fleet.spec()?.unwrap_or_default().groups {
            let names: Vec<_> = group.names().collect();
            for name in names {
                let Some(machine) = self.fleet.machine(&name)? else { continue };
                let is_node = name == instance && state.joined_node(&name).is_some();
                if machine.id == instance || is_node {
                    return Ok(FoundMachine { group, machine });
                }
            }
        }
        Err(Error::MissingInstance(instance.to_owned()))
    }

    async fn delete(
        &self,
        found: &FoundMachine,
        surge: bool,
        state: &ClusterState,
    ) -> Result<(), Error> {
        let (group, machine) = (&found.group, &found.machine);
        let is_member = group.members().any(|name| name == machine.name);
        if is_member && surge && group.trusted {
            self.print("cannot detach control-plane instances. Assuming --surge=false")?;
        }
        if is_member && (!surge || group.trusted) {
            return self.replace(machine, group, state).await;
        }
        if is_member {
            let spec = self.fleet.spec()?.unwrap_or_default();
            self.change(&spec, &group.name, |group| {
                group.detach(&machine.name);
            })?;
            let spec = self.fleet.spec()?.unwrap_or_default();
            self.validate(group, &spec, self.command.validate_count).await?;
        }
        self.drain_machine(machine, group, state).await?;
        let spec = self.fleet.spec()?.unwrap_or_default();
        self.change(&spec, &group.name, |group| {
            group.release(&machine.name);
        })
    }
}
