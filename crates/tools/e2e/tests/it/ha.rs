//! A highly available cluster: three control planes with real etcd and a virtual address, and two workers that reach
//! the API through their own balancer. The test kills each component and each machine in turn.

mod admin;
mod components;
mod upgrade;

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use admin::Admin;
use components::{COMPONENTS, kill};
use e2e::{Host, Machines, init, is_etcd_installed, join_commands, lock_machine, ready, until};

/// Fields of the ClusterConfiguration. The short grace period of nodes makes the test faster.
const CONFIGURATION: &str = "virtualAddress: {address: 192.0.2.100}
nodeBalancer: {port: 7445}
controllerManager: {extraArgs: [{name: node-monitor-grace-period, value: 20s}]}";

/// The addresses of the API servers.
const ALL: [&str; 3] = ["192.0.2.1", "192.0.2.2", "192.0.2.3"];

/// The static Pods of a control plane.
const STATIC: [&str; 5] = [
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "windlass-virtual-address",
];

/// A Deployment whose Pods are evicted one second after their node is lost, and a DaemonSet with a Service.
const WORKLOADS: &str = r#"{"apiVersion": "v1", "kind": "List", "items": [
    {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {"replicas": 5,
        "selector": {"matchLabels": {"app": "web"}}, "template": {"metadata": {"labels": {"app": "web"}},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [{"name": "box", "image": "app:1"}],
        "tolerations": [{"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1},
            {"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}],
        "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm":
            {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "web"}}}}]}}}}}},
    {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "each"}, "spec": {
        "selector": {"matchLabels": {"app": "each"}}, "template": {"metadata": {"labels": {"app": "each"}},
        "spec": {"terminationGracePeriodSeconds": 1, "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "c", "image": "app:1"}]}}}},
    {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "each"}, "spec": {
        "selector": {"app": "each"}, "ports": [{"port": 80, "targetPort": 8080}]}}]}"#;

/// A Pod that sends requests to the Service `each` in a loop, and logs `yes` or `no` for each answer.
const CLIENT: &str = r#"{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "asking"}, "spec": {"nodeName": "delta",
    "terminationGracePeriodSeconds": 1, "containers": [{"name": "c", "image": "app:1", "command": ["sh", "-c",
    "while :; do if printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 5 $EACH_SERVICE_HOST 80 | grep -q version; then echo yes; else echo no; fi; sleep 0.2; done"]}]}}"#;

/// Waits until exactly one of these machines has the virtual address.
fn wait_for_one_holder(hosts: &[&Host<'_>]) {
    until("one holder of the virtual address", || {
        let has = |host: &&&Host<'_>| {
            host.run("ip", &["-o", "address", "show"]).stdout.contains(" 192.0.2.100/32 ")
        };
        let holders: Vec<&str> = hosts.iter().filter(has).map(|h| h.name.as_str()).collect();
        if holders.len() == 1 { Ok(()) } else { Err(format!("{holders:?}")) }
    });
}

/// Waits until `kubectl get pods -A -o wide` lists all system Pods on their nodes, Running and ready.
fn wait_for_system_pods(admin: &Admin<'_>, planes: &[&Host<'_>], all: &[&Host<'_>]) {
    admin.until("the Pods of each node", "get pods -A -o wide", |shown| {
        let header = shown.lines().next().unwrap_or_default();
        let column = |line: &str, name: &str| {
            let from = header.find(&format!(" {name} ")).and_then(|at| line.get(at + 1..));
            from.and_then(|rest| rest.split_whitespace().next()).unwrap_or_default().to_owned()
        };
        let is_there = |pod: &str, host: &Host<'_>| {
            let right = |line: &&str| {
                column(line, "NAME").starts_with(pod)
                    && column(line, "NODE") == host.name
                    && column(line, "IP") == host.address
                    && column(line, "READY") == "1/1"
                    && column(line, "STATUS") == "Running"
            };
            shown.lines().filter(right).count() == 1
        };
        let is_dns = |line: &str| {
            column(line, "NAME").starts_with("coredns-")
                && column(line, "IP").starts_with("10.244.")
                && column(line, "READY") == "1/1"
        };
        planes
            .iter()
            .all(|host| STATIC.iter().all(|name| is_there(&format!("{name}-{}", host.name), host)))
            && all.iter().all(|host| {
                ["kube-proxy-", "windlass-network-", "windlass-balancer-"]
                    .iter()
                    .all(|name| is_there(name, host))
            })
            && shown.lines().filter(|line| is_dns(line)).count() == 2
    });
}

