//! Measures how fast kOps creates and replaces machines on this machine: `cargo xtask bench kops`.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use e2e::{Kops, alone};

const WORKER: &str = "nodes-local-1";
const CONTROL_PLANE: &str = "control-plane-local-1-1";

fn main() {
    let _turn = alone();
    let place = Kops::new("bench-kops");
    let timed = |work: &dyn Fn()| {
        let started = Instant::now();
        work();
        started.elapsed()
    };
    let three = ["--control-plane-count", "3", "--node-count", "1", "--yes"];
    let create = [&["create", "cluster", "--cloud", "local"], &three[..]].concat();
    let made = timed(&|| drop(place.run(&create).ok()));
    let back = |machine: &str| {
        timed(&|| {
            place.kill_and_wait(&format!("machines/{machine}/machine.pid"));
            place.is_valid();
        })
    };
    let worker = back(WORKER);
    // Somebody asks all the while.
    let asked = |work: &dyn Fn() -> Duration| {
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| longest_gap(&place, &done));
            let time = work();
            done.store(true, Ordering::Relaxed);
            (time, asked.join().unwrap_or_default())
        })
    };
    let (control_plane, gap) = asked(&|| back(CONTROL_PLANE));
    let (rolled, roll_gap) = asked(&|| {
        timed(&|| {
            let roll =
                ["rolling-update", "cluster", "--yes", "--force", "--post-drain-delay", "0s"];
            place.run(&roll).ok();
        })
    });
    for (what, time) in [
        ("create --yes, three control planes, to valid", made),
        ("killed worker, to valid", worker),
        ("killed control plane of three, to valid", control_plane),
        ("the longest time without an answer meanwhile", gap),
        ("rolling update of all four machines", rolled),
        ("the longest time without an answer meanwhile", roll_gap),
    ] {
        println!("{what:<48} {:>8.1} s", time.as_secs_f64());
    }
}

/// The longest time between two answers of the API until something is done.
fn longest_gap(place: &Kops, done: &AtomicBool) -> Duration {
    let (mut last, mut longest) = (Instant::now(), Duration::ZERO);
    while !done.load(Ordering::Relaxed) {
        let path = "/api/v1/namespaces/kube-system";
        let asked = place.cluster.kubectl(&["get", "--raw", path, "--request-timeout", "2s"]);
        if asked.code == Some(0) {
            longest = longest.max(last.elapsed());
            last = Instant::now();
        }
    }
    longest
}
