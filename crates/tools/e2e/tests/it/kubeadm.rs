//! kubeadm's workflow on several machines: `init`, `join` and `reset`, with the kubelet, static Pods and real etcd.

use std::thread;

use e2e::{Host, Machines, connect, init, is_etcd_installed, ready, share_machine, until};

#[test]
fn machines_become_a_cluster_and_reset_leaves_nothing() {
    let _turn = share_machine();
    if !is_etcd_installed() {
        return;
    }
    let machines = Machines::new("kubeadm");
    let [first, worker, second] =
        [("alpha", 1), ("beta", 2), ("gamma", 3)].map(|(name, n)| machines.start(name, n));
    let before = [traces(&first), traces(&worker)];
    // Prepare the machine. No registry is contacted, because no registry has our images.
    let pulled = first.windlass("config images pull").ok();
    assert!(
        pulled.contains("[config/images] Pulled windlass.local/kube-apiserver:v1.36.2"),
        "{pulled}"
    );
    let join =
        init(&first, "controlPlaneEndpoint: 192.0.2.1:6443\nsnapshots: {interval: 5s, keep: 2}");
    // The other machines run the commands that init prints.
    thread::scope(|scope| {
        for (host, line) in [(&worker, &join.worker), (&second, &join.control_plane)] {
            scope.spawn(move || host.windlass(line).ok());
        }
    });
    connect(&first, &[&first, &worker, &second]);
    ready(&first, &[&first, &worker, &second]);
    first.kubectl("-n kube-system rollout status deployment/coredns --timeout=60s").ok();
    first.kubectl("-n kube-system rollout status daemonset/kube-proxy --timeout=60s").ok();

    // A Pod on the worker finds the API by cluster DNS, and its log is readable from another machine.
    worker.build_box();
    first.kubectl("run box --image=box:1 --restart=Never").ok();
    first.kubectl("wait pod/box --for=condition=Ready --timeout=60s").ok();
    until("the Pod's log", || first.kubectl("logs box").ok_if(|log| log.contains("here is box")));
    until("an answer of cluster DNS", || {
        let ran = first.kubectl("exec box -- nslookup kubernetes.default.svc.cluster.local");
        if ran.stdout.contains("10.96.0.1") { Ok(()) } else { Err(ran.to_string()) }
    });

    // The kubelet reports its static Pods a moment after its Node is Ready.
    until("two etcd Pods, listed by the second control plane", || {
        let ran = second.kubectl("-n kube-system get pods -l component=etcd -o name");
        ran.ok_if(|text| text.lines().count() == 2)
    });
    assert_eq!(members(&second), ["alpha", "gamma"]);
    snapshots_are_taken(&first);

    second.windlass("reset --force").ok();
    first.kubectl("delete node gamma").ok();
    // Its mirror Pods are removed after the 40 s that upstream waits, so the members are counted and not these.
    assert_eq!(members(&first), ["alpha"]);
    first.kubectl("create configmap written-by-one --from-literal=a=b").ok();

    // The kubelet is restarted, and Pods are not.
    let started =
        first.kubectl("get pod box -o jsonpath={.status.containerStatuses[0].containerID}").ok();
    worker.run("sh", &["-c", "kill -9 $(cut -d' ' -f1 /run/windlass/kubelet.pid)"]).ok();
    until("a log through the restarted kubelet", || {
        let ran = first.kubectl("logs box");
        if ran.stdout.contains("here is box") { Ok(()) } else { Err(ran.to_string()) }
    });
    let after =
        first.kubectl("get pod box -o jsonpath={.status.containerStatuses[0].containerID}").ok();
    assert_eq!(started, after);

    for (host, before) in [&worker, &first].into_iter().zip(before.into_iter().rev()) {
        let output = host.windlass("reset --force").ok();
        if host.name == first.name {
            snapshots_are_kept(&first, &output);
        }
        let now = traces(host);
        let left: Vec<&str> =
            now.lines().filter(|line| !before.lines().any(|b| b == *line)).collect();
        assert!(left.is_empty(), "{} keeps {left:#?}", host.name);
    }
}

/// Returns the names of etcd's members, from the etcd on this machine.
fn members(host: &Host<'_>) -> Vec<String> {
    let script = "cd /etc/kubernetes/pki/etcd && exec curl -sS --fail --max-time 10 --cacert ca.crt \
                  --cert healthcheck-client.crt --key healthcheck-client.key -d '{}' \
                  https://127.0.0.1:2379/v3/cluster/member/list";
    let text = host.run("sh", &["-c", script]).ok();
    let list: serde_json::Value =
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
    let members = list["members"].as_array().into_iter().flatten();
    let mut names: Vec<_> =
        members.map(|member| member["name"].as_str().unwrap_or_default().to_owned()).collect();
    names.sort_unstable();
    names
}

/// Asserts that two snapshots are kept and that the newest one is readable.
fn snapshots_are_taken(host: &Host<'_>) {
    let directory = "/var/lib/windlass/snapshots";
    let newest = until("a second snapshot", || {
        let ran = host.run("ls", &[directory]);
        match ran.stdout.lines().collect::<Vec<_>>()[..] {
            [_, newest] => Ok(newest.to_owned()),
            _ => Err(ran.to_string()),
        }
    });
    let status = host.windlass(&format!("snapshot status {directory}/{newest}"));
    // A newer snapshot may have replaced this one meanwhile.
    assert!(
        status.stdout.contains("keys at revision") || status.stderr.contains("o such file"),
        "{status}"
    );
}

/// Asserts that `reset` keeps the snapshots, from which a cluster can be restored, and prints how to delete them.
fn snapshots_are_kept(host: &Host<'_>, output: &str) {
    let command = "rm -r /var/lib/windlass/snapshots";
    assert!(output.contains(command), "{output}");
    assert_ne!(host.run("ls", &["/var/lib/windlass/snapshots"]).ok(), "");
    host.run("sh", &["-c", command]).ok();
}

/// Lists objects that a cluster may leave on a machine: interfaces, rules, mounts, cgroups, files and processes.
pub(crate) fn traces(host: &Host<'_>) -> String {
    // Exclude the CNI links and routes of `connect`, the lock of xtables, and the cluster that other tests share.
    let script = "ip -o link | cut -d: -f2; nft list ruleset; cut -d' ' -f5 /proc/self/mountinfo | grep -v '^/tmp/windlass-e2e-'; \
                  find /sys/fs/cgroup -type d; \
                  find /etc/kubernetes /etc/cni /var/lib/kubelet /var/lib/etcd /var/lib/cni /var/lib/windlass /var/log/pods \
                    /var/log/containers /var/log/windlass /run -not -path '/run/containerd/*' -not -path /run/xtables.lock -not -path /var/lib/cni/results; \
                  own=$(readlink /proc/self/ns/uts); \
                  for p in /proc/[0-9]*; do \
                    if [ \"$(readlink $p/ns/uts)\" = \"$own\" ]; then tr '\\0' ' ' <$p/cmdline; echo; fi; \
                  done 2>/dev/null | grep '[k]eep-kubelet\\|[k]ubelet --\\|[s]him\\|^kube-\\|^etcd'";
    host.run("sh", &["-c", script]).stdout
}
