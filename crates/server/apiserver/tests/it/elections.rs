//! LeaseCandidates and the election of leaders among them (gate `CoordinatedLeaderElection`).

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use api_config::FeatureGates;
use api_meta::Timestamp;
use apiserver::flags::RuntimeConfig;
use client::{
    CandidateVersions, Client, Error, LeaderElection, LeaderElectionConfig, ListOptions, Resource,
};
use serde_json::{Value, json};
use testkit::{Machine, RealApi};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep},
};

use crate::harness::start;

const GATE: &str = "CoordinatedLeaderElection=true";
const SYSTEM: &str = "kube-system";

fn candidate(name: &str, lease: &str, emulated: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"leaseName": lease, "binaryVersion": "1.36.2",
        "emulationVersion": emulated, "strategy": "OldestEmulationVersion"}})
}

#[tokio::test(flavor = "multi_thread")]
async fn serves_candidates_and_fields_of_leases_with_the_gate() {
    let both = || RuntimeConfig::parse(&["api/all=true".to_owned()]).unwrap();
    let off = start(|config| config.runtime_config = both()).await;
    let path = "/apis/coordination.k8s.io/v1beta1/namespaces/kube-system/leasecandidates";
    assert_eq!(off.admin().get(path).await.ok()["items"], json!([]));
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
    let lease = json!({"metadata": {"name": "l"}, "spec": {"holderIdentity": "a",
        "strategy": "OldestEmulationVersion", "preferredHolder": "b"}});
    let made = off.admin().post(leases, &lease).await.ok();
    assert_eq!(made["spec"], json!({"holderIdentity": "a"}));
    off.tasks.shutdown().stop();

    let server = off
        .beside_with(|config| {
            (config.runtime_config, config.features) =
                (both(), FeatureGates::parse([GATE]).unwrap());
        })
        .await;
    let api = server.admin();
    let made = api.post(path, &candidate("a_B.1", "x", "1.35.0")).await.ok();
    assert_eq!(made["metadata"].get("generation"), None);
    let table = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    let table: Value = api.send("GET", path, &table, "").await.ok();
    assert_eq!(
        table["rows"][0]["cells"].as_array().unwrap()[..4],
        ["a_B.1", "x", "1.36.2", "1.35.0"]
    );
    let alpha = path.replace("v1beta1", "v1alpha2");
    let other = api.put(&format!("{alpha}/new"), &candidate("new", "x", "1.36.0")).await.ok();
    assert_eq!(other["apiVersion"], "coordination.k8s.io/v1alpha2");
    let unversioned = json!({"metadata": {"name": "new"}, "spec": other["spec"]});
    api.put(&format!("{path}/new"), &unversioned).await.refused(422, "Invalid");
    let moved = json!({"spec": {"leaseName": "y"}});
    let message = api.patch(&format!("{path}/new"), "merge", &moved).await.refused(422, "Invalid");
    assert!(message.contains("field is immutable"), "{message}");
    let mut lease = lease;
    lease["metadata"]["name"] = json!("m");
    let made = api.post(leases, &lease).await.ok();
    assert_eq!(made["spec"]["preferredHolder"], "b");

    // Components write candidates in kube-system; others none.
    let manager = server.user("system:kube-controller-manager", &[]);
    manager.post(path, &candidate("manager", "x", "1.36.0")).await.ok();
    let elsewhere = path.replace("kube-system", "default");
    manager.post(&elsewhere, &candidate("c", "x", "1.36.0")).await.refused(403, "Forbidden");
    let mallory = server.user("mallory", &[]);
    mallory.post(path, &candidate("c", "x", "1.0.0")).await.refused(403, "Forbidden");
    mallory.get(path).await.refused(403, "Forbidden");
    server.tasks.shutdown().stop();
}

/// The API server with the gate, in simulated time.
struct World {
    api: RealApi,
    _simulation: rt::Simulation,
}

impl World {
    async fn start() -> Self {
        let start = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let simulation = rt::Simulation::begin(1, start);
        let mut machine = Machine::new().unwrap();
        machine.serve(GATE, "coordination.k8s.io/v1beta1=true").unwrap();
        let api = RealApi::simulated(&machine).await.unwrap();
        Self { api, _simulation: simulation }
    }

