//! Runs `kops rolling-update cluster`: replaces machines that differ from the configuration of their group, each only
//! while the cluster is valid.
//!
//! [`kops_core::roll`] decides the next step from the present machines, so an interrupted update can be repeated and
//! continues.

pub(crate) mod single;

use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
    time::Duration,
};

use client::Client;
use futures_util::future::join_all;
use instances::{Fleet, FleetSpec, Group, Machine};
use kops_api::Object;
use kops_core::roll::{self, Pace, RollingMachine, Step};
use kops_local::{ClusterState, check_cloud, fleet};
use kops_node::nodeup::APPLIED_HASH;
use kops_store::{Keyset, Registry};
use tokio::time::{Instant, sleep};

use crate::{
    drain,
    environment::CommandEnvironment,
    error::Error,
    flags::RollCluster,
    get,
    group_selection::select_groups,
    prompt::{self, Answer},
    shutdown::shut_down_control_plane,
    table,
    validate::{self, Failure},
};

const POLL: Duration = Duration::from_millis(200);
/// The pause between two validations of a cluster that is not valid, or not often enough.
const PAUSE: Duration = Duration::from_secs(2);
/// The time for the keeper to replace a machine that has ended.
const REPLACEMENT_TIMEOUT: Duration = Duration::from_secs(120);

/// A rolling update in progress.
struct Roll<'a, 'b> {
    registry: &'a Registry,
    command: &'a RollCluster,
    fleet: Fleet,
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
    check_cloud(&cluster)?;
    if command.bastion_interval.is_some() {
        let problem = "is for clouds with bastions; cloud local has none";
        return Err(Error::Flag { flag: "--bastion-interval", problem });
    }
    let fleet = fleet(registry, name);
    let spec = fleet.spec()?.unwrap_or_default();
    if spec.cluster != name {
        let problem = "has no machines yet; run kops update cluster --yes";
        return Err(kops_store::Error::object("cluster", name, problem).into());
    }
    let groups = select_groups(registry.groups(name)?, command.into())?;
    let opened = command.api.open(registry, &cluster, None, command.admin.to_std(), context);
    let (client, marks) =
        if command.cloudonly { (None, opened.ok()) } else { (Some(opened?), None) };
    let now = context.now;
    let mut roll = Roll {
        registry,
        command,
        fleet,
        cluster,
        groups,
        client,
        due: BTreeSet::new(),
        asks: Cell::new(command.interactive),
        context: RefCell::new(context),
    };
    let state = roll.observe_marks(marks.as_ref(), &spec).await?;
    let needed = roll.print_machines(&spec, &state)?;
    if !needed && !command.force {
        return roll.print("\nNo rolling-update required.");
    }
    if !command.yes {
        return roll.print("\nMust specify --yes to rolling-update.");
    }
    let user = roll.context.borrow().user();
    let mut lock = registry.lock(name, &user, now)?;
    let done = registry.while_locked(&mut lock, &user, roll.roll_groups()).await;
    registry.unlock(lock)?;
    done?;
    roll.print(&format!("\nRolling update completed for cluster {name:?}!"))
}

impl Roll<'_, '_> {
    fn print(&self, text: &str) -> Result<(), Error> {
        let mut context = self.context.borrow_mut();
        writeln!(context.out, "{text}")?;
        Ok(context.out.flush()?)
    }

    /// Returns the state at the start. With --cloudonly, `marks` only reads the marks of Nodes, if the API answers.
    async fn observe_marks(
        &self,
        marks: Option<&Client>,
        spec: &FleetSpec,
    ) -> Result<ClusterState, Error> {
        if self.client.is_some() {
            return self.observe(spec).await;
        }
        let observed = match marks {
            Some(client) => ClusterState::observe(client, &self.fleet, spec).await.ok(),
            None => None,
        };
        if observed.is_none() {
            self.print(
                "The API does not answer, so marks of Nodes that need an update are unknown.",
            )?;
        }
        Ok(observed.unwrap_or_default())
    }

