//! Ends the machines that a smaller or a deleted group no longer has: drains their Nodes as disruption budgets allow,
//! ends the machines, and deletes the Nodes. Until a machine has ended it is part of the fleet, so that an interrupted
//! update continues.

use std::{cell::RefCell, time::Duration};

use client::Client;
use instances::{Fleet, FleetSpec};
use kops_api::Object;
use kops_local::{ClusterState, open_client};
use kops_store::Registry;
use tokio::time::{Instant, sleep};

use crate::{drain, environment::CommandEnvironment, error::Error};

const POLL: Duration = Duration::from_millis(200);
/// The time limit for draining one Node, which is upstream's of a rolling update.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(15 * 60);
/// The time for the keeper to end a machine.
const END_TIMEOUT: Duration = Duration::from_secs(120);

/// Ends the machines of `present` that `wanted` lacks, one after another, and writes `wanted`.
pub(super) async fn end_machines(
    registry: &Registry,
    cluster: &Object,
    fleet: &Fleet,
    mut present: FleetSpec,
    wanted: &FleetSpec,
    context: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    let kept: Vec<String> = wanted.names().collect();
    let ending: Vec<String> = present.names().filter(|name| !kept.contains(name)).collect();
    if ending.is_empty() {
        return Ok(());
    }
    let unreachable = |source| Error::Shrink { machines: ending.join(", "), source };
    let client = open_client(registry, cluster, context.now).map_err(unreachable)?;
    let state = ClusterState::observe(&client, fleet, &present).await.map_err(unreachable)?;
    for name in &ending {
        if state.joined_node(name).is_some() {
            drain_node(&client, name, context).await?;
        }
        drain::delete_node(&client, name).await?;
        writeln!(context.out, "Stopping instance {name:?}.")?;
        context.out.flush()?;
        for group in &mut present.groups {
            group.remove(name);
        }
        present.groups.retain(|group| {
            group.size() > 0 || wanted.groups.iter().any(|other| other.name == group.name)
        });
        fleet.write(&present)?;
        instances::start(fleet, false)?;
        wait_for_end(fleet, name).await?;
        // A running kubelet may have registered the Node again.
        drain::delete_node(&client, name).await?;
    }
    fleet.write(wanted)?;
    Ok(instances::start(fleet, false)?)
}

async fn drain_node(
    client: &Client,
    name: &str,
    context: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    writeln!(context.out, "Draining the node: {name:?}.")?;
    context.out.flush()?;
    drain::cordon(client, name).await?;
    let out = RefCell::new(&mut *context.out);
    let report = |text: String| {
        let mut out = out.borrow_mut();
        writeln!(out, "{text}")?;
        Ok(out.flush()?)
    };
    drain::drain(client, name, DRAIN_TIMEOUT, &report).await
}

async fn wait_for_end(fleet: &Fleet, name: &str) -> Result<(), Error> {
    let until = Instant::now() + END_TIMEOUT;
    while fleet.machine(name)?.is_some() {
        if Instant::now() > until {
            return Err(Error::NotEnded {
                machine: name.to_owned(),
                seconds: END_TIMEOUT.as_secs(),
                log: fleet.root.join("keeper.log").display().to_string(),
            });
        }
        sleep(POLL).await;
    }
    Ok(())
}
