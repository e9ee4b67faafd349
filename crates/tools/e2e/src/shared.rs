//! The clusters that tests share. The first test that needs one starts it.

use std::sync::OnceLock;

use parking_lot::Mutex;

use crate::{cluster::Cluster, locks::TestGuards, session::Session};

/// The cluster of tests that run in parallel.
static SHARED: SharedCluster = SharedCluster::new("shared");
/// The cluster of tests that disturb each other. They run one at a time.
static DISTURBED: SharedCluster = SharedCluster::new("disturbed");

/// A cluster that is started by the first test that needs it.
struct SharedCluster {
    name: &'static str,
    cluster: OnceLock<Cluster>,
    /// `true` once a test has tried to start the cluster. After a failure no other test tries again.
    tried: Mutex<bool>,
}

/// Returns a session in a new namespace of the cluster that most tests use.
pub fn shared(test: &str) -> Session<'static> {
    Session::create(SHARED.cluster(), test, TestGuards::shared())
}

/// Returns a session on a cluster that no other test uses at the same time. It is for tests that disturb others: they
/// restart the kubelet or create a Node that is not Ready.
pub fn shared_alone(test: &str) -> Session<'static> {
    Session::create(DISTURBED.cluster(), test, TestGuards::exclusive())
}

impl SharedCluster {
    const fn new(name: &'static str) -> Self {
        Self { name, cluster: OnceLock::new(), tried: Mutex::new(false) }
    }

    /// Returns the cluster, and starts it first if no test has done so.
    fn cluster(&self) -> &Cluster {
        let mut tried = self.tried.lock();
        match (self.cluster.get(), *tried) {
            (Some(cluster), _) => cluster,
            (None, true) => panic!("the {} cluster did not come up", self.name),
            (None, false) => {
                *tried = true;
                let cluster = Cluster::new(self.name);
                cluster.up().ok();
                cluster.build_images();
                self.cluster.get_or_init(|| cluster)
            }
        }
    }
}
