//! kubeadm's chain on several machines: `init` and `join`, the kubelet as a service, static Pods, real etcd.

use std::thread;

use e2e::{Host, Machines, beside_others, connect, init, is_etcd_there, ready, until};

#[test]
fn machines_become_a_cluster_and_reset_leaves_nothing() {
    let _turn = beside_others();
    if !is_etcd_there() {
        return;
    }
    let machines = Machines::new("kubeadm");
    let [first, worker, second] =
        [("alpha", 1), ("beta", 2), ("gamma", 3)].map(|(name, n)| machines.start(name, n));
    let before = [traces(&first), traces(&worker)];
    // As a machine is prepared beforehand: no registry is asked, because our images are in none.
    let pulled = first.windlass("config images pull").ok();
    assert!(
        pulled.contains("[config/images] Pulled windlass.local/kube-apiserver:v1.36.2"),
        "{pulled}"
    );
    let join =
        init(&first, "controlPlaneEndpoint: 192.0.2.1:6443\nsnapshots: {interval: 5s, keep: 2}");
    // The others run what init prints.
    thread::scope(|scope| {
        for (host, line) in [(&worker, &join.worker), (&second, &join.control_plane)] {
            scope.spawn(move || host.windlass(line).ok());
        }
    });
    connect(&first, &[&first, &worker, &second]);
    ready(&first, &[&first, &worker, &second]);
    first.kubectl("-n kube-system rollout status deployment/coredns --timeout=60s").ok();
    first.kubectl("-n kube-system rollout status daemonset/kube-proxy --timeout=60s").ok();

    // A Pod on the worker finds the API by cluster DNS, and is heard across machines.
    worker.build_box();
    first.kubectl("run box --image=box:1 --restart=Never").ok();
    first.kubectl("wait pod/box --for=condition=Ready --timeout=60s").ok();
    assert!(first.kubectl("logs box").ok().contains("here is box"));
    until("an answer of cluster DNS", || {
        let ran = first.kubectl("exec box -- nslookup kubernetes.default.svc.cluster.local");
        if ran.stdout.contains("10.96.0.1") { Ok(()) } else { Err(ran.to_string()) }
    });

    // The kubelet reports its static Pods a moment after its Node is Ready.
    until("two members of etcd, seen by the second one's own files", || {
        let ran = second.kubectl("-n kube-system get pods -l component=etcd -o name");
        ran.when(|text| text.lines().count() == 2)
    });
    assert_eq!(members(&second), ["alpha", "gamma"]);
    snapshots_are_taken(&first);

    second.windlass("reset --force").ok();
    first.kubectl("delete node gamma").ok();
    // Its mirror Pods are removed after the 40 s that upstream waits, so the members are counted and not these.
    assert_eq!(members(&first), ["alpha"]);
    first.kubectl("create configmap written-by-one --from-literal=a=b").ok();

    // The kubelet comes back by itself; Pods do not notice.
    let started =
        first.kubectl("get pod box -o jsonpath={.status.containerStatuses[0].containerID}").ok();
    worker.run("sh", &["-c", "kill -9 $(cut -d' ' -f1 /run/windlass/kubelet.pid)"]).ok();
    until("a kubelet again", || {
        let ran = first.kubectl("logs box");
        if ran.stdout.contains("here is box") { Ok(()) } else { Err(ran.to_string()) }
    });
    let after =
        first.kubectl("get pod box -o jsonpath={.status.containerStatuses[0].containerID}").ok();
    assert_eq!(started, after);

    for (host, before) in [&worker, &first].into_iter().zip(before.into_iter().rev()) {
        let said = host.windlass("reset --force").ok();
        if host.name == first.name {
            snapshots_are_kept(&first, &said);
        }
        let now = traces(host);
        let left: Vec<&str> =
            now.lines().filter(|line| !before.lines().any(|b| b == *line)).collect();
        assert!(left.is_empty(), "{} keeps {left:#?}", host.name);
    }
}

/// The names of etcd's members as the etcd on a machine lists them.
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

/// Two at most are kept, and what they hold can be read.
fn snapshots_are_taken(host: &Host<'_>) {
    let directory = "/var/lib/windlass/snapshots";
    let newest = until("a second snapshot", || {
        let ran = host.run("ls", &[directory]);
        match ran.stdout.lines().collect::<Vec<_>>()[..] {
            [_, newest] => Ok(newest.to_owned()),
            _ => Err(ran.to_string()),
        }
    });
    let told = host.windlass(&format!("snapshot status {directory}/{newest}"));
    // It may have been replaced by a newer one meanwhile.
    assert!(
        told.stdout.contains("keys at revision") || told.stderr.contains("o such file"),
        "{told}"
    );
}

/// A cluster's snapshots outlive it, because a new one is made from them; `reset` says how to be rid of them.
fn snapshots_are_kept(host: &Host<'_>, said: &str) {
    let command = "rm -r /var/lib/windlass/snapshots";
    assert!(said.contains(command), "{said}");
    assert_ne!(host.run("ls", &["/var/lib/windlass/snapshots"]).ok(), "");
    host.run("sh", &["-c", command]).ok();
}

/// Lists what a machine could keep: interfaces, rules, mounts, control groups, files and processes.
pub(crate) fn traces(host: &Host<'_>) -> String {
    // The administrator's links to the plugin and the routes of `connect` are not ours, xtables' lock is everybody's,
    // and the cluster that other tests share goes on meanwhile.
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
