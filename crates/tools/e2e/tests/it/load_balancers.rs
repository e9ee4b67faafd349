//! Services of type LoadBalancer and published ports, reached from outside of the cluster.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use e2e::{Cluster, MachineSnapshot, Session, in_network, share_machine, until};

/// The range of the second part, in the network of the link between the nodes.
const RANGE: &str = "172.29.0.128/25";
const ADDRESS: &str = "172.29.0.128";

/// A network namespace on the link between the nodes, which stands for a machine outside of the cluster.
struct Outside {
    name: String,
}

impl Outside {
    fn attach(cluster: &Cluster) -> Self {
        let name = format!("{}-client", cluster.namespace.name);
        let outside = Self { name: name.clone() };
        let bridge = cluster.run("ip", &["-o", "link", "show", "type", "bridge"]).ok();
        let bridges = bridge.lines().filter_map(|line| line.split(": ").nth(1));
        let bridge = bridges.map(str::to_owned).find(|name| name.starts_with("wn-")).unwrap();
        let inside = cluster.namespace.name.clone();
        ip(&["netns", "add", &name]);
        ip(&[
            "-n", &inside, "link", "add", "client0", "type", "veth", "peer", "name", "eth0",
            "netns", &name,
        ]);
        ip(&["-n", &inside, "link", "set", "client0", "master", &bridge, "up"]);
        ip(&["-n", &name, "address", "add", "172.29.0.100/24", "dev", "eth0"]);
        ip(&["-n", &name, "link", "set", "eth0", "up"]);
        ip(&["-n", &name, "route", "add", "192.0.2.0/24", "via", "172.29.0.1"]);
        outside
    }

    fn fetch(&self, address: &str) -> Result<String, String> {
        fetch(&Path::new("/run/netns").join(&self.name), address)
    }

    fn fetch_until(&self, address: &str, wanted: &str) {
        until(&format!("{address} answers {wanted}"), || answers(self.fetch(address), wanted));
    }
}

/// Fetches the page of the test application from a network namespace.
fn fetch(namespace: &Path, address: &str) -> Result<String, String> {
    let address: SocketAddr = address.parse().unwrap();
    let limit = Duration::from_secs(1);
    in_network(namespace, || {
        let mut stream = TcpStream::connect_timeout(&address, limit / 5)?;
        stream.set_read_timeout(Some(limit))?;
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
        let mut page = String::new();
        stream.read_to_string(&mut page)?;
        Ok(page)
    })
    .map_err(|error: std::io::Error| error.to_string())
}

fn answers(page: Result<String, String>, wanted: &str) -> Result<(), String> {
    match page? {
        page if page.contains(wanted) => Ok(()),
        page => Err(page),
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "delete", &self.name]).status();
    }
}

fn ip(words: &[&str]) {
    let status = Command::new("ip").args(words).status().unwrap();
    assert!(status.success(), "ip {words:?}: {status}");
}

fn service(name: &str, more: &str) -> String {
    format!(
        r#"{{"apiVersion": "v1", "kind": "Service", "metadata": {{"name": "{name}"}}, "spec": {{
            "type": "LoadBalancer", "selector": {{"app": "web"}}, {more}
            "ports": [{{"port": 80, "targetPort": 8080}}]}}}}"#
    )
}

fn pod(node: &str) -> String {
    format!(
        r#"{{"apiVersion": "v1", "kind": "Pod", "metadata": {{"name": "web-{node}", "labels": {{"app": "web"}}}},
            "spec": {{"nodeName": "{node}", "terminationGracePeriodSeconds": 0,
                "containers": [{{"name": "c", "image": "app:1"}}]}}}}"#
    )
}

/// Waits for the addresses in a Service's status.
fn addresses(s: &Session<'_>, name: &str, wanted: &str) {
    let line = format!("get service {name} -o jsonpath={{.status.loadBalancer.ingress[*].ip}}");
    s.until(&line, |seen| seen == wanted);
}

