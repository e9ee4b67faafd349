//! Ends the machines that a smaller or a deleted group no longer has: drains their Nodes as disruption budgets allow,
//! ends the machines, and deletes the Nodes. Until a machine has ended it is part of the fleet, so that an interrupted
//! update continues.

use std::{cell::RefCell, io::Write, time::Duration};

use client::Client;
use instances::{Fleet, FleetSpec};
use kops_api::Object;
use kops_local::{COMMAND_PERIOD, ClusterState};
use kops_store::Registry;
use tokio::time::{Instant, sleep};

use crate::{drain, environment::CommandEnvironment, error::Error, flags::Connection};

const POLL: Duration = Duration::from_millis(200);
/// The time limit for draining one Node, which is upstream's of a rolling update.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(15 * 60);
/// The time for the keeper to end a machine.
const END_TIMEOUT: Duration = Duration::from_secs(120);

/// The end of the machines that a fleet no longer has.
pub(super) struct Shrink<'a> {
    fleet: &'a Fleet,
    /// The present state; machines are removed as they end.
    present: FleetSpec,
    wanted: &'a FleetSpec,
    ending: Vec<String>,
}

impl<'a> Shrink<'a> {
    /// Creates the end of the machines of `present` that `wanted` lacks.
    pub(super) fn new(fleet: &'a Fleet, present: FleetSpec, wanted: &'a FleetSpec) -> Self {
        let kept: Vec<String> = wanted.names().collect();
        let ending = present.names().filter(|name| !kept.contains(name)).collect();
        Self { fleet, present, wanted, ending }
    }

    /// Ends the machines one after another, and writes the wanted state.
    pub(super) async fn run(
        self,
        registry: &Registry,
        cluster: &Object,
        connection: &Connection,
        context: &mut CommandEnvironment<'_>,
    ) -> Result<(), Error> {
        if self.ending.is_empty() {
            return Ok(());
        }
        let client = connection
            .open(registry, cluster, None, COMMAND_PERIOD, context)
            .map_err(|source| self.unreachable(source))?;
        self.end(&client, context.out).await
    }

    /// Returns the error of machines that cannot be drained.
    fn unreachable(&self, source: Error) -> Error {
        Error::Shrink { machines: self.ending.join(", "), source: Box::new(source) }
    }

    async fn end(mut self, client: &Client, out: &mut dyn Write) -> Result<(), Error> {
        let observed = ClusterState::observe(client, self.fleet, &self.present).await;
        let state = observed.map_err(|source| self.unreachable(source.into()))?;
        for name in &self.ending {
            if state.joined_node(name).is_some() {
                drain_node(client, name, out).await?;
            }
            drain::delete_node(client, name).await?;
            writeln!(out, "Stopping instance {name:?}.")?;
            out.flush()?;
            for group in &mut self.present.groups {
                group.remove(name);
            }
            self.present.groups.retain(|group| {
                group.size() > 0 || self.wanted.groups.iter().any(|other| other.name == group.name)
            });
            self.fleet.write(&self.present)?;
            instances::start(self.fleet, false)?;
            wait_for_end(self.fleet, name).await?;
            // A running kubelet may have registered the Node again.
            drain::delete_node(client, name).await?;
        }
        self.fleet.write(self.wanted)?;
        Ok(instances::start(self.fleet, false)?)
    }
}

