//! The machines of cloud local.

use std::{collections::BTreeSet, time::Duration};

use client::Client;
use instances::{Fleet, FleetSpec, Group};
use kops_local::{ClusterState, MachineProblem, Stage, is_outdated, machine_problems};
use kops_node::nodeup::APPLIED_HASH;
use kops_store::{Keyset, Registry};
use tokio::time::{Instant, sleep};

use super::{CONTROL_PLANE, Cloud, CloudState, GroupState, MachineState, Observe, Report};
use crate::{error::Error, shutdown::shut_down_control_plane};

const POLL: Duration = Duration::from_millis(200);
/// The time for the keeper to replace a machine that has ended.
const REPLACEMENT_TIMEOUT: Duration = Duration::from_secs(120);

/// The machines of a cluster of cloud local.
pub(crate) struct LocalCloud<'a> {
    registry: &'a Registry,
    fleet: Fleet,
    /// `true` if the cluster's API answers.
    uses_api: bool,
}

impl<'a> LocalCloud<'a> {
    /// Returns the machines of a cluster.
    pub(crate) fn new(registry: &'a Registry, name: &str, uses_api: bool) -> Self {
        Self { registry, fleet: kops_local::fleet(registry, name), uses_api }
    }

    /// Rejects a cluster that has no machines yet.
    pub(crate) fn check_exists(&self, name: &str) -> Result<(), Error> {
        if self.spec()?.cluster == name {
            return Ok(());
        }
        let problem = "has no machines yet; run kops update cluster --yes";
        Err(kops_store::Error::object("cluster", name, problem).into())
    }

    fn spec(&self) -> Result<FleetSpec, Error> {
        Ok(self.fleet.spec()?.unwrap_or_default())
    }

    /// Changes a group of the fleet, and notifies its keeper.
    fn change(&self, name: &str, change: impl FnMut(&mut Group)) -> Result<(), Error> {
        let mut spec = self.spec()?;
        spec.groups.iter_mut().filter(|group| group.name == name).for_each(change);
        spec.assign(&[])?;
        self.fleet.write(&spec)?;
        Ok(instances::start(&self.fleet, false)?)
    }

    /// Returns the state of a machine of a group, whether the keeper has made it or not.
    fn machine_state(
        &self,
        group: &Group,
        name: String,
        detached: bool,
        state: &ClusterState,
    ) -> MachineState {
        let machine = state.machines.get(&name);
        let node = state.joined_node(&name).cloned();
        let stage = node.is_none().then(|| Stage::of(&self.fleet, &name));
        MachineState {
            outdated: machine.is_some_and(|one| is_outdated(one, group)),
            detached,
            runs: machine.is_some(),
            id: machine.map(|machine| machine.id.clone()).unwrap_or_default(),
            name,
            node,
            claimants: Vec::new(),
            is_starting: stage.as_ref().is_some_and(Stage::is_before_kubelet),
            cause: stage.map(|stage| stage.to_string()).unwrap_or_default(),
        }
    }
}

impl Observe for LocalCloud<'_> {
    const HAS_DNS: bool = true;

    async fn observe(&self, client: Option<&Client>) -> Result<CloudState, Error> {
        let spec = self.spec()?;
        let state = match client {
            None => ClusterState::of_machines(&self.fleet, &spec)?,
            Some(client) => ClusterState::observe(client, &self.fleet, &spec)
                .await
                .map_err(Error::Unreachable)?,
        };
        let mut groups = Vec::new();
        for group in &spec.groups {
            let size = group.numbers.len();
            let members: BTreeSet<_> = group.members().collect();
            let machines = group.names().map(|name| {
                let detached = !members.contains(&name);
                self.machine_state(group, name, detached, &state)
            });
            groups.push(GroupState {
                name: group.name.clone(),
                role: if group.trusted { CONTROL_PLANE } else { "Node" }.to_owned(),
                machine_type: String::new(),
                subnets: String::new(),
                min: size,
                target: size,
                max: size,
                machines: machines.collect(),
            });
        }
        Ok(CloudState { groups, missing: Vec::new(), nodes: state.nodes })
    }

    fn problems(&self) -> Result<Vec<MachineProblem>, Error> {
        Ok(machine_problems(&self.fleet, &self.spec()?))
    }
}

impl Cloud for LocalCloud<'_> {
    const PAUSE: Duration = Duration::from_secs(2);

    async fn detach(&self, group: &GroupState, names: &[String]) -> Result<(), Error> {
        self.change(&group.name, |group| {
            for name in names {
                group.detach(name);
            }
        })
    }

    async fn replace(
        &self,
        group: &GroupState,
        machine: &MachineState,
        report: Report<'_>,
    ) -> Result<(), Error> {
        let name = machine.name.as_str();
        // The keeper may have replaced the machine since it was observed.
        if group.is_control_plane()
            && self.uses_api
            && let Some(present) = self.fleet.machine(name)?.filter(|one| one.id == machine.id)
        {
            let clients = Keyset::read(self.registry, &present.cluster, "etcd-clients-ca")?;
            shut_down_control_plane(&self.fleet, &present, clients, report).await?;
        }
        instances::replace(&self.fleet, name, &machine.id)?;
        let until = Instant::now() + REPLACEMENT_TIMEOUT;
        let is_replaced = || {
            let new = self.fleet.machine(name)?.filter(|new| new.id != machine.id);
            let is_set_up = || self.fleet.has_file(name, APPLIED_HASH);
            // Without the API, rely on the machine's own report.
            Ok::<_, Error>(new.is_some() && (self.uses_api || is_set_up()))
        };
        while !is_replaced()? {
            if Instant::now() > until {
                return Err(Error::Replacement {
                    machine: name.to_owned(),
                    seconds: REPLACEMENT_TIMEOUT.as_secs(),
                    advice: format!("see {}", self.fleet.root.join("keeper.log").display()),
                });
            }
            sleep(POLL).await;
        }
        Ok(())
    }

    async fn release(&self, group: &GroupState, names: &[String]) -> Result<(), Error> {
        self.change(&group.name, |group| {
            for name in names {
                group.release(name);
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[tokio::test]
    async fn replacement_does_not_shut_down_a_later_machine_of_the_same_name() {
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path().join("store");
        fs::create_dir(&store).unwrap();
        let registry = Registry::open(&format!("file://{}", store.display()), &|_| None).unwrap();
        let cloud = LocalCloud::new(&registry, "a.local", true);
        let document = cloud.fleet.root.join("machines/cp-1/document");
        fs::create_dir_all(&document).unwrap();
        let machine = r#"{"cluster": "a.local", "group": "cp", "name": "cp-1", "id": "new", "made": 0, "cgroup": "",
            "address": "127.0.0.1", "gateway": "127.0.0.1", "trusted": true, "userData": ""}"#;
        fs::write(document.join("machine.json"), machine).unwrap();
        let manifests = cloud.fleet.disk("cp-1").join("etc/kubernetes/manifests");
        fs::create_dir_all(&manifests).unwrap();
        fs::write(manifests.join("kube-apiserver.yaml"), "").unwrap();
        let group = GroupState { role: CONTROL_PLANE.to_owned(), ..GroupState::default() };
        let old = MachineState {
            id: "old".to_owned(),
            name: "cp-1".to_owned(),
            ..MachineState::default()
        };
        cloud.replace(&group, &old, &|_| Ok(())).await.unwrap();
        assert!(manifests.join("kube-apiserver.yaml").exists());
    }
}