/// Services have the nodes' addresses, and each port has one owner.
fn nodes_addresses_serve(s: &Session<'_>, outside: &Outside) {
    s.apply(&service("web", r#""allocateLoadBalancerNodePorts": false,"#));
    addresses(s, "web", "172.29.0.2 192.0.2.10");
    assert_eq!(s.field("service web", "{.spec.ports[0].nodePort}"), "");
    for node in ["172.29.0.2", "192.0.2.10"] {
        outside.fetch_until(&format!("{node}:80"), "version 1");
    }
    s.apply(&service("second", ""));
    s.until("get events --field-selector involvedObject.name=second", |seen| {
        seen.contains("SyncLoadBalancerFailed")
    });
    addresses(s, "second", "");
    s.apply(&service("classed", r#""loadBalancerClass": "example.com/lb","#));
    s.kubectl("delete service web").ok();
    addresses(s, "second", "172.29.0.2 192.0.2.10");
    let open = r#"{"spec": {"loadBalancerSourceRanges": ["198.51.100.0/24"]}}"#;
    s.kubectl_with(&["patch", "service", "second", "-p", open], "").ok();
    until("other sources are refused", || match outside.fetch("172.29.0.2:80") {
        Ok(page) => Err(page),
        Err(_) => Ok(()),
    });
    addresses(s, "classed", "");
    s.kubectl("delete service second classed").ok();
}

/// Published ports and the name in the certificate work.
fn published_port_leads_to_node_port(cluster: &Cluster, s: &Session<'_>, outside: &Outside) {
    s.apply(
        r#"{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "published"}, "spec": {
            "type": "NodePort", "selector": {"app": "web"},
            "ports": [{"port": 80, "targetPort": 8080, "nodePort": 30080}]}}"#,
    );
    outside.fetch_until("192.0.2.10:8088", "version 1");
    until("the port answers on loopback", || {
        answers(fetch(&cluster.namespace.path(), "127.0.0.1:8088"), "version 1")
    });
    s.kubectl("delete service published").ok();
    s.kubectl("get --raw /version --tls-server-name=api.example.com").ok();
    let wrong = s.kubectl("get --raw /version --tls-server-name=other.example.com");
    assert_ne!(wrong.code, Some(0), "{wrong}");
}

/// An address of a range moves from a node that dies to another one.
fn address_moves_from_stopped_node(cluster: &Cluster, s: &Session<'_>, outside: &Outside) {
    let first = s.field("nodes", "{.items[*].metadata.name}");
    let first = first.split_whitespace().find(|name| *name != "worker").unwrap().to_owned();
    let holder = "get lease -n windlass-load-balancer address-172.29.0.128 -o jsonpath={.spec.holderIdentity}";
    let exclude = "node.kubernetes.io/exclude-from-external-load-balancers";
    let at = format!("{ADDRESS}:80");
    s.apply(&service("web", ""));
    addresses(s, "web", ADDRESS);
    outside.fetch_until(&at, "version 1");
    // The address stays where it is once the first node may have it again.
    s.kubectl(&format!("label node {first} {exclude}=true")).ok();
    s.until(holder, |seen| seen == "worker");
    outside.fetch_until(&at, "version 1");
    s.kubectl(&format!("label node {first} {exclude}-")).ok();
    // Only the Pod of the first node answers afterwards.
    s.kubectl("delete pod web-worker --now").ok();
    outside.fetch_until(&at, &format!("on web-{first}"));
    assert_eq!(s.kubectl(holder).ok(), "worker");
    cluster.windlass(&["node", "stop", "worker"]).ok();
    let (mut answered, mut gap) = (Instant::now(), Duration::ZERO);
    until("the other node has the address", || {
        let page = outside.fetch(&at)?;
        gap = gap.max(answered.elapsed());
        answered = Instant::now();
        let now = s.kubectl(holder).ok();
        if now == first { Ok(()) } else { Err(format!("{now} has it: {page}")) }
    });
    eprintln!("the longest time without an answer was {gap:?}");
    // It takes three seconds on a machine that is not busy.
    assert!(gap < Duration::from_secs(10), "{gap:?}");
    s.kubectl("delete service web").ok();
    until("the address is gone", || {
        let addresses = s.on_node("ip", &["-4", "-o", "address"]);
        addresses.ok_if(|text| !text.contains(ADDRESS))
    });
    s.until("get lease -n windlass-load-balancer -o name", |seen| !seen.contains("address-"));
}

#[test]
fn services_and_ports_are_reached_from_outside() {
    let _turn = share_machine();
    let cluster = Cluster::new("outside");
    let before = MachineSnapshot::take(&cluster);
    let refused = cluster.up_with(&["--load-balancer-range", "10.244.1.0/24"]).refused();
    assert!(refused.contains("overlaps 10.244.0.0/16, the range of Pods"), "{refused}");
    let flags = ["--nodes", "2", "--publish", "8088:30080/tcp", "--san", "api.example.com"];
    cluster.up_with(&flags).ok();
    cluster.build_images();
    let s = Session::in_default_namespace(&cluster);
    let outside = Outside::attach(&cluster);
    let names = s.field("nodes", "{.items[*].metadata.name}");
    for node in names.split_whitespace() {
        s.apply(&pod(node));
    }
    s.kubectl("wait pod --all --for=condition=Ready --timeout=60s").ok();
    published_port_leads_to_node_port(&cluster, &s, &outside);
    nodes_addresses_serve(&s, &outside);
    let refused = cluster.up_with(&["--load-balancer-range", "172.29.0.0/24"]).refused();
    assert!(refused.contains("contains 172.29.0.1, an address of this host"), "{refused}");
    // A running cluster changes, and its objects and containers stay.
    let started = "{.items[*].status.containerStatuses[0].state.running.startedAt}";
    let pods = s.field("pod", started);
    cluster.up_with(&["--load-balancer-range", RANGE]).ok();
    assert_eq!(s.field("pod", started), pods);
    address_moves_from_stopped_node(&cluster, &s, &outside);
    drop(outside);
    cluster.down(&[]).ok();
    let left = MachineSnapshot::take(&cluster).since(&before);
    assert!(left.is_empty(), "{left:#?}");
}