    async fn create(&self, namespace: &str, candidate: &Value) {
        let resource = &Resource::LEASE_CANDIDATES;
        self.api.admin().create::<_, Value>(resource, namespace, candidate).await.unwrap();
    }

    /// Returns the spec of a Lease; null if there is none.
    async fn lease(&self, namespace: &str, name: &str) -> Value {
        let lease = self.api.admin().get::<Value>(&Resource::LEASES, namespace, name).await;
        lease.map_or(Value::Null, |lease| lease["spec"].clone())
    }

    /// Waits until an API server elects, and returns the spec of its Lease.
    async fn elector(&self) -> Value {
        for _ in 0..60 {
            let lease = self.lease(SYSTEM, "leader-election-controller").await;
            if lease["holderIdentity"].is_string() {
                return lease;
            }
            sleep(Duration::from_secs(1)).await;
        }
        panic!("no API server elects");
    }

    async fn candidates(&self) -> Vec<Value> {
        let (resource, all) = (&Resource::LEASE_CANDIDATES, ListOptions::default());
        self.api.admin().list::<Value>(resource, "", &all).await.unwrap().items
    }
}

/// A process that contends for the lease of the scheduler.
struct Contender {
    leads: Arc<AtomicBool>,
    task: JoinHandle<Result<(), Error>>,
}

impl Contender {
    fn start(client: Client, identity: &str, emulation: &str) -> Self {
        let (binary, emulation) = ("1.36.2".to_owned(), emulation.to_owned());
        let config = LeaderElectionConfig {
            candidate: Some(CandidateVersions { binary, emulation }),
            ..LeaderElectionConfig::new(SYSTEM, "kube-scheduler", identity.to_owned())
        };
        let leads = Arc::new(AtomicBool::new(false));
        let leading = leads.clone();
        let election = LeaderElection::new(client, config);
        let task = tokio::spawn(election.run(move || async move {
            leading.store(true, Ordering::SeqCst);
            std::future::pending().await
        }));
        Self { leads, task }
    }

    fn leads(&self) -> bool {
        self.leads.load(Ordering::SeqCst) && !self.task.is_finished()
    }
}

/// Waits until the first contender leads and returns the seconds that took. No other one may lead at the same time.
async fn elected(first: &Contender, others: &[&Contender], limit: u64) -> u64 {
    let begun = Instant::now();
    while !first.leads() {
        let leaders = others.iter().filter(|other| other.leads()).count();
        assert!(leaders <= 1, "{leaders} contenders lead");
        assert!(begun.elapsed() < Duration::from_secs(limit), "no leader in {limit} s");
        sleep(Duration::from_millis(100)).await;
    }
    assert!(others.iter().all(|other| !other.leads()), "two contenders lead");
    begun.elapsed().as_secs()
}

#[tokio::test(start_paused = true)]
async fn oldest_candidate_leads_and_the_next_after_its_death() {
    let world = World::start().await;
    let scheduler = || world.api.user("system:kube-scheduler");
    let first = Contender::start(scheduler(), "first", "1.36.0");
    elected(&first, &[], 10).await;
    let lease = world.lease(SYSTEM, "kube-scheduler").await;
    assert_eq!(lease["strategy"], "OldestEmulationVersion");
    assert_eq!(
        (&lease["holderIdentity"], &lease["leaseDurationSeconds"]),
        (&json!("first"), &json!(15))
    );
    // One that emulates an older version is preferred: the holder ends, its lease expires, the other one leads.
    let older = Contender::start(scheduler(), "older", "1.35.0");
    elected(&older, &[&first], 40).await;
    assert!(first.task.is_finished());
    let second = Contender::start(scheduler(), "second", "1.36.0");
    sleep(Duration::from_secs(60)).await;
    assert!(older.leads() && !second.leads());
    older.task.abort();
    // The lease expires in 15 s; the election waits 5 s for the dead candidate.
    let took = elected(&second, &[&older], 25).await;
    assert!(took >= 10, "{took} s");
    let lease = world.lease(SYSTEM, "kube-scheduler").await;
    assert_eq!((&lease["holderIdentity"], lease.get("preferredHolder")), (&json!("second"), None));
    // Dead candidates are deleted.
    sleep(Duration::from_secs(65 * 60)).await;
    let names: Vec<Value> =
        world.candidates().await.iter().map(|c| c["metadata"]["name"].clone()).collect();
    assert_eq!(names, ["second"]);
    assert!(second.leads());
    second.task.abort();
    world.api.stop().await;
}

