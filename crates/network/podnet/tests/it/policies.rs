use std::{
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    sync::Arc,
    time::{Duration, Instant},
};

use netlink::{Namespace, Net};
use podnet::{Overlay, Settings};
use serde_json::{Value, json};

use crate::{Host, api::FakeApi, router};

struct Running(rt::Shutdown, Option<std::thread::JoinHandle<()>>);

impl Running {
    fn start(host: &Host, api: &FakeApi) -> Self {
        let net: Arc<dyn Net> = Arc::new(host.namespace.kernel().unwrap());
        let overlay = Overlay { device: "wlvx0".into(), mtu: 1450 };
        let settings = Settings { node: "here".into(), overlay, always_tunnel: false };
        let (shutdown, client) = (rt::Shutdown::new(), api.client());
        let tasks = rt::Tasks::new(shutdown.clone());
        let namespace = Namespace::open(std::path::Path::new(&path(&host.namespace))).unwrap();
        let thread = std::thread::spawn(move || {
            namespace
                .run(|| {
                    let runtime =
                        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                    runtime.block_on(podnet::run(settings, client, net, &tasks));
                })
                .unwrap();
        });
        Self(shutdown, Some(thread))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.stop();
        self.1.take().unwrap().join().unwrap();
    }
}

fn path(namespace: &Namespace) -> String {
    use std::os::fd::AsRawFd;
    format!("/proc/self/fd/{}", namespace.file().as_raw_fd())
}

fn connects(from: &Namespace, to: &str, port: u16) -> bool {
    let to = SocketAddr::new(to.parse::<IpAddr>().unwrap(), port);
    from.run(|| TcpStream::connect_timeout(&to, Duration::from_millis(300))).unwrap().is_ok()
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(10), "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn pod(name: &str, address: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "default", "labels": {"app": name}},
        "spec": {"nodeName": "here", "containers": [{"ports": [{"name": "web", "containerPort": 80}]}]},
        "status": {"phase": "Running", "podIPs": [{"ip": address}]}})
}

fn policy(name: &str, spec: Value) -> Value {
    json!({"metadata": {"name": name, "namespace": "default"}, "spec": spec})
}

#[test]
fn policies_isolate_pods_and_allow_named_peers() {
    let (_router, wires) = router();
    let host = Host::new(&wires, "r0", "192.0.2.1", "192.0.2.254", "10.9.1.0/24");
    let ((server, server_ip), (friend, friend_ip), (stranger, stranger_ip)) =
        (host.add_pod("s"), host.add_pod("f"), host.add_pod("x"));
    let listeners: Vec<_> = [80, 81]
        .map(|port| server.run(|| TcpListener::bind(("0.0.0.0", port)).unwrap()).unwrap())
        .into();
    let api = FakeApi::default();
    api.put("namespaces", json!({"metadata": {"name": "default", "labels": {"team": "a"}}}));
    for (name, ip) in [("server", &server_ip), ("friend", &friend_ip), ("stranger", &stranger_ip)] {
        api.put("pods", pod(name, ip));
    }
    let running = Running::start(&host, &api);
    assert!(connects(&stranger, &server_ip, 80), "without policies everyone may");
    let open = stranger.run(|| TcpStream::connect((server_ip.as_str(), 80)).unwrap()).unwrap();

    let to_server =
        json!({"podSelector": {"matchLabels": {"app": "server"}}, "policyTypes": ["Ingress"]});
    api.put("networkpolicies", policy("deny", to_server.clone()));
    eventually("isolated", || !connects(&stranger, &server_ip, 80));
    assert!(!connects(&friend, &server_ip, 80));
    assert!(connects(&host.namespace, &server_ip, 80), "probes come from the node");
    assert!(open.peer_addr().is_ok());

    let mut allow = to_server;
    allow["ingress"] = json!([{"from": [{"podSelector": {"matchLabels": {"app": "friend"}}}], "ports": [{"port": "web"}]}]);
    api.put("networkpolicies", policy("allow", allow));
    eventually("the friend may", || connects(&friend, &server_ip, 80));
    assert!(!connects(&friend, &server_ip, 81), "that port only");
    assert!(!connects(&stranger, &server_ip, 80));

    let egress = json!({"podSelector": {"matchLabels": {"app": "friend"}}, "policyTypes": ["Egress"],
        "egress": [{"to": [{"ipBlock": {"cidr": "10.9.0.0/16", "except": [format!("{server_ip}/32")]}}]}]});
    api.put("networkpolicies", policy("out", egress));
    eventually("the friend may no longer", || !connects(&friend, &server_ip, 80));
    drop(running);
    assert!(!connects(&stranger, &server_ip, 80), "rules outlive their writer");
    let _again = Running::start(&host, &api);
    for name in ["deny", "allow", "out"] {
        api.delete("networkpolicies", &format!("default/{name}"));
    }
    eventually("free again", || {
        connects(&stranger, &server_ip, 80) && connects(&friend, &server_ip, 81)
    });
    drop(listeners);
}
