//! Tests of rolling updates on an imitated cloud, with an API in memory.

use client::Resource;
use kops_api::Kind;
use kops_local::MachineProblem;
use serde_json::{Value, json};
use testkit::FakeApi;

use super::*;
use crate::cloud::{Observe, Report};

/// A cloud that replaces machines at once. Their Nodes are ready.
struct FakeCloud {
    api: FakeApi,
    groups: RefCell<Vec<GroupState>>,
    made: Cell<u32>,
    /// The requests, in order.
    log: RefCell<Vec<String>>,
    /// The fewest members of a group at any time.
    fewest: Cell<usize>,
}

impl FakeCloud {
    /// Returns a group of outdated machines, with a Pod on each Node.
    async fn new(role: &str, size: usize) -> Self {
        let group = GroupState {
            name: "a".to_owned(),
            role: role.to_owned(),
            min: size,
            target: size,
            max: size,
            ..GroupState::default()
        };
        let cloud = Self {
            api: FakeApi::default(),
            groups: RefCell::new(vec![group]),
            made: Cell::default(),
            log: RefCell::default(),
            fewest: Cell::new(size),
        };
        for _ in 0..size {
            cloud.add(true).await;
        }
        cloud
    }

    async fn add(&self, outdated: bool) {
        self.made.set(self.made.get() + 1);
        let id = format!("i-{}", self.made.get());
        if !self.groups.borrow()[0].is_bastion() {
            let conditions = json!([{"type": "Ready", "status": "True"}]);
            let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": id},
                "status": {"conditions": conditions}});
            self.api.create(&Resource::NODES, node).await;
            let pod = json!({"apiVersion": "v1", "kind": "Pod", "spec": {"nodeName": id},
                "metadata": {"name": format!("web-{id}"), "namespace": "default"}});
            self.api.create(&Resource::PODS, pod).await;
        }
        let machine =
            MachineState { name: id.clone(), id, outdated, runs: true, ..MachineState::default() };
        self.groups.borrow_mut()[0].machines.push(machine);
    }

    fn mark_detached(&self, name: &str) {
        let mut groups = self.groups.borrow_mut();
        let machines = groups[0].machines.iter_mut();
        machines.filter(|one| one.name == name).for_each(|one| one.detached = true);
    }

    fn remove(&self, name: &str) {
        let mut groups = self.groups.borrow_mut();
        groups[0].machines.retain(|machine| machine.name != name);
        let members = groups[0].machines.len();
        self.fewest.set(self.fewest.get().min(members));
    }
}

impl Observe for FakeCloud {
    const HAS_DNS: bool = false;

    async fn observe(&self, client: Option<&Client>) -> Result<CloudState, Error> {
        let nodes: Vec<Value> = match client {
            None => Vec::new(),
            Some(_) => self.api.list(&Resource::NODES, ""),
        };
        let mut groups = self.groups.borrow().clone();
        for machine in groups.iter_mut().flat_map(|group| &mut group.machines) {
            let own = |node: &&Value| node["metadata"]["name"] == machine.name.as_str();
            machine.node = nodes.iter().find(own).cloned();
        }
        Ok(CloudState { groups, missing: Vec::new(), nodes })
    }

    fn problems(&self) -> Result<Vec<MachineProblem>, Error> {
        Ok(Vec::new())
    }
}

impl Cloud for FakeCloud {
    const PAUSE: Duration = Duration::from_millis(1);

    async fn detach(&self, _: &GroupState, names: &[String]) -> Result<(), Error> {
        for name in names {
            self.log.borrow_mut().push(format!("detach {name}"));
            self.mark_detached(name);
            self.add(false).await;
        }
        Ok(())
    }

    async fn replace(
        &self,
        _: &GroupState,
        machine: &MachineState,
        _: Report<'_>,
    ) -> Result<(), Error> {
        self.log.borrow_mut().push(format!("replace {}", machine.name));
        self.remove(&machine.name);
        self.add(false).await;
        Ok(())
    }

    async fn release(&self, _: &GroupState, names: &[String]) -> Result<(), Error> {
        for name in names {
            self.log.borrow_mut().push(format!("release {name}"));
            self.remove(name);
        }
        Ok(())
    }
}

/// Rolls a cluster on AWS, and returns its cloud.
async fn rolled(role: &str, size: usize, uses_api: bool) -> FakeCloud {
    let cloud = FakeCloud::new(role, size).await;
    let zero = api_config::GoDuration::from_secs(0);
    let command = RollCluster {
        cloudonly: !uses_api,
        post_drain_delay: zero,
        node_interval: zero,
        control_plane_interval: zero,
        bastion_interval: Some(zero),
        ..RollCluster::default()
    };
    let mut cluster = Object::new(Kind::Cluster, "a.example.com");
    cluster.spec = json!({"cloudProvider": {"aws": {}}});
    let mut group = Object::new(Kind::InstanceGroup, "a");
    group.spec = json!({"role": role});
    let client = uses_api.then(|| cloud.api.client("test"));
    let mut out = Vec::new();
    let mut context = CommandEnvironment {
        now: std::time::SystemTime::UNIX_EPOCH,
        out: &mut out,
        environment: &|_| None,
    };
    let mut roll = Roll {
        command: &command,
        cloud,
        cluster,
        groups: vec![group],
        client,
        due: BTreeSet::new(),
        asks: Cell::new(false),
        context: RefCell::new(&mut context),
    };
    let state = roll.observe_marks(None).await.unwrap();
    assert!(roll.print_machines(&state).unwrap());
    roll.roll_groups().await.unwrap();
    let state = roll.observe().await.unwrap();
    let machines = &state.groups[0].machines;
    assert_eq!(machines.len(), size);
    assert!(machines.iter().all(|one| !one.outdated && !one.detached), "{machines:?}");
    assert!(roll.next(&roll.groups[0], &state.groups[0]).is_none());
    roll.cloud
}

