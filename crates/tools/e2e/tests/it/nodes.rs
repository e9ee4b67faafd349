//! Several nodes on one machine: connections between their Pods, loss and recovery of nodes, and isolation.

use e2e::{Cluster, MachineSnapshot, Session, fetch_script, share_machine, until};

/// Returns a Pod that is bound to a node and has no grace period.
fn pod(name: &str, node: &str, image: &str) -> String {
    format!(
        r#"{{"apiVersion": "v1", "kind": "Pod", "metadata": {{"name": "{name}", "labels": {{"app": "{name}"}}}},
            "spec": {{"nodeName": "{node}", "terminationGracePeriodSeconds": 0,
                "containers": [{{"name": "c", "image": "{image}"}}]}}}}"#
    )
}

pub(crate) fn ready(s: &Session<'_>, node: &str, wanted: &str) {
    s.until(
        &format!("get node {node} -o jsonpath={{.status.conditions[?(@.type==\"Ready\")].status}}"),
        |seen| seen == wanted,
    );
}

/// Returns the name of the first node, which is the machine itself.
fn first(s: &Session<'_>) -> String {
    let names = s.field("nodes", "{.items[*].metadata.name}");
    names.split_whitespace().find(|name| !name.starts_with("worker")).unwrap_or_default().to_owned()
}

/// Fetches the page of a web server from the Pod `box-NODE`.
fn get(s: &Session<'_>, from: &str, host: &str, port: &str) -> Result<(), String> {
    let script = fetch_script(host, port);
    let ran = s.kubectl_with(&["exec", &format!("box-{from}"), "--", "sh", "-c", &script], "");
    if ran.code == Some(0) { Ok(()) } else { Err(ran.to_string()) }
}

const SERVICE: &str = r#"{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": {
    "ipFamilyPolicy": "PreferDualStack", "selector": {"app": "web-worker2"},
    "ports": [{"port": 80, "targetPort": 8080}]}}"#;

/// Creates Pods on every node and connects from each to each, by every address and through a Service.
fn everything_reaches_everything(s: &Session<'_>) {
    let first = first(s);
    let nodes = [first.as_str(), "worker", "worker2"];
    let mut objects = nodes.map(|node| pod(&format!("web-{node}"), node, "app:1")).to_vec();
    objects.extend(nodes.map(|node| pod(&format!("box-{node}"), node, "box:1")));
    objects.push(SERVICE.to_owned());
    s.apply(&format!(
        r#"{{"apiVersion": "v1", "kind": "List", "items": [{}]}}"#,
        objects.join(",")
    ));
    s.kubectl("wait pod --all --for=condition=Ready --timeout=60s").ok();
    let mut targets = vec![("web.default.svc.cluster.local".to_owned(), "80")];
    let addresses = |of: &str, path: &str, port: &'static str| {
        let found = s.field(of, path);
        found.split_whitespace().map(|address| (address.to_owned(), port)).collect::<Vec<_>>()
    };
    for node in nodes {
        targets.extend(addresses(&format!("pod web-{node}"), "{.status.podIPs[*].ip}", "8080"));
    }
    targets.extend(addresses("service web", "{.spec.clusterIPs[*]}", "80"));
    std::thread::scope(|scope| {
        for from in nodes {
            let targets = &targets;
            scope.spawn(move || {
                for (host, port) in targets {
                    until(&format!("{host}:{port} from {from}"), || get(s, from, host, port));
                }
            });
        }
    });
}

