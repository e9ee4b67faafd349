//! An administrator who goes by a node's balancer, and writes without a pause.

use std::{
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use e2e::{Host, Ran, until};

pub(super) struct Admin<'a> {
    pub(super) host: &'a Host<'a>,
    pub(super) kubeconfig: String,
}

impl Admin<'_> {
    pub(super) fn kubectl(&self, line: &str) -> Ran {
        self.kubectl_with(line, "")
    }

    pub(super) fn kubectl_with(&self, line: &str, input: &str) -> Ran {
        self.run(&line.split_whitespace().collect::<Vec<_>>(), input)
    }

    pub(super) fn run(&self, words: &[&str], input: &str) -> Ran {
        let mut args = vec!["--kubeconfig", &self.kubeconfig, "--request-timeout=10s"];
        args.extend(["--server=https://127.0.0.1:7445", "--tls-server-name=kubernetes"]);
        args.extend(words);
        self.host.kubectl_with(&args, input)
    }

    /// Waits until a command says what is wanted.
    #[track_caller]
    pub(super) fn until(&self, what: &str, line: &str, wanted: impl Fn(&str) -> bool) -> String {
        until(what, || self.kubectl(line).when(&wanted))
    }

    #[track_caller]
    pub(super) fn servers(&self, wanted: &[&str]) {
        let line = "get endpoints kubernetes -o jsonpath={.subsets[*].addresses[*].ip}";
        self.until("the API servers as endpoints", line, |found| {
            let mut found: Vec<&str> = found.split_whitespace().collect();
            found.sort_unstable();
            found == wanted
        });
    }

    #[track_caller]
    pub(super) fn written(&self, name: &str) {
        until("a write", || {
            let ran = self.kubectl(&format!("create configmap {name}"));
            // One whose answer was lost is there.
            let there = ran.code == Some(0) || ran.stderr.contains("already exists");
            if there { Ok(()) } else { Err(ran.to_string()) }
        });
    }

    /// Writes one object after the other, each until it is acknowledged; tells how long the longest took.
    fn write_on(&self, done: &AtomicBool, written: &AtomicU32) -> Duration {
        let mut longest = Duration::ZERO;
        while !done.load(Ordering::Relaxed) {
            let (started, n) = (Instant::now(), written.load(Ordering::Relaxed));
            self.written(&format!("written-{n}"));
            written.store(n + 1, Ordering::Relaxed);
            longest = longest.max(started.elapsed());
        }
        longest
    }

    /// Runs `during` beside a writer. `during` gets a function that waits for a number of further writes.
    pub(super) fn writing(
        &self,
        what: &str,
        written: &AtomicU32,
        during: impl FnOnce(&dyn Fn(u32)),
    ) {
        let (done, before) = (AtomicBool::new(false), written.load(Ordering::Relaxed));
        let longest = thread::scope(|scope| {
            let writer = scope.spawn(|| self.write_on(&done, written));
            let end = Done(&done);
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

    /// Nothing that was acknowledged is lost.
    #[track_caller]
    pub(super) fn has_all(&self, written: &AtomicU32) {
        let kept = self.kubectl("get configmaps -o name").ok();
        for n in 0..written.load(Ordering::Relaxed) {
            let name = format!("configmap/written-{n}");
            assert!(kept.lines().any(|l| l == name), "{name} was acknowledged and is lost: {kept}");
        }
    }
}

/// Has the writer stop, also where what is done meanwhile fails.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