#[tokio::test]
async fn workers_on_aws_are_detached_drained_and_released() {
    let cloud = rolled("Node", 3, true).await;
    let log = cloud.log.take();
    assert_eq!(log.first().map(String::as_str), Some("detach i-3"));
    assert_eq!(log.iter().filter(|line| line.starts_with("detach")).count(), 1, "{log:?}");
    assert_eq!(log.last().map(String::as_str), Some("release i-3"), "{log:?}");
    assert_eq!(cloud.fewest.get(), 3, "{log:?}");
    let writes = cloud.api.writes();
    let position = |line: &str| writes.iter().position(|write| write == line).expect(line);
    for id in ["i-1", "i-2", "i-3"] {
        let cordoned = position(&format!("PATCH /api/v1/nodes/{id}"));
        let evicted = position(&format!("POST /api/v1/namespaces/default/pods/web-{id}/eviction"));
        let deleted = position(&format!("DELETE /api/v1/nodes/{id}"));
        assert!(cordoned < evicted && evicted < deleted, "{writes:?}");
    }
}

#[tokio::test]
async fn bastions_and_cloudonly_use_no_api() {
    let cloud = rolled("Node", 1, false).await;
    assert_eq!(cloud.log.take(), ["replace i-1"]);
    assert!(!cloud.api.writes().iter().any(|write| write.starts_with("DELETE")));
    let cloud = rolled("Bastion", 2, true).await;
    let mut log = cloud.log.take();
    log.sort();
    assert_eq!(log.len(), 3, "{log:?}");
    assert!(log[0].starts_with("detach") && log[2].starts_with("replace"), "{log:?}");
}

#[test]
fn failures_of_other_workers_do_not_block_a_roll() {
    let of = |name: &str, role: &str| GroupState {
        name: name.to_owned(),
        role: role.to_owned(),
        ..GroupState::default()
    };
    let state = CloudState {
        groups: vec![of("cp", CONTROL_PLANE), of("a", "Node"), of("b", "Node")],
        ..CloudState::default()
    };
    let failure = |group: Option<&str>| Failure {
        kind: "Node",
        name: String::new(),
        message: String::new(),
        cause: String::new(),
        group: group.map(str::to_owned),
    };
    let held = |which| is_blocking(&failure(which), "a", &state);
    assert!(held(None) && held(Some("a")) && held(Some("cp")) && !held(Some("b")));
}

#[tokio::test]
async fn finds_machines_by_id_before_node_names_and_rejects_claimed_ones() {
    let cloud = FakeCloud::new("Node", 0).await;
    // The machine i-1 has named its Node like the machine i-2, and the machine i-3 has two Nodes.
    cloud.api.create(&Resource::NODES, json!({"metadata": {"name": "i-2"}})).await;
    let machine = |id: &str, name: &str, claimants: &[&str]| MachineState {
        id: id.to_owned(),
        name: name.to_owned(),
        claimants: claimants.iter().map(|&node| node.to_owned()).collect(),
        ..MachineState::default()
    };
    let machines = vec![
        machine("i-1", "i-2", &[]),
        machine("i-2", "x", &[]),
        machine("i-3", "y", &["a", "b"]),
    ];
    cloud.groups.borrow_mut()[0].machines = machines;
    let (command, mut out) = (RollCluster::default(), Vec::new());
    let mut context = CommandEnvironment {
        now: std::time::SystemTime::UNIX_EPOCH,
        out: &mut out,
        environment: &|_| None,
    };
    let roll = Roll {
        command: &command,
        client: Some(cloud.api.client("test")),
        cloud,
        cluster: Object::new(Kind::Cluster, "a.example.com"),
        groups: Vec::new(),
        due: BTreeSet::new(),
        asks: Cell::new(false),
        context: RefCell::new(&mut context),
    };
    assert_eq!(roll.find("i-2").await.unwrap().machine.id, "i-2");
    assert!(matches!(roll.find("i-9").await, Err(Error::MissingInstance(_))));
    let claimed = roll.find("b").await.unwrap();
    let drained = roll.drain_machine(&claimed.machine, &claimed.group).await;
    assert!(matches!(drained, Err(Error::SeveralNodes { .. })), "{drained:?}");
}