async fn drain_node(client: &Client, name: &str, out: &mut dyn Write) -> Result<(), Error> {
    writeln!(out, "Draining the node: {name:?}.")?;
    out.flush()?;
    drain::cordon(client, name).await?;
    let out = RefCell::new(out);
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

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use client::Resource;
    use instances::Group;
    use serde_json::json;
    use testkit::FakeApi;

    use super::*;

    fn spec(groups: &[(&str, u32)]) -> FleetSpec {
        let group = |(name, size): &(&str, u32)| Group {
            name: (*name).to_owned(),
            numbers: (1..=*size).collect(),
            ..Group::default()
        };
        FleetSpec {
            cluster: "a.local".to_owned(),
            groups: groups.iter().map(group).collect(),
            ..FleetSpec::default()
        }
    }

    /// A fleet with the machine `old-1` and `nodes-2`, which a keeper would end. Its program does nothing.
    struct TestFleet {
        _dir: tempfile::TempDir,
        fleet: Fleet,
        api: FakeApi,
    }

    impl TestFleet {
        async fn new(present: &FleetSpec) -> Self {
            let dir = tempfile::tempdir().unwrap();
            let fleet = Fleet::at(dir.path().join("fleet"));
            fleet.write(present).unwrap();
            fs::create_dir_all(fleet.programs()).unwrap();
            symlink("/bin/true", fleet.binary()).unwrap();
            let api = FakeApi::default();
            for name in present.names() {
                let machine = instances::testing::machine("", &name);
                let document = fleet.root.join("machines").join(&name).join("document");
                fs::create_dir_all(&document).unwrap();
                let text = serde_json::to_string(&machine).unwrap();
                fs::write(document.join("machine.json"), text).unwrap();
                let node = json!({
                    "apiVersion": "v1", "kind": "Node",
                    "metadata": {"name": name, "creationTimestamp": "2026-11-26T06:00:00Z"},
                });
                api.create(&Resource::NODES, node).await;
            }
            Self { _dir: dir, fleet, api }
        }

        /// Ends machines like the keeper, when they are no longer wanted.
        async fn keep(&self) {
            loop {
                let wanted: Vec<_> =
                    self.fleet.spec().unwrap().unwrap_or_default().names().collect();
                for entry in fs::read_dir(self.fleet.root.join("machines")).unwrap().flatten() {
                    if !wanted.contains(&entry.file_name().into_string().unwrap()) {
                        fs::remove_dir_all(entry.path()).unwrap();
                    }
                }
                tokio::task::yield_now().await;
            }
        }

        async fn end(&self, present: &FleetSpec, wanted: &FleetSpec) -> Result<String, Error> {
            let mut out = Vec::new();
            let client = self.api.client("test");
            let shrink = Shrink::new(&self.fleet, present.clone(), wanted);
            tokio::select! {
                done = shrink.end(&client, &mut out) => done?,
                () = self.keep() => {}
            }
            Ok(String::from_utf8_lossy(&out).into_owned())
        }
    }

    #[tokio::test]
    async fn drains_and_deletes_the_node_of_each_machine_that_ends() {
        let (present, wanted) = (spec(&[("nodes", 2), ("old", 1)]), spec(&[("nodes", 1)]));
        let place = TestFleet::new(&present).await;
        let before = place.api.writes().len();
        let out = place.end(&present, &wanted).await.unwrap();
        assert!(out.contains("Draining the node: \"nodes-2\""), "{out}");
        let writes = place.api.writes()[before..].join("\n");
        let expected = [
            "PATCH /api/v1/nodes/nodes-2",
            "DELETE /api/v1/nodes/nodes-2",
            "PATCH /api/v1/nodes/old-1",
            "DELETE /api/v1/nodes/old-1",
        ];
        assert_eq!(writes, expected.join("\n"));
        assert!(place.api.get(&Resource::NODES, "", "nodes-1").is_some());
        assert_eq!(place.fleet.spec().unwrap(), Some(wanted));
        assert!(place.fleet.machine("nodes-1").unwrap().is_some());
        assert!(place.fleet.machine("old-1").unwrap().is_none());
    }

    #[tokio::test]
    async fn keeps_machines_while_the_api_is_silent() {
        let (present, wanted) = (spec(&[("nodes", 2), ("old", 1)]), spec(&[("nodes", 1)]));
        let place = TestFleet::new(&present).await;
        place.api.set_away(true);
        let error = place.end(&present, &wanted).await.unwrap_err().to_string();
        assert!(error.contains("machines nodes-2, old-1 still run"), "{error}");
        assert_eq!(place.fleet.spec().unwrap(), Some(present));
        assert!(place.fleet.machine("nodes-2").unwrap().is_some());
    }
}