#[tokio::test(start_paused = true)]
async fn contender_without_rights_never_leads() {
    let world = World::start().await;
    let outsider = Contender::start(world.api.user("mallory"), "mallory", "1.30.0");
    let scheduler = Contender::start(world.api.user("system:kube-scheduler"), "s", "1.36.0");
    elected(&scheduler, &[&outsider], 10).await;
    sleep(Duration::from_secs(60)).await;
    assert!(scheduler.leads() && !outsider.leads());
    outsider.task.abort();
    scheduler.task.abort();
    world.api.stop().await;
}

#[tokio::test(start_paused = true)]
async fn hostile_candidates_neither_block_an_election_nor_reach_other_objects() {
    let world = World::start().await;
    let elector = world.elector().await;
    let recently = Timestamp::from(rt::now() - Duration::from_secs(60)).micros();
    let far = Timestamp::from(rt::now() + Duration::from_secs(10 * 365 * 86_400)).micros();
    // A thousand candidates that are dead, and some with times of the future.
    for index in 0..1000 {
        let mut dead = candidate(&format!("dead-{index}"), "kube-scheduler", "1.20.0");
        dead["spec"]["renewTime"] = json!(if index % 100 == 0 { &far } else { &recently });
        dead["spec"]["pingTime"] = json!(if index % 50 == 1 { Some(&far) } else { None });
        world.create(SYSTEM, &dead).await;
    }
    let names = ["leader-election-controller", "../secrets/s", "a/b", "UPPER", "%2e%2e"];
    for (index, name) in names.iter().enumerate() {
        let mut other = candidate(&format!("other-{index}"), name, "1.20.0");
        other["spec"]["renewTime"] = json!(Timestamp::from(rt::now()).micros());
        world.create(SYSTEM, &other).await;
    }
    let scheduler = Contender::start(world.api.user("system:kube-scheduler"), "s", "1.36.0");
    elected(&scheduler, &[], 20).await;
    // Each dead candidate has been pinged at most once.
    let version = |c: &Value| c["metadata"]["resourceVersion"].clone();
    let dead = |all: Vec<Value>| -> Vec<Value> {
        let dead = |c: &Value| c["metadata"]["name"].as_str().unwrap().starts_with("dead");
        all.into_iter().filter(dead).collect()
    };
    let before = dead(world.candidates().await);
    sleep(Duration::from_secs(120)).await;
    let after = dead(world.candidates().await);
    assert!(before.iter().map(version).eq(after.iter().map(version)));
    assert!(scheduler.leads());
    let now = world.lease(SYSTEM, "leader-election-controller").await;
    assert_eq!(now["holderIdentity"], elector["holderIdentity"]);
    assert_eq!(now.get("strategy"), None);
    let leases = world.api.admin();
    let leases =
        leases.list::<Value>(&Resource::LEASES, "", &ListOptions::default()).await.unwrap();
    let elected = leases.items.iter().filter(|lease| lease["spec"].get("strategy").is_some());
    assert_eq!(
        elected.map(|lease| &lease["metadata"]["name"]).collect::<Vec<_>>(),
        ["kube-scheduler"]
    );
    scheduler.task.abort();
    world.api.stop().await;
}

#[tokio::test(start_paused = true)]
async fn conflicting_and_foreign_strategies_elect_nobody() {
    let world = World::start().await;
    let with = |name: &str, lease: &str, strategy: &str| {
        let mut candidate = candidate(name, lease, "1.36.0");
        candidate["spec"]["strategy"] = json!(strategy);
        candidate["spec"]["renewTime"] = json!(Timestamp::from(rt::now()).micros());
        candidate
    };
    world.create("default", &with("a", "conflict", "OldestEmulationVersion")).await;
    world.create("default", &with("b", "conflict", "example.com/mine")).await;
    world.create("default", &with("c", "foreign", "example.com/mine")).await;
    sleep(Duration::from_secs(4)).await;
    assert_eq!(world.lease("default", "conflict").await, Value::Null);
    assert_eq!(world.lease("default", "foreign").await, json!({"strategy": "example.com/mine"}));
    world.api.stop().await;
}