/// Asserts that a NetworkPolicy applies to packets from Pods on other nodes.
fn policy_applies_to_pods_of_other_nodes(s: &Session<'_>) {
    s.apply(
        r#"{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "worker-only"},
            "spec": {"podSelector": {"matchLabels": {"app": "web-worker2"}}, "policyTypes": ["Ingress"],
                "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "box-worker"}}}]}]}}"#,
    );
    let first = &first(s);
    let addresses = s.field("pod web-worker2", "{.status.podIPs[*].ip}");
    let is_closed_to_first_alone = |address: &str| {
        until(&format!("{address} is closed to {first}"), || {
            match get(s, first, address, "8080") {
                Ok(()) => Err("it still answers".to_owned()),
                Err(_) => Ok(()),
            }
        });
        get(s, "worker", address, "8080").unwrap_or_else(|e| panic!("{address} from worker: {e}"));
    };
    // Run in parallel, because a connection to a closed address takes seconds to fail.
    std::thread::scope(|scope| {
        for address in addresses.split_whitespace() {
            scope.spawn(move || is_closed_to_first_alone(address));
        }
    });
    s.kubectl("delete networkpolicy worker-only").ok();
    until("the policy is gone", || get(s, first, "web", "80"));
}

#[test]
fn three_nodes_reach_each_other_and_survive_a_lost_node() {
    let _turn = share_machine();
    let cluster = Cluster::new("nodes");
    let before = MachineSnapshot::take(&cluster);
    cluster.up_with(&["--nodes", "3", "--dual-stack"]).ok();
    cluster.build_images();
    let s = Session::in_default_namespace(&cluster);
    let listed = cluster.windlass(&["node", "list"]).ok();
    assert_eq!(listed.matches("running").count(), 3, "{listed}");
    everything_reaches_everything(&s);
    policy_applies_to_pods_of_other_nodes(&s);
    crate::paths::pods_see_usual_paths(&s, "worker");
    // Logs, exec and port-forward go through the API server to a kubelet on another node.
    s.until("logs web-worker2", |text| text.contains("GET") || text.contains("response"));
    let mut forward = s.start("port-forward pod/web-worker 18080:8080");
    forward.wait_for_line(|line| line.contains("Forwarding from"));
    let ask = "printf 'GET / HTTP/1.0\\r\\n\\r\\n' | busybox nc -w 5 127.0.0.1 18080";
    let page = s.on_node("sh", &["-c", ask]);
    assert!(page.stdout.contains("version 1 on web-worker"), "{page}");
    drop(forward);
    let inside = cluster.windlass(&["node", "exec", "worker", "--", "hostname"]).ok();
    assert_eq!(inside.trim(), "worker");

    s.apply(
        r#"{"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "each"}, "spec": {
            "selector": {"matchLabels": {"app": "each"}}, "template": {"metadata": {"labels": {"app": "each"}},
                "spec": {"terminationGracePeriodSeconds": 0, "containers": [{"name": "c", "image": "box:1"}]}}}}"#,
    );
    s.kubectl("rollout status daemonset each --timeout=60s").ok();
    assert_eq!(s.field("daemonset each", "{.status.numberReady}"), "3");
    s.deploy("spread", "app:1", 3);
    let chosen = s.field("pod -l app=spread", "{.items[*].spec.nodeName}");
    let chosen: std::collections::BTreeSet<_> = chosen.split_whitespace().collect();
    assert_eq!(chosen.len(), 3, "one Pod on each node: {chosen:?}");

    // A Deployment's Pod leaves a lost node, and a disconnected node is Ready again once it is reconnected.
    s.apply(
        r#"{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "moves"}, "spec": {
            "replicas": 1, "selector": {"matchLabels": {"app": "moves"}},
            "template": {"metadata": {"labels": {"app": "moves"}}, "spec": {
                "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100,
                    "preference": {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["worker2"]}]}}]}},
                "tolerations": [{"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1}],
                "terminationGracePeriodSeconds": 0,
                "containers": [{"name": "c", "image": "box:1"}]}}}}"#,
    );
    s.available("moves");
    assert_eq!(s.field("pod -l app=moves", "{.items[0].spec.nodeName}"), "worker2");
    cluster.windlass(&["node", "cut", "worker"]).ok();
    cluster.windlass(&["node", "stop", "worker2"]).ok();
    ready(&s, "worker", "Unknown");
    ready(&s, "worker2", "Unknown");
    // The Pods of lost nodes are evicted from one node every ten seconds. A healed node comes back meanwhile.
    cluster.windlass(&["node", "heal", "worker"]).ok();
    s.until("get pod -l app=moves -o jsonpath={.items[*].spec.nodeName}", |nodes| {
        nodes.split_whitespace().any(|node| node != "worker2")
    });
    cluster.windlass(&["node", "start", "worker2"]).ok();
    ready(&s, "worker", "True");
    ready(&s, "worker2", "True");
    s.until(
        "get pod web-worker2 -o jsonpath={.status.conditions[?(@.type==\"Ready\")].status}",
        |seen| seen == "True",
    );
    let status = cluster.windlass(&["status"]);
    assert!(status.stdout.contains("holder of worker2 runs"), "{status}");
    cluster.down(&[]).ok();
    let left = MachineSnapshot::take(&cluster).since(&before);
    assert!(left.is_empty(), "{left:#?}");
}

#[test]
fn stateful_pod_leaves_a_node_that_is_out_of_service() {
    let _turn = share_machine();
    let cluster = Cluster::new("outofservice");
    cluster.up_with(&["--nodes", "2"]).ok();
    cluster.build_images();
    let s = Session::in_default_namespace(&cluster);
    s.apply(
        r#"{"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "one"}, "spec": {
            "serviceName": "one", "selector": {"matchLabels": {"app": "one"}},
            "template": {"metadata": {"labels": {"app": "one"}}, "spec": {
                "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100,
                    "preference": {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["worker"]}]}}]}},
                "containers": [{"name": "c", "image": "box:1"}]}}}}"#,
    );
    s.kubectl("rollout status statefulset one --timeout=60s").ok();
    assert_eq!(s.field("pod one-0", "{.spec.nodeName}"), "worker");
    cluster.windlass(&["node", "stop", "worker"]).ok();
    ready(&s, "worker", "Unknown");
    s.kubectl("taint node worker node.kubernetes.io/out-of-service=nodeshutdown:NoExecute").ok();
    s.until("get pod one-0 -o jsonpath={.spec.nodeName}/{.status.phase}", |seen| {
        seen.ends_with("/Running") && !seen.starts_with("worker/")
    });
    cluster.down(&[]).ok();
}

