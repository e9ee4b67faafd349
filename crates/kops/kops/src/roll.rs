//! Runs `kops rolling-update cluster`: replaces machines that differ from the configuration of their group, each only
//! while the cluster is valid.
//!
//! [`kops_core::roll`] decides the next step from the present machines, so an interrupted update can be repeated and
//! continues. [`Cloud`] is what differs between clouds.

pub(crate) mod single;

use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
    time::Duration,
};

use client::Client;
use futures_util::future::join_all;
use kops_api::Object;
use kops_core::roll::{self, Pace, RollingMachine, Step};
use kops_local::check_cloud;
use kops_store::Registry;
use tokio::time::{Instant, sleep};

use crate::{
    cloud::{
        BASTION, CONTROL_PLANE, Cloud, CloudState, GroupState, MachineState, aws::AwsCloud,
        local::LocalCloud,
    },
    drain,
    environment::CommandEnvironment,
    error::Error,
    flags::RollCluster,
    get,
    group_selection::select_groups,
    prompt::{self, Answer},
    table,
    validate::{self, Failure},
};

/// A rolling update in progress.
struct Roll<'a, 'b, C> {
    command: &'a RollCluster,
    cloud: C,
    cluster: Object,
    groups: Vec<Object>,
    /// The client; `None` with --cloudonly, which does not use the API.
    client: Option<Client>,
    /// The IDs of the machines that are replaced regardless of their configuration: with --force all that exist at the
    /// start, and those whose Nodes have a mark.
    due: BTreeSet<String>,
    /// `true` to ask the user after each machine.
    asks: Cell<bool>,
    context: RefCell<&'a mut CommandEnvironment<'b>>,
}

pub(crate) async fn run(
    registry: &Registry,
    command: &RollCluster,
    name: &str,
    context: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    let cluster = get::find_cluster(registry, name)?;
    if let Some(cloud) = AwsCloud::open(registry, &cluster, context)? {
        let groups = cloud.groups().to_vec();
        return roll(registry, command, cluster, groups, cloud, context).await;
    }
    check_cloud(&cluster)?;
    if command.bastion_interval.is_some() {
        let problem = "is for clouds with bastions; cloud local has none";
        return Err(Error::Flag { flag: "--bastion-interval", problem });
    }
    let cloud = LocalCloud::new(registry, name, !command.cloudonly);
    cloud.check_exists(name)?;
    let groups = registry.groups(name)?;
    roll(registry, command, cluster, groups, cloud, context).await
}

async fn roll<C: Cloud>(
    registry: &Registry,
    command: &RollCluster,
    cluster: Object,
    groups: Vec<Object>,
    cloud: C,
    context: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    let groups = select_groups(groups, command.into())?;
    let opened = command.api.open(registry, &cluster, None, command.admin.to_std(), context);
    let (client, marks) =
        if command.cloudonly { (None, opened.ok()) } else { (Some(opened?), None) };
    let (now, name) = (context.now, cluster.name().to_owned());
    let mut roll = Roll {
        command,
        cloud,
        cluster,
        groups,
        client,
        due: BTreeSet::new(),
        asks: Cell::new(command.interactive),
        context: RefCell::new(context),
    };
    let state = roll.observe_marks(marks.as_ref()).await?;
    let needed = roll.print_machines(&state)?;
    if !needed && !command.force {
        return roll.print("\nNo rolling-update required.");
    }
    if !command.yes {
        return roll.print("\nMust specify --yes to rolling-update.");
    }
    let user = roll.context.borrow().user();
    let mut lock = registry.lock(&name, &user, now)?;
    let done = registry.while_locked(&mut lock, &user, roll.roll_groups()).await;
    registry.unlock(lock)?;
    done?;
    roll.print(&format!("\nRolling update completed for cluster {name:?}!"))
}

impl<C: Cloud> Roll<'_, '_, C> {
    fn print(&self, text: &str) -> Result<(), Error> {
        let mut context = self.context.borrow_mut();
        writeln!(context.out, "{text}")?;
        Ok(context.out.flush()?)
    }

    /// Returns the state at the start. With --cloudonly, `marks` only reads the marks of Nodes, if the API answers.
    async fn observe_marks(&self, marks: Option<&Client>) -> Result<CloudState, Error> {
        if self.client.is_some() {
            return self.observe().await;
        }
        if marks.is_some() {
            match self.cloud.observe(marks).await {
                Err(Error::Unreachable(_)) => {}
                observed => return observed,
            }
        }
        self.print("The API does not answer, so marks of Nodes that need an update are unknown.")?;
        self.observe().await
    }

    async fn observe(&self) -> Result<CloudState, Error> {
        self.cloud.observe(self.client.as_ref()).await
    }

