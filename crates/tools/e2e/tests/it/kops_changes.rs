//! Changes of running clusters of kOps with the cloud `local`: more control planes, and other keypairs.

use std::{
    fs,
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    thread,
};

use e2e::{Kops, Output, lock_machine, until};
use parking_lot::Mutex;

const ROLL: [&str; 9] = [
    "rolling-update",
    "cluster",
    "--yes",
    "--post-drain-delay",
    "0s",
    "--node-interval",
    "1s",
    "--control-plane-interval",
    "1s",
];

/// Replaces each keypair of a cluster. A step that comes too early is refused, because a machine would be cut off.
#[test]
#[ignore = "takes minutes: cargo xtask test --full"]
fn rotates_all_keypairs_step_by_step() {
    let _turn = lock_machine();
    let kops = Kops::new("kops-keys");
    kops.run(&["create", "cluster", "--cloud", "local", "--yes"]).ok();
    let before = fs::read_to_string(kops.cluster.kubeconfig()).expect("a kubeconfig");
    let keysets = |count: usize| {
        let shown = kops.run(&["get", "keypairs"]).ok();
        assert_eq!(shown.lines().count(), 1 + count, "{shown}");
    };
    keysets(6);
    kops.run(&["create", "keypair", "all"]).ok();
    let early = kops.run(&["promote", "keypair", "all"]).refused();
    assert!(early.contains("does not trust keypair"), "{early}");
    kops.run(&["update", "cluster", "--yes"]).ok();
    let early = kops.run(&["promote", "keypair", "all"]).refused();
    assert!(early.contains("machine control-plane-local-1 does not trust"), "{early}");
    kops.run(&ROLL).ok();
    keysets(12);

    kops.run(&["promote", "keypair", "all"]).ok();
    kops.run(&["update", "cluster", "--yes"]).ok();
    let early = kops.run(&["distrust", "keypair", "all"]).refused();
    assert!(early.contains("machine control-plane-local-1 uses keypair"), "{early}");
    // A machine that is killed meanwhile gets the new keypairs.
    kops.kill_and_wait("machines/nodes-local-1/machine.pid");
    kops.wait_until_valid();
    kops.run(&ROLL).ok();
    kops.wait_until_valid();

    // The worker was replaced before the control plane, so its Pods may have tokens of the old key.
    let early = kops.run(&["distrust", "keypair", "all"]).refused();
    assert!(early.contains("Pods of machine nodes-local-1 may have tokens"), "{early}");
    let again = ["--force", "--instance-group-roles", "node"];
    kops.run(&[&ROLL[..], &again].concat()).ok();
    kops.run(&["distrust", "keypair", "all"]).ok();
    kops.run(&["update", "cluster", "--yes"]).ok();
    kops.run(&ROLL).ok();
    kops.wait_until_valid();
    keysets(6);
    let none = kops.run(&["rolling-update", "cluster"]).ok();
    assert!(none.contains("No rolling-update required"), "{none}");

    // The old authority is trusted by nothing, and the new one by everything.
    let old = kops.cluster.directory.join("old.kubeconfig").display().to_string();
    fs::write(&old, before).expect("a kubeconfig");
    let refused = kops.cluster.run("kubectl", &["--kubeconfig", &old, "get", "nodes"]);
    assert!(refused.stderr.contains("certificate"), "{refused}");
    let token = kops.cluster.kubectl(&["create", "token", "default"]).ok();
    let server = "{.clusters[0].cluster.server}";
    let server = kops
        .cluster
        .kubectl(&["config", "view", "--raw", "-o", &format!("jsonpath={server}")])
        .ok();
    // The kubeconfig's certificate would come before the token.
    let alone = ["--kubeconfig=/dev/null", "--insecure-skip-tls-verify", "--server", server.trim()];
    let who = [&alone[..], &["--token", token.trim(), "auth", "whoami"]].concat();
    let who = kops.cluster.kubectl(&who).ok();
    assert!(who.contains("system:serviceaccount:default:default"), "{who}");
    restarts_system_pods(&kops);
    kops.kill_and_wait("machines/control-plane-local-1/machine.pid");
    kops.wait_until_valid();
}

/// Replaces Pods that use tokens of service accounts.
fn restarts_system_pods(kops: &Kops) {
    let kubectl =
        |args: &[&str]| kops.cluster.kubectl(&[&["--namespace", "kube-system"], args].concat());
    kubectl(&["rollout", "restart", "deployment/coredns"]).ok();
    kubectl(&["rollout", "status", "deployment/coredns", "--timeout=120s"]).ok();
}