#[test]
fn tunnel_flag_sends_packets_between_nodes_through_vxlan() {
    let _turn = share_machine();
    let cluster = Cluster::new("tunnel");
    cluster.up_with(&["--nodes", "3", "--tunnel"]).ok();
    cluster.build_images();
    let s = Session::in_default_namespace(&cluster);
    everything_reaches_everything(&s);
    let routes = s.on_node("ip", &["route", "show", "proto", "87"]).ok();
    assert_eq!(routes.matches(" dev wx-").count(), 2, "{routes}");
    let link = s.kubectl("exec box-worker -- ip link show eth0").ok();
    assert!(link.contains("mtu 1450"), "{link}");
}

/// A privileged Pod in the node's PID namespace.
const ROOT: &str = r#"{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "root"}, "spec": {
    "nodeName": "worker", "hostPID": true, "terminationGracePeriodSeconds": 0,
    "containers": [{"name": "c", "image": "box:1", "securityContext": {"privileged": true}}]}}"#;

/// Returns the command lines of the processes that the Pod sees.
fn processes(s: &Session<'_>) -> String {
    let script = "for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline; echo; done 2>/dev/null";
    s.kubectl_with(&["exec", "root", "--", "sh", "-c", script], "").ok()
}

#[test]
fn nodes_see_only_their_processes_and_cannot_write_the_binary() {
    let _turn = share_machine();
    let cluster = Cluster::new("apart");
    cluster.up_with(&["--nodes", "2"]).ok();
    cluster.build_images();
    let s = Session::in_default_namespace(&cluster);
    s.apply(ROOT);
    s.kubectl("wait pod/root --for=condition=Ready --timeout=60s").ok();

    let seen = processes(&s);
    for own in ["internal holder", "internal agent", "containerd "] {
        assert!(seen.contains(own), "{own}: {seen}");
    }
    for foreign in ["internal supervisor", "internal control-plane"] {
        assert!(!seen.contains(foreign), "{foreign}: {seen}");
    }
    let node = format!("--root {}/nodes/worker ", cluster.root().display());
    let strangers = seen.lines().filter(|line| line.contains("windlass internal"));
    assert_eq!(strangers.filter(|line| !line.contains(&node)).collect::<Vec<_>>(), [""; 0]);
    let binary = cluster.root().join("bin/windlass");
    let write = format!("touch /proc/1/root{}.new", binary.display());
    let written = s.kubectl_with(&["exec", "root", "--", "sh", "-c", &write], "");
    assert!(written.code != Some(0) && written.stderr.contains("Read-only"), "{written}");

    let exit = cluster.windlass(&["node", "exec", "worker", "--", "sh", "-c", "exit 7"]);
    assert_eq!(exit.code, Some(7), "{exit}");

    // Killing a Windlass process restarts no container. Killing the node's first process restarts the node.
    let container = "{.status.containerStatuses[0]['containerID','restartCount']}";
    let before = s.field("pod root", container);
    let kill = |root: &std::path::Path, role: &str| {
        let text = std::fs::read_to_string(root.join(format!("run/{role}.pid"))).unwrap();
        let pid = text.split(' ').next().unwrap().parse().unwrap();
        cluster.signal("KILL", pid);
        until(&format!("another {role}"), || {
            let now = std::fs::read_to_string(root.join(format!("run/{role}.pid"))).unwrap();
            if now == text { Err(now) } else { Ok(()) }
        });
    };
    let worker = cluster.root().join("nodes/worker");
    for role in ["agent", "containerd"] {
        kill(&worker, role);
    }
    kill(&cluster.root(), "supervisor");
    until("an answer from the Pod", || {
        let seen = s.kubectl_with(&["exec", "root", "--", "true"], "");
        if seen.code == Some(0) { Ok(()) } else { Err(seen.to_string()) }
    });
    assert_eq!(s.field("pod root", container), before);
    kill(&worker, "holder");
    s.until(&format!("get pod root -o jsonpath={container}"), |now| now != before);
    s.kubectl("wait pod/root --for=condition=Ready --timeout=90s").ok();
    assert!(processes(&s).contains("internal agent"));
}
