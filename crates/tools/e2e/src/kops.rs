//! Clusters by `windlass kops` on this machine.

use std::{fs, path::PathBuf};

use crate::{Cluster, Ran, binary, until};

/// A place for a cluster of cloud local: the store, and beside it the machines. It is taken away with this.
pub struct Kops {
    pub cluster: Cluster,
    pub name: String,
}

impl Kops {
    /// Nothing is made yet. `name` tells it from other tests'.
    pub fn new(name: &str) -> Self {
        let cluster = Cluster::new(name);
        let name = format!("{}.local", cluster.name);
        Self { cluster, name }
    }

    /// The state store's directory.
    pub fn state(&self) -> PathBuf {
        self.cluster.directory.join("state")
    }

    /// Runs a command of kOps on this cluster.
    #[track_caller]
    pub fn run(&self, args: &[&str]) -> Ran {
        let state = format!("file://{}", self.state().display());
        let kubeconfig = format!("KUBECONFIG={}", self.cluster.kubeconfig().display());
        let mut all = vec![kubeconfig.as_str()];
        let binary = binary().display().to_string();
        all.extend([binary.as_str(), "kops", "--state", &state, "--name", &self.name]);
        all.extend_from_slice(args);
        self.cluster.run("env", &all)
    }

    /// The directory of the machines.
    pub fn instances(&self) -> PathBuf {
        self.cluster.directory.join("state-instances").join(&self.name)
    }

    /// A pid that stands in a file of the fleet's.
    pub fn pid(&self, file: &str) -> Option<String> {
        let text = fs::read_to_string(self.instances().join(file)).ok()?;
        text.split_whitespace().next().map(str::to_owned)
    }

    /// Kills what stands in a file of the fleet's, and waits until something else does.
    #[track_caller]
    pub fn kill_and_wait(&self, file: &str) {
        let before = self.pid(file).unwrap_or_else(|| panic!("no pid in {file}"));
        self.cluster.run("kill", &["-9", &before]).ok();
        until(&format!("another process in {file}"), || match self.pid(file) {
            Some(pid) if pid != before => Ok(()),
            other => Err(format!("{other:?}")),
        });
    }

    /// Which machine has a name now.
    pub fn machine(&self, name: &str) -> String {
        let path = self.instances().join("machines").join(name).join("document/machine.json");
        let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let tree: serde_json::Value =
            serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        tree["id"].as_str().expect("an id").to_owned()
    }

    /// Waits until it is as it is to be.
    #[track_caller]
    pub fn is_valid(&self) {
        self.run(&["validate", "cluster", "--wait", "5m"]).ok();
    }
}

impl Drop for Kops {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.cluster.diagnose();
        }
        // However the test ended; what it complains about is the test's to tell.
        drop(self.run(&["delete", "cluster", "--yes"]));
    }
}