    /// Prints the machines to replace, and remembers those that are due; returns whether there are any.
    fn print_machines(&mut self, state: &CloudState) -> Result<bool, Error> {
        let mut needed = false;
        let mut rows = Vec::new();
        for object in &self.groups {
            let Some(group) = state.group(object.name()) else {
                continue;
            };
            let machines = self.machines(group);
            let is_due = |rolled: &RollingMachine| self.command.force || rolled.outdated;
            let ids = machines.iter().filter(|(rolled, _)| is_due(rolled));
            self.due.extend(ids.map(|(_, machine)| machine.id.clone()));
            let due = machines.iter().filter(|(rolled, _)| rolled.outdated || rolled.detached);
            let due = due.count();
            needed |= due > 0;
            let nodes = machines.iter().filter(|(_, machine)| machine.node.is_some()).count();
            rows.push([
                group.name.clone(),
                if due > 0 { "NeedsUpdate".to_owned() } else { "Ready".to_owned() },
                due.to_string(),
                (machines.len() - due).to_string(),
                group.min.to_string(),
                group.target.to_string(),
                group.max.to_string(),
                nodes.to_string(),
            ]);
        }
        let header = ["NAME", "STATUS", "NEEDUPDATE", "READY", "MIN", "TARGET", "MAX", "NODES"];
        let out = &mut self.context.borrow_mut().out;
        if self.command.cloudonly {
            // Without the API, the column of Nodes is omitted.
            let rows = rows.into_iter().map(|[a, b, c, d, e, f, g, _]| [a, b, c, d, e, f, g]);
            let [a, b, c, d, e, f, g, _] = header;
            table::print(*out, [a, b, c, d, e, f, g], rows.collect())?;
        } else {
            table::print(*out, header, rows)?;
        }
        Ok(needed)
    }

