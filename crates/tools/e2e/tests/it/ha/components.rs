//! Kills each component of a cluster on every machine where it runs.

use std::ops::RangeInclusive;

use e2e::{Host, until};

/// The command line of each component after the path of its program, and the number of machines of five on which it
/// runs.
pub(super) const COMPONENTS: [(&str, RangeInclusive<usize>); 11] = [
    ("kube-apiserver --", 3..=3),
    ("kube-controller-manager --", 3..=3),
    ("kube-scheduler --", 3..=3),
    ("etcd --", 3..=3),
    ("windlass virtual-address ", 3..=3),
    (" kubelet --", 5..=5),
    ("containerd --config ", 5..=5),
    ("kube-proxy --", 5..=5),
    ("windlass network run ", 5..=5),
    ("windlass balancer ", 5..=5),
    ("coredns -conf ", 1..=2),
];

/// Returns the pids of a component on a machine, also in Pods. Processes of other machines are excluded by their
/// cgroup.
fn processes(host: &Host<'_>, component: &str) -> Vec<String> {
    let script = "for p in /proc/[0-9]*; do \
                    tr '\\0' ' ' <$p/cmdline | grep -q \"^[^ ]*$0\" && ! grep -q ':/[.][.]' $p/cgroup && echo ${p#/proc/}; \
                  done 2>/dev/null; true";
    let found = host.run("sh", &["-c", script, component]).ok();
    found.split_whitespace().map(str::to_owned).collect()
}

/// Kills a component of a machine with SIGKILL and waits until it is restarted. Returns `false` if it does not run
/// there.
#[track_caller]
pub(super) fn kill(host: &Host<'_>, component: &str) -> bool {
    let killed = processes(host, component);
    if killed.is_empty() {
        return false;
    }
    let pids: Vec<&str> = killed.iter().map(String::as_str).collect();
    host.run("kill", &[&["-9"], &pids[..]].concat()).ok();
    until(&format!("a restart of {component:?} on {}", host.name), || {
        let now = processes(host, component);
        let again = now.len() >= killed.len() && !now.iter().any(|pid| killed.contains(pid));
        if again { Ok(()) } else { Err(format!("killed {killed:?}, and now {now:?} run")) }
    });
    true
}
