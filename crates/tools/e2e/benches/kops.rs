//! Measures how fast kOps creates and replaces machines on this machine: `cargo xtask bench kops`.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use e2e::{Kops, lock_machine};

const WORKER: &str = "nodes-local-1";
const CONTROL_PLANE: &str = "control-plane-local-1-1";

fn main() {
    let _turn = lock_machine();
    let kops = Kops::new("bench-kops");
    let timed = |work: &dyn Fn()| {
        let started = Instant::now();
        work();
        started.elapsed()
    };
    let three = ["--control-plane-count", "3", "--node-count", "1", "--yes"];
    let create = [&["create", "cluster", "--cloud", "local"], &three[..]].concat();
    let created = timed(&|| drop(kops.run(&create).ok()));
    let kill_and_recover = |machine: &str| {
        timed(&|| {
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
        timed(&|| {
            let roll =
                ["rolling-update", "cluster", "--yes", "--force", "--post-drain-delay", "0s"];
            kops.run(&roll).ok();
        })
    });
    for (what, time) in [
        ("create --yes, three control planes, to valid", created),
        ("killed worker, to valid", worker),
        ("killed control plane of three, to valid", control_plane),
        ("the longest time without an answer meanwhile", gap),
        ("rolling update of all four machines", rolled),
        ("the longest time without an answer meanwhile", roll_gap),
    ] {
        println!("{what:<48} {:>8.1} s", time.as_secs_f64());
    }
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
