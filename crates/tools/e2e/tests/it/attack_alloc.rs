//! Services created through two API servers at once: no two have one cluster IP or node port.

use std::collections::BTreeSet;

use e2e::{Cluster, Machine, Session, alone, is_etcd_there, until};

use crate::nodes::ready;

const EACH: usize = 50;

/// `EACH` Services of type NodePort, as one document.
fn services(prefix: &str) -> String {
    let one = |i: usize| {
        format!(
            "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {prefix}{i}}}\nspec: {{type: NodePort, ports: [{{port: 80}}], \
             selector: {{app: none}}}}\n"
        )
    };
    (0..EACH).map(one).collect()
}

#[test]
#[ignore = "takes minutes: two control planes with etcd"]
fn two_api_servers_give_no_address_and_no_node_port_twice() {
    let _turn = alone();
    if !is_etcd_there() {
        return;
    }
    let cluster = Cluster::new("attack-alloc");
    let before = Machine::look(&cluster);
    cluster.up_with(&["--nodes", "2", "--control-planes", "2"]).ok();
    let s = Session::own(&cluster);
    ready(&s, "control-plane2", "True");
    // Each of them by its own address: the kubeconfig's goes to either.
    let path = "{.endpoints[*].addresses[0]}";
    let mut servers = Vec::new();
    until("two API servers as endpoints", || {
        let found = s.field("endpointslice kubernetes -n default", path);
        servers = found.split_whitespace().map(str::to_owned).collect();
        if servers.len() == 2 { Ok(()) } else { Err(found) }
    });
    let documents = ["a", "b"].map(|prefix| {
        let file = cluster.root().join(format!("services-{prefix}.yaml"));
        std::fs::write(&file, services(prefix)).unwrap();
        file
    });
    std::thread::scope(|scope| {
        for (server, file) in servers.iter().zip(&documents) {
            let s = &s;
            scope.spawn(move || {
                s.kubectl(&format!("--server=https://{server}:6443 create -f {}", file.display()))
                    .ok()
            });
        }
    });
    let shown =
        "jsonpath={range .items[*]}{.spec.clusterIP}={.spec.ports[0].nodePort}{\"\\n\"}{end}";
    let listed = s.kubectl_with(&["get", "services", "-l", "!component", "-o", shown], "").ok();
    let pairs: Vec<(&str, &str)> = listed.lines().filter_map(|line| line.split_once('=')).collect();
    let addresses: BTreeSet<&str> = pairs.iter().map(|(address, _)| *address).collect();
    let ports: BTreeSet<&str> = pairs.iter().map(|(_, port)| *port).collect();
    assert_eq!((pairs.len(), addresses.len(), ports.len()), (2 * EACH, 2 * EACH, 2 * EACH));
    // Each address is recorded as its Service's.
    let recorded = s.kubectl("get ipaddresses -o name").ok();
    for address in &addresses {
        let name = format!("ipaddress.networking.k8s.io/{address}");
        assert!(recorded.lines().any(|line| line == name), "{address} is not recorded: {recorded}");
    }
    cluster.down(&[]).ok();
    let left = Machine::look(&cluster).since(&before);
    assert!(left.is_empty(), "{left:#?}");
}
