//! Coordinated leader election of two schedulers, in simulated time.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use api_config::FeatureGates;
use client::{CandidateVersions, Resource};
use serde_json::Value;
use testkit::{Machine, RealApi};
use tokio::time::{Instant, sleep};

const GATE: &str = "CoordinatedLeaderElection=true";

/// A scheduler that emulates a version of Kubernetes.
struct Scheduler {
    tasks: rt::Tasks,
    /// Raised when it ended with an error.
    lost: Arc<rt::Level<bool>>,
}

impl Scheduler {
    fn start(api: &RealApi, emulation: &str) -> Self {
        let mut config = scheduler::Config {
            leader_election: true,
            features: FeatureGates::parse([GATE]).unwrap(),
            ..scheduler::Config::default()
        };
        let (binary, emulation) = ("1.36.2".to_owned(), emulation.to_owned());
        config.lease.candidate = Some(CandidateVersions { binary, emulation });
        let (client, tasks) = (api.user("system:kube-scheduler"), api.tasks());
        let lost = Arc::<rt::Level<bool>>::default();
        let (running, raised) = (tasks.clone(), lost.clone());
        tasks.spawn("scheduler", async move {
            raised.raise(scheduler::run(config, client, &running).await.is_err());
        });
        Self { tasks, lost }
    }

    fn kill(&self) {
        self.tasks.shutdown().stop();
    }
}

/// Returns the version that the holder of the scheduler's lease emulates, and the lease's `renewTime`.
async fn leader(api: &RealApi) -> Option<(String, Value)> {
    let (admin, namespace) = (api.admin(), "kube-system");
    let lease: Value = admin.get(&Resource::LEASES, namespace, "kube-scheduler").await.ok()?;
    let holder = lease["spec"]["holderIdentity"].as_str()?;
    let candidate: Value = admin.get(&Resource::LEASE_CANDIDATES, namespace, holder).await.ok()?;
    let version = candidate["spec"]["emulationVersion"].as_str()?.to_owned();
    // A holder that acts has renewed the lease for its own duration.
    (lease["spec"]["leaseDurationSeconds"] == 15)
        .then(|| (version, lease["spec"]["renewTime"].clone()))
}

/// Waits until a scheduler of the version leads, and returns the seconds that took.
async fn elected(api: &RealApi, version: &str, limit: u64) -> u64 {
    let begun = Instant::now();
    while leader(api).await.is_none_or(|(leader, _)| leader != version) {
        assert!(
            begun.elapsed() < Duration::from_secs(limit),
            "no leader of {version} in {limit} s"
        );
        sleep(Duration::from_millis(200)).await;
    }
    begun.elapsed().as_secs()
}

#[tokio::test(start_paused = true)]
async fn scheduler_of_older_version_leads_and_is_replaced_after_its_death() {
    let start = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
    let _simulation = rt::Simulation::begin(1, start);
    let mut machine = Machine::new().unwrap();
    machine.serve(GATE, "coordination.k8s.io/v1beta1=true").unwrap();
    let api = RealApi::simulated(&machine).await.unwrap();
    let new = Scheduler::start(&api, "1.36.0");
    elected(&api, "1.36.0", 15).await;
    let old = Scheduler::start(&api, "1.35.0");
    elected(&api, "1.35.0", 40).await;
    assert!(new.lost.get(), "the former leader has ended");
    let next = Scheduler::start(&api, "1.36.0");
    sleep(Duration::from_secs(30)).await;
    assert_eq!(leader(&api).await.unwrap().0, "1.35.0");
    old.kill();
    elected(&api, "1.36.0", 25).await;
    assert!(!next.lost.get());
    next.kill();
    api.stop().await;
}
