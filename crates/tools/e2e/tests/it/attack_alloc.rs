//! Concurrent creation of Services through two API servers: every cluster IP and node port is allocated once.

use std::collections::BTreeSet;

use e2e::{Cluster, MachineSnapshot, Session, is_etcd_installed, lock_machine, until};

use crate::nodes::ready;

/// The number of Services that are created through each API server.
const EACH: usize = 50;

/// Returns `EACH` Services of type NodePort as one YAML text.
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
fn two_api_servers_allocate_no_address_or_node_port_twice() {
    let _turn = lock_machine();
    if !is_etcd_installed() {
        return;
    }
    let cluster = Cluster::new("attack-alloc");
    let before = MachineSnapshot::take(&cluster);
    cluster.up_with(&["--nodes", "2", "--control-planes", "2"]).ok();
    let s = Session::in_default_namespace(&cluster);
    ready(&s, "control-plane2", "True");
    // Address each API server directly, because the kubeconfig's address reaches either one.
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
    // Every address has an IPAddress object.
    let recorded = s.kubectl("get ipaddresses -o name").ok();
    for address in &addresses {
        let name = format!("ipaddress.networking.k8s.io/{address}");
        assert!(recorded.lines().any(|line| line == name), "{address} is not recorded: {recorded}");
    }
    cluster.down(&[]).ok();
    let left = MachineSnapshot::take(&cluster).since(&before);
    assert!(left.is_empty(), "{left:#?}");
}