/// Returns the DaemonSet's Pods: node name to Pod name, and container id with restart count.
fn daemon_pods(admin: &Admin<'_>) -> BTreeMap<String, (String, String)> {
    let path = "{range .items[*]}{.spec.nodeName} {.metadata.name} {.status.containerStatuses[0].containerID} \
                {.status.containerStatuses[0].restartCount}{\"\\n\"}{end}";
    let line = ["get", "pods", "-l", "app=each", "-o"];
    until("a Pod of the DaemonSet on each node", || {
        let ran = admin.run(&[&line[..], &[&format!("jsonpath={path}")]].concat(), "");
        let parsed = ran.stdout.lines().filter_map(|line| {
            let (node, rest) = line.split_once(' ')?;
            let (pod, container) = rest.split_once(' ')?;
            Some((node.to_owned(), (pod.to_owned(), container.to_owned())))
        });
        let found: BTreeMap<_, _> = parsed.collect();
        if ran.code == Some(0) && found.len() == 5 { Ok(found) } else { Err(ran.to_string()) }
    })
}

/// Runs `logs` and `exec` for a Pod on each node, and `logs` for the static Pods, from every other node.
fn check_logs_and_exec(admins: &[Admin<'_>], planes: &[&Host<'_>]) {
    let pods = daemon_pods(&admins[0]);
    for admin in admins {
        let own = &admin.host.name;
        for (node, (pod, _)) in pods.iter().filter(|(node, _)| *node != own) {
            let what = format!("{own} reaches the Pod on {node}");
            admin.until(&what, &format!("logs {pod}"), |output| output.contains(pod.as_str()));
            admin.until(&what, &format!("exec {pod} -- hostname"), |output| output.trim() == pod);
        }
        for plane in planes.iter().filter(|plane| plane.name != *own) {
            for component in STATIC {
                let line = format!("-n kube-system logs {component}-{} --tail=1", plane.name);
                admin.until(&format!("a log for {own}"), &line, |_| true);
            }
        }
    }
}

/// Kills each component on every machine where it runs, and asserts that Pods and Services are not affected.
fn kill_components(admin: &Admin<'_>, all: &[&Host<'_>], written: &AtomicU32) {
    let before = daemon_pods(admin);
    let count_answers = || {
        let output = admin.until("the log of requests", "logs asking", |output| !output.is_empty());
        ["yes", "no"].map(|answer| output.lines().filter(|line| *line == answer).count())
    };
    let [answered, unanswered] = count_answers();
    for (component, wanted) in COMPONENTS {
        admin.while_writing(
            &format!("{} dies", component.trim_matches([' ', '-'])),
            written,
            |more| {
                let mut count = 0;
                for host in all {
                    if kill(host, component) {
                        count += 1;
                        more(2);
                    }
                }
                assert!(wanted.contains(&count), "{component} runs on {count} machines");
            },
        );
    }
    admin.wait_for_servers(&ALL);
    assert_eq!(before, daemon_pods(admin), "no Pod was restarted");
    let [yes, no] = count_answers();
    println!("{} requests of a Pod to a Service were answered", yes - answered);
    assert!(
        yes > answered + 100 && no == unanswered,
        "{} requests were not answered",
        no - unanswered
    );
}

/// Waits until `wanted` accepts the nodes of the replicas that are not being deleted.
fn wait_for_replicas(admin: &Admin<'_>, wanted: impl Fn(&[&str]) -> bool) {
    let line = "get pods -l app=web --field-selector=status.phase=Running \
                -o jsonpath={range.items[*]}{.metadata.deletionTimestamp}{.spec.nodeName}/{end}";
    admin.until("the replicas' nodes", line, |nodes| {
        // A Pod that is being deleted has a timestamp, with colons, before its node's name.
        let alive = |at: &&str| !at.is_empty() && !at.contains(':');
        wanted(&nodes.split('/').filter(alive).collect::<Vec<_>>())
    });
}

/// Cuts the power of a machine: its Node becomes Unknown and its Pods move. With power again, the node is Ready.
fn power_cycle(admin: &Admin<'_>, machines: &Machines, host: &Host<'_>, written: &AtomicU32) {
    let node = &host.name;
    let is_ready = "jsonpath={.status.conditions[?(@.type==\"Ready\")].status}";
    let status = format!("get node {node} -o {is_ready}");
    wait_for_replicas(admin, |nodes| nodes.contains(&node.as_str()));
    admin.while_writing(&format!("{node} dies"), written, |more| {
        machines.lose_power(host);
        more(5);
        admin.until("the status Unknown of a lost node", &status, |now| now == "Unknown");
        wait_for_replicas(admin, |nodes| nodes.len() == 5 && !nodes.contains(&node.as_str()));
        machines.power_on(host);
        admin.until("a Ready node", &status, |now| now == "True");
        more(2);
    });
    admin.wait_for_servers(&ALL);
}

