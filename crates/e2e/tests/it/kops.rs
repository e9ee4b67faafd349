//! kOps' cloud local: from flags to a validated cluster, whose machines come back, and of which deletion leaves nothing.

use std::{fs, path::PathBuf};

use e2e::{Cluster, Ran, alone, until};

/// The store, and beside it the machines.
struct Place {
    cluster: Cluster,
    name: String,
}

impl Place {
    fn new() -> Self {
        let cluster = Cluster::new("kops");
        let name = format!("{}.local", cluster.name);
        Self { cluster, name }
    }

    fn state(&self) -> PathBuf {
        self.cluster.directory.join("state")
    }

    fn kops(&self, args: &[&str]) -> Ran {
        let state = format!("file://{}", self.state().display());
        let kubeconfig = format!("KUBECONFIG={}", self.cluster.kubeconfig().display());
        let mut all = vec![kubeconfig.as_str()];
        let binary = e2e::binary().display().to_string();
        all.extend([binary.as_str(), "kops", "--state", &state, "--name", &self.name]);
        all.extend_from_slice(args);
        self.cluster.run("env", &all)
    }

    fn instances(&self) -> PathBuf {
        self.cluster.directory.join("state-instances").join(&self.name)
    }

    /// The pid of a machine's first process.
    fn first_process(&self, machine: &str) -> Option<String> {
        let path = self.instances().join("machines").join(machine).join("machine.pid");
        let text = fs::read_to_string(path).ok()?;
        text.split_whitespace().next().map(str::to_owned)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // However the test ended; what it complains about is the test's to tell.
        drop(self.kops(&["delete", "cluster", "--yes"]));
    }
}

/// It takes minutes: a control plane and a worker, each with a container runtime, and a replacement.
#[test]
#[ignore = "it takes minutes"]
fn a_cluster_is_made_by_flags_mends_itself_and_leaves_nothing() {
    let _turn = alone();
    let place = Place::new();
    place.kops(&["create", "cluster", "--cloud", "local"]).ok();
    let preview = place.kops(&["update", "cluster"]).ok();
    assert!(
        preview.contains("Must specify --yes") && preview.contains("InstanceGroup/nodes-local"),
        "{preview}"
    );
    assert!(!place.instances().exists(), "a preview made something");
    let made = place.kops(&["update", "cluster", "--yes"]).ok();
    assert!(made.contains("is ready"), "{made}");
    // Nothing is left to do.
    let again = place.kops(&["update", "cluster"]).ok();
    assert!(again.contains("No changes need to be applied"), "{again}");

    let before = place.first_process("nodes-local-1").expect("a machine");
    place.cluster.run("kill", &["-9", &before]).ok();
    until("another machine", || match place.first_process("nodes-local-1") {
        Some(pid) if pid != before => Ok(()),
        other => Err(format!("{other:?}")),
    });
    place.kops(&["validate", "cluster", "--wait", "5m"]).ok();

    place.kops(&["delete", "cluster", "--yes"]).ok();
    assert!(!place.instances().exists() && !place.state().join(&place.name).exists());
    let links = place.cluster.run("ip", &["-o", "link"]).ok();
    assert!(!links.contains("kops-"), "{links}");
}
