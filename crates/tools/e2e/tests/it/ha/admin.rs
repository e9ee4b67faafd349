//! An administrator's client that uses a node's balancer, with a continuous writer.

use std::{
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use e2e::{Host, Output, until};

/// Runs kubectl on a node, through the node's balancer.
pub(super) struct Admin<'a> {
    pub(super) host: &'a Host<'a>,
    pub(super) kubeconfig: String,
}

impl Admin<'_> {
    pub(super) fn kubectl(&self, line: &str) -> Output {
        self.kubectl_with(line, "")
    }

    pub(super) fn kubectl_with(&self, line: &str, input: &str) -> Output {
        self.run(&line.split_whitespace().collect::<Vec<_>>(), input)
    }

    pub(super) fn run(&self, words: &[&str], input: &str) -> Output {
        let mut args = vec!["--kubeconfig", &self.kubeconfig, "--request-timeout=10s"];
        args.extend(["--server=https://127.0.0.1:7445", "--tls-server-name=kubernetes"]);
        args.extend(words);
        self.host.kubectl_with(&args, input)
    }

    /// Waits until a kubectl command succeeds and prints what `wanted` accepts.
    #[track_caller]
    pub(super) fn until(&self, what: &str, line: &str, wanted: impl Fn(&str) -> bool) -> String {
        until(what, || self.kubectl(line).ok_if(&wanted))
    }

    /// Waits until these API servers, and no others, are the endpoints.
    #[track_caller]
    pub(super) fn wait_for_servers(&self, wanted: &[&str]) {
        let line = "get endpoints kubernetes -o jsonpath={.subsets[*].addresses[*].ip}";
        self.until("the API servers as endpoints", line, |found| {
            let mut found: Vec<&str> = found.split_whitespace().collect();
            found.sort_unstable();
            found == wanted
        });
    }

    /// Creates a ConfigMap. Repeats until the write is acknowledged.
    #[track_caller]
    pub(super) fn write(&self, name: &str) {
        until("a write", || {
            let ran = self.kubectl(&format!("create configmap {name}"));
            // The answer of an earlier attempt may have been lost.
            let there = ran.code == Some(0) || ran.stderr.contains("already exists");
            if there { Ok(()) } else { Err(ran.to_string()) }
        });
    }

    /// Creates ConfigMaps one after the other until `done` is set. Returns the longest time until an acknowledgement.
    fn write_until(&self, done: &AtomicBool, written: &AtomicU32) -> Duration {
        let mut longest = Duration::ZERO;
        while !done.load(Ordering::Relaxed) {
            let (started, n) = (Instant::now(), written.load(Ordering::Relaxed));
            self.write(&format!("written-{n}"));
            written.store(n + 1, Ordering::Relaxed);
            longest = longest.max(started.elapsed());
        }
        longest
    }

    /// Runs `during` while a thread writes. `during` gets a function that waits for a number of further writes.
    pub(super) fn while_writing(
        &self,
        what: &str,
        written: &AtomicU32,
        during: impl FnOnce(&dyn Fn(u32)),
    ) {
        let (done, before) = (AtomicBool::new(false), written.load(Ordering::Relaxed));
        let longest = thread::scope(|scope| {
            let writer = scope.spawn(|| self.write_until(&done, written));
            let end = StopOnDrop(&done);
            during(&|n| {
                let goal = written.load(Ordering::Relaxed) + n;
                until("more writes", || {
                    let now = written.load(Ordering::Relaxed);
                    if now >= goal { Ok(()) } else { Err(format!("{now} of {goal}")) }
                });
            });
            drop(end);
            writer.join().expect("the writer")
        });
        let count = written.load(Ordering::Relaxed) - before;
        println!("{what}: {count} writes, the longest {longest:?}");
    }

    /// Asserts that no acknowledged write is lost.
    #[track_caller]
    pub(super) fn assert_has_all(&self, written: &AtomicU32) {
        let kept = self.kubectl("get configmaps -o name").ok();
        for n in 0..written.load(Ordering::Relaxed) {
            let name = format!("configmap/written-{n}");
            assert!(kept.lines().any(|l| l == name), "{name} was acknowledged and is lost: {kept}");
        }
    }
}

/// Stops the writer when it is dropped, also during a panic.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