    /// Returns a group's existing machines for the planner, and as they were observed.
    fn machines<'g>(&self, group: &'g GroupState) -> Vec<(RollingMachine, &'g MachineState)> {
        let existing = group.machines.iter().filter(|machine| !machine.id.is_empty());
        let rolled = |machine: &MachineState| {
            let marked = machine.node.as_ref().is_some_and(drain::needs_update);
            RollingMachine {
                name: machine.name.clone(),
                outdated: machine.outdated || marked || self.due.contains(&machine.id),
                detached: machine.detached,
                ready: machine.runs
                    && (self.client.is_none() || group.is_bastion() || machine.is_ready()),
            }
        };
        existing.map(|machine| (rolled(machine), machine)).collect()
    }

    async fn roll_groups(&self) -> Result<(), Error> {
        for group in &self.groups {
            self.roll_group(group).await?;
        }
        Ok(())
    }

    async fn roll_group(&self, object: &Object) -> Result<(), Error> {
        let mut is_started = false;
        loop {
            // If nothing is to be done, do not wait for the cluster.
            let blind = self.cloud.observe(None).await?;
            let Some(group) = blind.group(object.name()) else { return Ok(()) };
            if self.next(object, group).is_none() {
                return Ok(());
            }
            let is_bastion = group.is_bastion();
            if !is_started && !is_bastion {
                self.validate(&group.name, 1).await?;
                self.taint_for_update(&group.name).await?;
            }
            is_started = true;
            let state = self.observe().await?;
            let Some(group) = state.group(object.name()) else { return Ok(()) };
            match self.next(object, group) {
                None => return Ok(()),
                Some(step) => self.carry_out(step, group).await?,
            }
            if !is_bastion {
                self.validate(&group.name, self.command.validate_count).await?;
            }
        }
    }

    /// Returns the next step for a group.
    fn next(&self, object: &Object, group: &GroupState) -> Option<Step> {
        let pace = roll::pace(&self.cluster, object, group.target);
        // Without the API it is unknown when the next machine may be replaced, so they are replaced one by one.
        let pace = match self.client {
            Some(_) => pace,
            None => Pace { surge: 0, unavailable: 1, ..pace },
        };
        let machines: Vec<_> = self.machines(group).into_iter().map(|(one, _)| one).collect();
        roll::next(&machines, group.target, pace)
    }

    /// Taints the Nodes to replace, so that evicted Pods move to machines that stay.
    async fn taint_for_update(&self, group: &str) -> Result<(), Error> {
        let Some(client) = &self.client else {
            return Ok(());
        };
        let state = self.observe().await?;
        let Some(group) = state.group(group) else { return Ok(()) };
        for (rolled, machine) in self.machines(group).iter().filter(|(one, _)| one.outdated) {
            let Some(node) = &machine.node else {
                continue;
            };
            if let Err(error) = drain::taint_for_update(client, node).await {
                self.print(&format!("node {:?} cannot be tainted: {error}", rolled.name))?;
            }
        }
        Ok(())
    }

    async fn carry_out(&self, step: Step, group: &GroupState) -> Result<(), Error> {
        let of = |names: Vec<String>| {
            group.machines.iter().filter(move |machine| names.contains(&machine.name))
        };
        match step {
            Step::Wait => {
                self.print(&format!("Waiting for more machines of group {:?}.", group.name))?;
                sleep(C::PAUSE).await;
                Ok(())
            }
            Step::Detach(names) => self.detach(&names, group).await,
            Step::Replace(mut names) => {
                if self.asks.get() {
                    names.truncate(1);
                }
                let each = of(names.clone()).map(|machine| self.replace(machine, group));
                join_all(each).await.into_iter().collect::<Result<(), Error>>()?;
                self.ask_to_continue(&names).await?;
                sleep(self.interval(&group.role)).await;
                Ok(())
            }
            Step::Release(mut names) => {
                if self.asks.get() {
                    names.truncate(1);
                }
                let each = of(names.clone()).map(|machine| self.drain_machine(machine, group));
                join_all(each).await.into_iter().collect::<Result<(), Error>>()?;
                self.cloud.release(group, &names).await?;
                self.ask_to_continue(&names).await
            }
        }
    }

    /// Returns the pause after a machine of a role was terminated.
    fn interval(&self, role: &str) -> Duration {
        let command = self.command;
        match role {
            CONTROL_PLANE => command.control_plane_interval.to_std(),
            BASTION => command.bastion_interval.unwrap_or(command.node_interval).to_std(),
            _ => command.node_interval.to_std(),
        }
    }

    /// Asks the user whether to continue after the end of machines, with --interactive.
    async fn ask_to_continue(&self, names: &[String]) -> Result<(), Error> {
        if !self.asks.get() {
            return Ok(());
        }
        self.print(&format!("Pausing after finished {:?}", names.join(", ")))?;
        match prompt::ask(&self.context).await? {
            Answer::Yes => Ok(()),
            Answer::Always => {
                self.asks.set(false);
                Ok(())
            }
            Answer::No => Err(Error::Stopped),
        }
    }

    /// Drains a machine, and deletes its Node. With the API, a machine that several Nodes claim is rejected.
    async fn drain_machine(&self, machine: &MachineState, group: &GroupState) -> Result<(), Error> {
        if self.client.is_some() {
            machine.check_claimants()?;
        }
        let node = machine.node_name().unwrap_or_default();
        if let Some(client) = self.client.as_ref().filter(|_| !node.is_empty()) {
            self.print(&format!("Draining the node: {node:?}."))?;
            let limit = self.command.drain_timeout.to_std();
            let drained = async {
                drain::cordon(client, node).await?;
                drain::drain(client, node, limit, &|text| self.print(&text)).await
            };
            match drained.await {
                Err(error) if self.command.fail_on_drain_error => return Err(error),
                Err(error) => {
                    self.print(&format!("Ignoring error draining node {node:?}: {error}"))?
                }
                Ok(()) => sleep(self.command.post_drain_delay.to_std()).await,
            }
            drain::delete_node(client, node).await?;
        }
        self.print(&format!(
            "Stopping instance {:?}, node {:?}, in group {:?} (this may take a while).",
            machine.id, machine.name, group.name
        ))
    }

    /// Detaches machines from their group, which replaces them.
    async fn detach(&self, names: &[String], group: &GroupState) -> Result<(), Error> {
        self.cloud.detach(group, names).await?;
        names.iter().try_for_each(|name| {
            self.print(&format!("Detached instance {name:?} from group {:?}.", group.name))
        })
    }

    /// Replaces a machine, and waits for its replacement.
    async fn replace(&self, machine: &MachineState, group: &GroupState) -> Result<(), Error> {
        self.drain_machine(machine, group).await?;
        self.cloud.replace(group, machine, &|text| self.print(&text)).await
    }

    /// Waits until the cluster validates `count` times in a row, as far as it concerns a group.
    async fn validate(&self, group: &str, count: u32) -> Result<(), Error> {
        let Some(client) = &self.client else {
            return Ok(());
        };
        let limit = self.command.validation_timeout.to_std();
        let until = Instant::now() + limit;
        let (mut times, mut last_messages) = (0, Vec::new());
        loop {
            let seen = validate::validate_once(client, &self.cloud).await?;
            let is_ours = |failure: &Failure| is_blocking(failure, group, &seen.state);
            let ours: Vec<_> = seen.failures.iter().filter(|one| is_ours(one)).collect();
            times = if ours.is_empty() { times + 1 } else { 0 };
            if times >= count.max(1) {
                return self.print("Cluster validated.");
            }
            // The causes contain lines of logs, which change all the time.
            let messages: Vec<_> = ours.iter().map(|failure| failure.message.clone()).collect();
            let causes: Vec<_> = ours.iter().map(|failure| failure.text()).collect();
            if !messages.is_empty() && messages != last_messages {
                self.print(&format!("Cluster did not validate yet: {}.", causes.join("; ")))?;
                last_messages = messages;
            }
            if Instant::now() > until {
                let messages = causes.join("; ");
                let error = Error::NotValid { seconds: limit.as_secs(), messages };
                return if self.command.fail_on_validate_error {
                    Err(error)
                } else {
                    self.print(&format!("Ignoring that the {error}"))
                };
            }
            sleep(C::PAUSE).await;
        }
    }
}

/// Reports whether a failure blocks the update of a group. Failures of other groups of workers do not.
fn is_blocking(failure: &Failure, group: &str, state: &CloudState) -> bool {
    let Some(other) = &failure.group else {
        return true;
    };
    other == group || state.group(other).is_some_and(GroupState::is_control_plane)
}

#[cfg(test)]
mod tests;
