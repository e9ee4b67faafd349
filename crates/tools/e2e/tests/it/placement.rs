//! Exclusive CPUs of a Pod, which it keeps when the kubelet is killed.

use std::{fs, path::PathBuf};

use e2e::{Cluster, shared_alone};

/// Restores the kubelet's configuration when it is dropped.
struct ConfigGuard<'a> {
    cluster: &'a Cluster,
    path: PathBuf,
    before: String,
}

impl ConfigGuard<'_> {
    /// Restarts the kubelet with another configuration. As upstream, a changed policy needs the state file deleted.
    fn start_with(&self, text: &str) {
        fs::write(&self.path, text).unwrap();
        self.cluster.kill("agent");
        fs::remove_file(self.path.with_file_name("cpu_manager_state")).unwrap();
    }
}

impl Drop for ConfigGuard<'_> {
    fn drop(&mut self) {
        let _ = fs::write(&self.path, &self.before);
        let _ = fs::remove_file(self.path.with_file_name("cpu_manager_state"));
        // At the end of a successful test the supervisor is about to restart the kubelet anyway.
        if std::thread::panicking() && self.cluster.root().join("run/agent.pid").exists() {
            self.cluster.kill("agent");
        }
    }
}

/// Returns a critical Pod, which only fails admission for lack of CPUs.
fn pod(name: &str, node: &str, amounts: &str) -> String {
    let spec = format!(
        r#"
  nodeName: {node}
  priorityClassName: system-node-critical
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: box:1
    command: [sh, -c, "exec sleep 100000"]
    resources: {{limits: {{{amounts}}}}}
"#
    );
    e2e::pod(name, &spec)
}

#[test]
fn guaranteed_pod_keeps_exclusive_cpus_across_kubelet_restarts() {
    let s = shared_alone("placement");
    let path = s.cluster.root().join("var/lib/kubelet/config.yaml");
    let before = fs::read_to_string(&path).unwrap();
    let kubelet = ConfigGuard { cluster: s.cluster, path, before };
    let policy = "\ncpuManagerPolicy: static\nreservedSystemCPUs: '0'\n";
    kubelet.start_with(&format!("{}{policy}", kubelet.before));
    let state = kubelet.path.with_file_name("cpu_manager_state");
    let is_static = || fs::read_to_string(&state).is_ok_and(|text| text.contains("static"));
    e2e::until("the kubelet has the policy", || {
        if is_static() { Ok(()) } else { Err("the state file does not name it".to_owned()) }
    });

    let last = std::thread::available_parallelism().unwrap().get() - 1;
    let others = if last == 1 { "1".to_owned() } else { format!("1-{last}") };
    let node = s.kubectl("get node -o jsonpath={.items[0].metadata.name}").ok();
    s.apply(&pod("shares", &node, "memory: 20Mi"));
    s.apply(&pod("own", &node, &format!("memory: 20Mi, cpu: {last}")));
    let runs_on = |name: &str, cpus: &str| {
        let line = format!("exec {name} -- grep Cpus_allowed_list /proc/self/status");
        s.until(&line, |text| text.trim() == format!("Cpus_allowed_list:\t{cpus}"));
    };
    runs_on("own", &others);
    runs_on("shares", "0");
    s.cluster.kill("agent");
    s.apply(&pod("late", &node, "memory: 20Mi, cpu: 1"));
    s.until("get pod late -o jsonpath={.status.reason}:{.status.message}", |text| {
        text == "UnexpectedAdmissionError:Pod was rejected: Allocate failed due to not enough cpus available to satisfy request: requested=1, available=0, which is unexpected"
    });
    runs_on("own", &others);
    runs_on("shares", "0");
    s.kubectl("delete pod own").ok();
    runs_on("shares", &format!("0-{last}"));
    // The kubelet does not start with a state file of another policy.
    fs::write(&kubelet.path, &kubelet.before).unwrap();
    s.cluster.kill("agent");
    let log = s.cluster.root().join("var/log/agent.log");
    let words = "configured policy \"none\" differs from state checkpoint policy \"static\", please drain this node and delete the CPU manager checkpoint file";
    e2e::until("the kubelet refuses to start", || {
        let log = fs::read_to_string(&log).unwrap();
        if log.contains(words) { Ok(()) } else { Err("the log has no such line".to_owned()) }
    });
    drop(kubelet);
    e2e::until("the kubelet runs as before", || {
        let none = fs::read_to_string(&state).is_ok_and(|text| text.contains("none"));
        if none { Ok(()) } else { Err("the state file does not name the policy".to_owned()) }
    });
}