/// Disconnects two of three control planes until liveness probes fail, and asserts that the cluster recovers.
fn lose_and_restore_quorum(admin: &Admin<'_>, hosts: [&Host<'_>; 3]) {
    for host in &hosts[1..] {
        host.cut();
    }
    until("no holder of the virtual address", || {
        let ran = hosts.map(|h| h.run("ip", &["-o", "address", "show"]).stdout).concat();
        if ran.contains(" 192.0.2.100/32 ") { Err(ran) } else { Ok(()) }
    });
    // Wait longer than eight consecutive probe failures.
    thread::sleep(Duration::from_secs(120));
    for host in &hosts[1..] {
        host.heal();
    }
    let healed = Instant::now();
    wait_for_one_holder(&hosts);
    admin.write("after-the-quorum");
    println!("{:?} from the quorum's return to the next write", healed.elapsed());
}

#[test]
#[ignore = "takes minutes: five machines, and the timeouts that detect dead ones"]
fn api_survives_the_loss_of_any_of_three_control_planes() {
    let _turn = lock_machine();
    if !is_etcd_installed() {
        return;
    }
    let machines = Machines::new("ha");
    let [first, second, third, worker, spare] =
        [("alpha", 1), ("beta", 2), ("gamma", 3), ("delta", 4), ("epsilon", 5)]
            .map(|(name, number)| machines.start(name, number));
    let join = init(&first, CONFIGURATION);

    // Join in parallel. etcd accepts one learner at a time, so one of the two control planes waits.
    thread::scope(|scope| {
        let joins = [
            (&second, &join.control_plane),
            (&third, &join.control_plane),
            (&worker, &join.worker),
            (&spare, &join.worker),
        ];
        let joins = joins.map(|(host, line)| scope.spawn(move || host.windlass(line).ok()));
        for join in joins {
            join.join().expect("a join");
        }
    });
    let network = first.windlass("network print").ok();
    first.kubectl_with(&["apply", "-f", "-"], &network).ok();
    let (planes, all) = ([&first, &second, &third], [&first, &second, &third, &worker, &spare]);
    ready(&first, &all);
    let credentials = first.run("cat", &["/etc/kubernetes/admin.conf"]).ok();
    let kubeconfig = worker.write("admin.conf", &credentials);
    let admins = all.map(|host| Admin { host, kubeconfig: kubeconfig.clone() });
    let (admin, other) = (&admins[3], &admins[4]);
    admin.wait_for_servers(&ALL);
    until("the servers in the balancer's file", || {
        let ran = worker.run("cat", &["/var/lib/windlass/balancer/servers"]);
        // The file may also contain the virtual address, as fallback.
        let known = |ip: &&str| ran.stdout.lines().any(|line| line == format!("{ip}:6443"));
        if ALL.iter().all(known) { Ok(()) } else { Err(ran.to_string()) }
    });
    all.iter().for_each(|host| host.build_app());
    for manifest in [WORKLOADS, CLIENT] {
        admin.kubectl_with("apply -f -", manifest).ok();
    }
    for workload in ["deployment/web", "daemonset/each"] {
        admin.kubectl(&format!("rollout status {workload} --timeout=60s --request-timeout=0")).ok();
    }
    admin.until("the first answer", "logs asking", |output| output.contains("yes"));
    wait_for_system_pods(admin, &planes, &all);
    println!("{}", admin.kubectl("get pods -A -o wide").ok());
    check_logs_and_exec(&admins, &planes);

    let written = AtomicU32::new(0);
    kill_components(admin, &all, &written);
    check_logs_and_exec(&admins, &planes);
    for host in all {
        // Write from a machine that keeps running.
        let writer = if host.name == worker.name { other } else { admin };
        power_cycle(writer, &machines, host, &written);
    }
    wait_for_system_pods(admin, &planes, &all);
    check_logs_and_exec(&admins, &planes);
    drop(admins);

    let admin = Admin { host: &worker, kubeconfig };
    admin.while_writing("a control plane is cut off, another one lost", &written, |more| {
        third.cut();
        more(10);
        third.heal();
        admin.wait_for_servers(&ALL);
        first.lose();
        more(10);
    });
    wait_for_one_holder(&[&second, &third]);
    admin.wait_for_servers(&["192.0.2.2", "192.0.2.3"]);
    admin.assert_has_all(&written);
    spare.lose();
    println!("{} writes in all", written.load(Ordering::Relaxed));

    // A new machine with the dead one's name and address joins through the virtual address.
    admin.kubectl("delete node alpha epsilon").ok();
    let new = machines.start("alpha", 1);
    let output = second.windlass("init phase upload-certs --upload-certs").ok();
    new.windlass(&join_commands(&second, &output).control_plane).ok();
    ready(&second, &[&new]);
    admin.wait_for_servers(&ALL);
    lose_and_restore_quorum(&admin, [&new, &second, &third]);
    third.lose();
    admin.write("last");
}
