//! The addresses of LoadBalancer Services as an add-on: nodes of a cluster of `init` announce them by the DaemonSet of
//! `load-balancer print`.

use std::time::{Duration, Instant};

use e2e::{Host, Machines, connect, init, is_etcd_installed, ready, share_machine, until};

const ADDRESS: &str = "192.0.2.200";
/// The controller manager's flags.
const FLAGS: &str = r#"controllerManager:
  extraArgs:
  - {name: controllers, value: "*,bootstrapsigner,tokencleaner,service-lb-controller"}
  - {name: load-balancer-ranges, value: 192.0.2.200/29}"#;
const HOLDER: &str =
    "get lease -n windlass-load-balancer address-192.0.2.200 -o jsonpath={.spec.holderIdentity}";

fn web(admin: &Host<'_>, node: &Host<'_>) {
    let name = &node.name;
    let pod = format!(
        r#"{{"apiVersion": "v1", "kind": "Pod", "metadata": {{"name": "{name}", "labels": {{"app": "web"}}}},
            "spec": {{"nodeName": "{name}", "terminationGracePeriodSeconds": 0,
                "containers": [{{"name": "c", "image": "app:1"}}]}}}}"#
    );
    admin.kubectl_with(&["apply", "-f", "-"], &pod).ok();
    admin.kubectl(&format!("wait pod/{name} --for=condition=Ready --timeout=60s")).ok();
}

fn service(admin: &Host<'_>, name: &str, more: &str) {
    let service = format!(
        r#"{{"apiVersion": "v1", "kind": "Service", "metadata": {{"name": "{name}"}}, "spec": {{
            "type": "LoadBalancer", "selector": {{"app": "web"}}, {more}
            "ports": [{{"port": 80, "targetPort": 8080}}]}}}}"#
    );
    admin.kubectl_with(&["apply", "-f", "-"], &service).ok();
}

/// Fetches the page from the network between the machines, whose only route to an address is ARP.
fn fetch(machines: &Machines) -> Result<(), String> {
    let url = format!("http://{ADDRESS}/");
    let output = machines.bridge_command("curl", &["-s", "--max-time", "1", &url]).output();
    let output = output.map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if text.contains("version 1") { Ok(()) } else { Err(format!("no page: {text}")) }
}

fn addresses(host: &Host<'_>) -> String {
    host.run("ip", &["-4", "-o", "address"]).ok()
}

/// Asserts that the machine which answers ARP for the address is this one.
fn assert_answers(machines: &Machines, holder: &Host<'_>) {
    let output = machines.bridge_command("ip", &["neigh", "show", ADDRESS]).output().unwrap();
    let neighbour = String::from_utf8_lossy(&output.stdout).into_owned();
    let own = holder.run("ip", &["-o", "link", "show", "dev", "eth0"]).ok();
    let answered = neighbour.split_whitespace().find(|word| word.matches(':').count() == 5);
    let is_own = answered.is_some_and(|address| own.contains(address));
    assert!(is_own, "{} has {own}: {neighbour}", holder.name);
}

/// Only the add-on's account may write the Leases, and that account may write no others.
fn rights_are_limited(admin: &Host<'_>) {
    let own = "system:serviceaccount:windlass-load-balancer:windlass-load-balancer";
    for (what, namespace, user, allowed) in [
        ("update leases", "windlass-load-balancer", own, true),
        ("update leases", "kube-system", own, false),
        ("get secrets", "windlass-load-balancer", own, false),
        ("update services/status", "default", own, false),
        ("create leases", "windlass-load-balancer", "system:serviceaccount:default:default", false),
        ("update leases", "windlass-load-balancer", "system:node:beta", false),
    ] {
        let groups = if user == own { "system:authenticated" } else { "system:nodes" };
        let line = format!("auth can-i {what} -n {namespace} --as={user} --as-group={groups}");
        // A reason may follow the answer.
        let output = admin.kubectl(&line);
        let answer = output.stdout.split_whitespace().next();
        assert_eq!(answer, Some(if allowed { "yes" } else { "no" }), "{output}");
    }
}

/// The address moves from a machine that loses its network, and that machine removes it.
fn address_moves(machines: &Machines, admin: &Host<'_>, from: &Host<'_>, to: &Host<'_>) {
    from.cut();
    let (mut answered, mut gap) = (Instant::now(), Duration::ZERO);
    until("the other machine answers", || {
        fetch(machines)?;
        gap = gap.max(answered.elapsed());
        answered = Instant::now();
        admin.kubectl(HOLDER).ok_if(|holder| holder == to.name)
    });
    eprintln!("the longest time without an answer was {gap:?}");
    // It takes three seconds on a machine that is not busy.
    assert!(gap < Duration::from_secs(10), "{gap:?}");
    assert_answers(machines, to);
    assert!(!addresses(from).contains(ADDRESS), "{} keeps the address", from.name);
    from.heal();
}

#[test]
fn nodes_of_init_announce_addresses() {
    let _turn = share_machine();
    if !is_etcd_installed() {
        return;
    }
    let machines = Machines::new("announced");
    let [alpha, beta, gamma] =
        [("alpha", 1), ("beta", 2), ("gamma", 3)].map(|(name, n)| machines.start(name, n));
    let join = init(&alpha, FLAGS);
    for worker in [&beta, &gamma] {
        worker.windlass(&join.worker).ok();
    }
    connect(&alpha, &[&alpha, &beta, &gamma]);
    ready(&alpha, &[&alpha, &beta, &gamma]);
    let objects = alpha.windlass("load-balancer print").ok();
    alpha.kubectl_with(&["apply", "-f", "-"], &objects).ok();
    let rollout =
        "-n windlass-load-balancer rollout status daemonset/windlass-load-balancer --timeout=60s";
    alpha.kubectl(rollout).ok();
    rights_are_limited(&alpha);

    for node in [&beta, &gamma] {
        node.build_app();
        web(&alpha, node);
    }
    service(&alpha, "web", r#""allocateLoadBalancerNodePorts": false,"#);
    until("a page at the Service's address", || fetch(&machines));
    let holder = alpha.kubectl(HOLDER).ok();
    let (from, to) = if holder == beta.name { (&beta, &gamma) } else { (&gamma, &beta) };
    assert_eq!(holder, from.name);
    assert_answers(&machines, from);
    // kubeadm excludes control planes from load balancers, and the author of a Service gets no address of a node.
    service(&alpha, "thief", r#""loadBalancerIP": "192.0.2.3","#);
    until("an Event about the address", || {
        let line = "get events --field-selector involvedObject.name=thief";
        alpha.kubectl(line).ok_if(|text| text.contains("192.0.2.3 is not in a load balancer range"))
    });
    let leases = alpha.kubectl("get lease -n windlass-load-balancer -o name").ok();
    assert_eq!(leases.matches("/address-").count(), 1, "{leases}");
    assert!(!addresses(&alpha).contains(ADDRESS));

    address_moves(&machines, &alpha, from, to);
    // `reset` kills the Pod, which then cannot release the address.
    to.windlass("reset --force").ok();
    assert!(!addresses(to).contains(ADDRESS), "reset keeps the address");
    to.run("test", &["-e", "/run/windlass-load-balancer"]).refused();
    until("the first machine answers again", || {
        alpha.kubectl(HOLDER).ok_if(|holder| holder == from.name)?;
        fetch(&machines)
    });
    assert_answers(&machines, from);
    alpha.kubectl("delete service web").ok();
    until("the address is gone", || {
        from.run("ip", &["-4", "-o", "address"]).ok_if(|text| !text.contains(ADDRESS))
    });
}
