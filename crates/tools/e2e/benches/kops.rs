//! Measures how fast kOps creates and replaces machines on this machine: `cargo xtask bench kops`.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use e2e::{Kops, lock_machine};

const WORKER: &str = "nodes-local-1";
const CONTROL_PLANE: &str = "control-plane-local-1-1";
/// The groups of a cluster whose update changes nothing, beside its own two.
const MORE_GROUPS: usize = 97;

fn main() {
    let _turn = lock_machine();
    let small = small_cluster();
    let kops = Kops::new("bench-kops");
    let six = timed(|| kops.create_with_backups("3", "3"));
    let kill_and_recover = |machine: &str| {
        timed(|| {
            kops.kill_and_wait(&format!("machines/{machine}/machine.pid"));
            kops.wait_until_valid();
        })
    };
    let worker = kill_and_recover(WORKER);
    // Send requests to the API while `work` runs.
    let with_requests = |work: &dyn Fn() -> Duration| {
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let requests = scope.spawn(|| longest_gap(&kops, &done));
            let time = work();
            done.store(true, Ordering::Relaxed);
            (time, requests.join().unwrap_or_default())
        })
    };
    let (control_plane, gap) = with_requests(&|| kill_and_recover(CONTROL_PLANE));
    let (rolled, roll_gap) = with_requests(&|| {
        timed(|| {
            let pauses = ["--node-interval", "1s", "--control-plane-interval", "1s"];
            let roll =
                ["rolling-update", "cluster", "--yes", "--force", "--post-drain-delay", "0s"];
            kops.run(&[&roll[..], &pauses].concat()).ok();
        })
    });
    let backup = kops.wait_for_backup();
    let restored = timed(|| kops.restore(&backup));
    for (what, time) in [
        ("create --yes, 1+2, to valid", small.created),
        ("create and update --yes, 3+3, to valid", six),
        ("killed worker, to valid", worker),
        ("killed control plane of three, to valid", control_plane),
        ("the longest time without an answer meanwhile", gap),
        ("rolling update of all six machines", rolled),
        ("the longest time without an answer meanwhile", roll_gap),
        ("restore of a backup, to valid", restored),
        ("update without changes, 2 groups", small.few),
        ("update without changes, 99 groups", small.many),
    ] {
        println!("{what:<48} {:>8.2} s", time.as_secs_f64());
    }
}

fn timed(work: impl FnOnce()) -> Duration {
    let started = Instant::now();
    work();
    started.elapsed()
}

/// The times of a cluster of one control plane and two workers.
struct SmallCluster {
    created: Duration,
    /// An update of two groups that changes nothing.
    few: Duration,
    /// An update of many groups that changes nothing.
    many: Duration,
}

/// Creates a cluster of one control plane and two workers, and measures updates without changes.
fn small_cluster() -> SmallCluster {
    let kops = Kops::new("bench-small");
    let create = ["create", "cluster", "--cloud", "local", "--node-count", "2", "--yes"];
    let created = timed(|| drop(kops.run(&create).ok()));
    let update = || {
        let shown = kops.run(&["update", "cluster"]).ok();
        assert!(shown.contains("No changes need to be applied"), "{shown}");
    };
    let few = timed(update);
    let group = kops.run(&["get", "ig", "nodes-local", "-o", "yaml"]).ok();
    let group = group.replace("Size: 2", "Size: 0");
    let groups = (0..MORE_GROUPS).map(|n| group.replace("nodes-local", &format!("empty-{n}")));
    let file = kops.cluster.directory.join("groups.yaml");
    std::fs::write(&file, groups.collect::<Vec<_>>().join("---\n")).expect("groups");
    kops.run(&["create", "-f", &file.display().to_string()]).ok();
    kops.run(&["update", "cluster", "--yes"]).ok();
    SmallCluster { created, few, many: timed(update) }
}

/// Returns the longest time between two answers of the API until `done` is set.
fn longest_gap(kops: &Kops, done: &AtomicBool) -> Duration {
    let (mut last, mut longest) = (Instant::now(), Duration::ZERO);
    while !done.load(Ordering::Relaxed) {
        let path = "/api/v1/namespaces/kube-system";
        let answer = kops.cluster.kubectl(&["get", "--raw", path, "--request-timeout", "2s"]);
        if answer.code == Some(0) {
            longest = longest.max(last.elapsed());
            last = Instant::now();
        }
    }
    longest
}