    /// Prints the machines to replace, and remembers those that are due; returns whether there are any.
    fn print_machines(&mut self, spec: &FleetSpec, state: &ClusterState) -> Result<bool, Error> {
        let mut needed = false;
        let mut rows = Vec::new();
        for object in &self.groups {
            let Some(group) = spec.groups.iter().find(|group| group.name == object.name()) else {
                continue;
            };
            let machines = self.machines(group, state)?;
            let is_due = |rolled: &RollingMachine| self.command.force || rolled.outdated;
            let ids = machines.iter().filter(|(rolled, _)| is_due(rolled));
            self.due.extend(ids.map(|(_, machine)| machine.id.clone()));
            let due = machines.iter().filter(|(rolled, _)| rolled.outdated || rolled.detached);
            let due = due.count();
            needed |= due > 0;
            let nodes =
                machines.iter().filter(|(m, _)| state.joined_node(&m.name).is_some()).count();
            let size = group.size().to_string();
            rows.push([
                group.name.clone(),
                if due > 0 { "NeedsUpdate".to_owned() } else { "Ready".to_owned() },
                due.to_string(),
                (machines.len() - due).to_string(),
                size.clone(),
                size.clone(),
                size,
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

    async fn observe(&self, spec: &FleetSpec) -> Result<ClusterState, Error> {
        match &self.client {
            None => Ok(ClusterState::default()),
            Some(client) => {
                let state = ClusterState::observe(client, &self.fleet, spec).await;
                state.map_err(Error::Unreachable)
            }
        }
    }

    /// Returns a group's machines for the planner, and as they were created.
    fn machines(
        &self,
        group: &Group,
        state: &ClusterState,
    ) -> Result<Vec<(RollingMachine, Machine)>, Error> {
        let counted: BTreeSet<_> = group.members().collect();
        let mut all = Vec::new();
        for name in group.names() {
            let Some(machine) = self.fleet.machine(&name)? else {
                continue;
            };
            let marked = state.joined_node(&name).is_some_and(drain::needs_update);
            let is_due = marked || self.due.contains(&machine.id);
            let rolled = RollingMachine {
                outdated: machine.version() != group.version() || is_due,
                detached: !counted.contains(&name),
                ready: self.client.is_none() || state.is_ready(&name),
                name,
            };
            all.push((rolled, machine));
        }
        Ok(all)
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
            let spec = self.fleet.spec()?.unwrap_or_default();
            let Some(group) = spec.groups.iter().find(|group| group.name == object.name()) else {
                return Ok(());
            };
            let size = group.size().try_into().unwrap_or(usize::MAX);
            let pace = roll::pace(&self.cluster, object, size);
            // Without the API it is unknown when the next machine may be replaced, so they are replaced one by one.
            let pace = match self.client {
                Some(_) => pace,
                None => Pace { surge: 0, unavailable: 1, ..pace },
            };
            // If nothing is to be done, do not wait for the cluster.
            let blind = self.machines(group, &ClusterState::default())?;
            let planned: Vec<_> = blind.iter().map(|(rolled, _)| rolled.clone()).collect();
            if roll::next(&planned, size, pace).is_none() {
                return Ok(());
            }
            if !is_started {
                is_started = true;
                self.validate(group, &spec, 1).await?;
                self.taint_for_update(group, &spec).await?;
            }
            let state = self.observe(&spec).await?;
            let machines = self.machines(group, &state)?;
            let planned: Vec<_> = machines.iter().map(|(rolled, _)| rolled.clone()).collect();
            match roll::next(&planned, size, pace) {
                None => return Ok(()),
                Some(step) => self.carry_out(step, group, &spec, &machines, &state).await?,
            }
            let spec = self.fleet.spec()?.unwrap_or_default();
            self.validate(group, &spec, self.command.validate_count).await?;
        }
    }

    /// Taints the Nodes to replace, so that evicted Pods move to machines that stay.
    async fn taint_for_update(&self, group: &Group, spec: &FleetSpec) -> Result<(), Error> {
        let Some(client) = &self.client else {
            return Ok(());
        };
        let state = self.observe(spec).await?;
        for (rolled, _) in self.machines(group, &state)?.iter().filter(|(m, _)| m.outdated) {
            let Some(node) = state.joined_node(&rolled.name) else {
                continue;
            };
            if let Err(error) = drain::taint_for_update(client, node).await {
                self.print(&format!("node {:?} cannot be tainted: {error}", rolled.name))?;
            }
        }
        Ok(())
    }

    async fn carry_out(
        &self,
        step: Step,
        group: &Group,
        spec: &FleetSpec,
        machines: &[(RollingMachine, Machine)],
        state: &ClusterState,
    ) -> Result<(), Error> {
        let of = |names: Vec<String>| {
            machines.iter().filter(move |(rolled, _)| names.contains(&rolled.name)).map(|(_, m)| m)
        };
        match step {
            Step::Wait => {
                self.print(&format!("Waiting for more machines of group {:?}.", group.name))?;
                sleep(PAUSE).await;
                Ok(())
            }
            Step::Detach(names) => self.change(spec, &group.name, |group| {
                for name in &names {
                    group.detach(name);
                }
            }),
            Step::Replace(mut names) => {
                if self.asks.get() {
                    names.truncate(1);
                }
                let each = of(names.clone()).map(|machine| self.replace(machine, group, state));
                join_all(each).await.into_iter().collect::<Result<(), Error>>()?;
                self.ask_to_continue(&names).await?;
                let pause = if group.trusted {
                    self.command.control_plane_interval
                } else {
                    self.command.node_interval
                };
                sleep(pause.to_std()).await;
                Ok(())
            }
            Step::Release(mut names) => {
                if self.asks.get() {
                    names.truncate(1);
                }
                let each =
                    of(names.clone()).map(|machine| self.drain_machine(machine, group, state));
                join_all(each).await.into_iter().collect::<Result<(), Error>>()?;
                self.change(spec, &group.name, |group| {
                    for name in &names {
                        group.release(name);
                    }
                })?;
                self.ask_to_continue(&names).await
            }
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

    /// Changes a group of the fleet, and notifies its keeper.
    fn change(
        &self,
        spec: &FleetSpec,
        name: &str,
        change: impl FnMut(&mut Group),
    ) -> Result<(), Error> {
        let mut spec = spec.clone();
        let before: BTreeSet<_> = spec.groups.iter().flat_map(Group::members).collect();
        spec.groups.iter_mut().filter(|group| group.name == name).for_each(change);
        let after: BTreeSet<_> = spec.groups.iter().flat_map(Group::members).collect();
        for gone in before.difference(&after) {
            self.print(&format!("Detached instance {gone:?} from group {name:?}."))?;
        }
        spec.assign(&[])?;
        self.fleet.write(&spec)?;
        Ok(instances::start(&self.fleet, false)?)
    }

    /// Drains a machine, and deletes its Node.
    async fn drain_machine(
        &self,
        machine: &Machine,
        group: &Group,
        state: &ClusterState,
    ) -> Result<(), Error> {
        let name = machine.name.as_str();
        if let Some(client) = self.client.as_ref().filter(|_| state.joined_node(name).is_some()) {
            self.print(&format!("Draining the node: {name:?}."))?;
            let limit = self.command.drain_timeout.to_std();
            let drained = async {
                drain::cordon(client, name).await?;
                drain::drain(client, name, limit, &|text| self.print(&text)).await
            };
            match drained.await {
                Err(error) if self.command.fail_on_drain_error => return Err(error),
                Err(error) => {
                    self.print(&format!("Ignoring error draining node {name:?}: {error}"))?
                }
                Ok(()) => sleep(self.command.post_drain_delay.to_std()).await,
            }
            drain::delete_node(client, name).await?;
        }
        self.print(&format!(
            "Stopping instance {:?}, node {name:?}, in group {:?} (this may take a while).",
            machine.id, group.name
        ))
    }

    /// Replaces a machine, and waits for its replacement.
    async fn replace(
        &self,
        machine: &Machine,
        group: &Group,
        state: &ClusterState,
    ) -> Result<(), Error> {
        self.drain_machine(machine, group, state).await?;
        if group.trusted && self.client.is_some() {
            let clients = Keyset::read(self.registry, &machine.cluster, "etcd-clients-ca")?;
            shut_down_control_plane(&self.fleet, machine, clients, &|text| self.print(&text))
                .await?;
        }
        instances::replace(&self.fleet, &machine.name, &machine.id)?;
        let until = Instant::now() + REPLACEMENT_TIMEOUT;
        let is_replaced = || {
            let new = self.fleet.machine(&machine.name)?.filter(|new| new.id != machine.id);
            let done = APPLIED_HASH.trim_start_matches('/');
            let is_set_up = || self.fleet.disk(&machine.name).join(done).exists();
            // Without the API, rely on the machine's own report.
            Ok::<_, Error>(new.is_some() && (self.client.is_some() || is_set_up()))
        };
        while !is_replaced()? {
            if Instant::now() > until {
                return Err(Error::Replacement {
                    machine: machine.name.clone(),
                    seconds: REPLACEMENT_TIMEOUT.as_secs(),
                    log: self.fleet.root.join("keeper.log").display().to_string(),
                });
            }
            sleep(POLL).await;
        }
        Ok(())
    }

    /// Waits until the cluster validates `count` times in a row, as far as it concerns a group.
    async fn validate(&self, group: &Group, spec: &FleetSpec, count: u32) -> Result<(), Error> {
        let Some(client) = &self.client else {
            return Ok(());
        };
        let limit = self.command.validation_timeout.to_std();
        let until = Instant::now() + limit;
        let (mut times, mut last_messages) = (0, Vec::new());
        loop {
            let (_, failures) = validate::validate_once(client, &self.fleet, spec).await;
            let ours: Vec<_> =
                failures.into_iter().filter(|f| is_blocking(f, group, spec)).collect();
            times = if ours.is_empty() { times + 1 } else { 0 };
            if times >= count.max(1) {
                return self.print("Cluster validated.");
            }
            // The causes contain lines of logs, which change all the time.
            let messages: Vec<_> = ours.iter().map(|failure| failure.message.clone()).collect();
            let causes: Vec<_> = ours.iter().map(Failure::text).collect();
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
            sleep(PAUSE).await;
        }
    }
}

/// Reports whether a failure blocks the update of a group. Failures of other groups of workers do not.
fn is_blocking(failure: &Failure, group: &Group, spec: &FleetSpec) -> bool {
    let Some(other) = &failure.group else {
        return true;
    };
    *other == group.name || spec.groups.iter().any(|g| g.name == *other && g.trusted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_of_other_workers_do_not_block_a_roll() {
        let of = |name: &str, trusted| Group { name: name.to_owned(), trusted, ..Group::default() };
        let spec = FleetSpec {
            groups: vec![of("cp", true), of("a", false), of("b", false)],
            ..FleetSpec::default()
        };
        let failure = |group: Option<&str>| Failure {
            kind: "Node",
            name: String::new(),
            message: String::new(),
            cause: String::new(),
            group: group.map(str::to_owned),
        };
        let held = |which| is_blocking(&failure(which), &of("a", false), &spec);
        assert!(held(None) && held(Some("a")) && held(Some("cp")) && !held(Some("b")));
    }
}