/// Adds two control planes to a running cluster while a client writes. Their etcd members join one after the other.
#[test]
#[ignore = "takes minutes: cargo xtask test --full"]
fn grows_to_three_control_planes_under_writes() {
    let _turn = lock_machine();
    let kops = Kops::new("kops-grow");
    kops.run(&["create", "cluster", "--cloud", "local", "--yes"]).ok();
    let writer = Writer::default();
    writer.during(&kops, || {
        add_control_planes(&kops);
        kops.run(&["update", "cluster", "--yes"]).ok();
    });
    writer.assert_has_all(&kops);
    // The cluster survives the loss of any one, also of the first.
    for machine in ["control-plane-local-1", "control-plane-b-1"] {
        kops.kill_and_wait(&format!("machines/{machine}/machine.pid"));
        until("an answer of the remaining API servers", || {
            let read = ["get", "configmap", "written-0", "--request-timeout", "5s"];
            kops.cluster.kubectl(&read).ok_if(|_| true)
        });
        kops.wait_until_valid();
    }
    // The worker still names the first control plane only.
    kops.run(&ROLL).ok();
    let fewer = kops.run(&["delete", "ig", "control-plane-b", "--yes"]).refused();
    assert!(fewer.contains("control-plane-b"), "{fewer}");
}

/// Rotates the authorities of three control planes while a client writes.
#[test]
#[ignore = "takes minutes: cargo xtask test --full"]
fn rotates_authorities_of_three_control_planes_under_writes() {
    let _turn = lock_machine();
    let kops = Kops::new("kops-three");
    kops.run(&["create", "cluster", "--cloud", "local", "--control-plane-count", "3", "--yes"])
        .ok();
    let authorities =
        ["kubernetes-ca", "apiserver-aggregator-ca", "etcd-clients-ca", "etcd-peers-ca-main"];
    let each = |action: &str| {
        for keyset in authorities {
            kops.run(&[action, "keypair", keyset]).ok();
        }
        kops.run(&["update", "cluster", "--yes"]).ok();
        kops.run(&ROLL).ok();
    };
    let writer = Writer::default();
    writer.during(&kops, || ["create", "promote", "distrust"].into_iter().for_each(each));
    writer.assert_has_all(&kops);
    kops.wait_until_valid();
}

/// Stores two more groups of control planes, and their etcd members.
fn add_control_planes(kops: &Kops) {
    let group = kops.run(&["get", "ig", "control-plane-local", "-o", "yaml"]).ok();
    let cluster = kops.run(&["get", "cluster", "-o", "yaml"]).ok();
    let own = "    - instanceGroup: control-plane-local\n      name: l\n";
    assert!(cluster.contains(own), "{cluster}");
    let member = |name: &str| {
        own.replace("control-plane-local", &format!("control-plane-{name}"))
            .replace("name: l\n", &format!("name: {name}\n"))
    };
    let cluster = cluster.replace(own, &[own, &member("b"), &member("c")].concat());
    let of = |name: &str| group.replace("control-plane-local", &format!("control-plane-{name}"));
    let file = kops.cluster.directory.join("more.yaml");
    fs::write(&file, [cluster, of("b"), of("c")].join("---\n")).expect("objects");
    kops.run(&["replace", "--force", "-f", &file.display().to_string()]).ok();
}

/// A client that creates ConfigMaps one after the other, each until it is acknowledged.
#[derive(Default)]
struct Writer {
    written: AtomicU32,
    problems: Mutex<Vec<String>>,
}

impl Writer {
    /// Writes while `work` runs. No request is ever rejected for its certificate or the server's.
    fn during(&self, kops: &Kops, work: impl FnOnce()) {
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let writes = scope.spawn(|| self.write_until(kops, &done));
            let end = StopOnDrop(&done);
            work();
            drop(end);
            writes.join().expect("the writer");
        });
        let problems = self.problems.lock();
        let rejections: Vec<_> = problems
            .iter()
            .filter(|text| ["Unauthorized", "x509", "certificate"].iter().any(|w| text.contains(w)))
            .collect();
        println!("{:?} writes, {} repeated", self.written, problems.len());
        assert!(rejections.is_empty(), "{rejections:?}");
    }

    fn write_until(&self, kops: &Kops, done: &AtomicBool) {
        while !done.load(Ordering::Relaxed) {
            let name = format!("written-{}", self.written.load(Ordering::Relaxed));
            until("a write", || {
                let ran =
                    kops.cluster.kubectl(&["create", "configmap", &name, "--request-timeout=10s"]);
                if is_written(&ran) {
                    return Ok(());
                }
                self.problems.lock().push(ran.to_string());
                Err(ran.to_string())
            });
            self.written.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Asserts that no acknowledged write is lost.
    fn assert_has_all(&self, kops: &Kops) {
        let kept = kops.cluster.kubectl(&["get", "configmaps", "-o", "name"]).ok();
        for n in 0..self.written.load(Ordering::Relaxed) {
            let name = format!("configmap/written-{n}");
            assert!(kept.lines().any(|line| line == name), "{name} is lost");
        }
    }
}

/// Reports whether a write is acknowledged. The answer of an earlier attempt may have been lost.
fn is_written(ran: &Output) -> bool {
    ran.code == Some(0) || ran.stderr.contains("already exists")
}

/// Stops the writer when it is dropped, also during a panic.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
