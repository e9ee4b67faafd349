use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use api_config::KubeProxyConfiguration;
use netlink::Net;
use proxy::{Mode, Settings};
use serde_json::json;

use crate::{
    api::FakeApi,
    world::{World, ask, service, slice},
};

const VIP: &str = "10.96.0.5:80";

/// Runs the whole component in the node's namespace until the value is dropped.
pub(crate) struct Running(rt::Shutdown, Option<std::thread::JoinHandle<()>>);

impl Running {
    pub(crate) fn start(world: &World, api: &FakeApi) -> Self {
        let mut config = KubeProxyConfiguration::new();
        config.cluster_cidr = "10.1.0.0/16".into();
        if world.mode == Mode::Iptables {
            config.mode = "iptables".into();
        }
        let (settings, _) = Settings::new(&config, "n1").unwrap();
        let net: Arc<dyn Net> = Arc::new(world.node.kernel().unwrap());
        let (shutdown, client) = (rt::Shutdown::new(), api.client());
        let tasks = rt::Tasks::new(shutdown.clone());
        let namespace = world.node.file().try_clone().unwrap();
        let thread = std::thread::spawn(move || {
            nix::sched::setns(&namespace, nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
            // Threads of the runtime inherit the namespace.
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                proxy::run(settings, client, net, &tasks).await.unwrap();
                assert_eq!(
                    tasks.drain(Duration::from_secs(5)).await.unfinished,
                    [] as [Arc<str>; 0]
                );
            });
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

pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(10), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) fn status(world: &World, port: u16, path: &str) -> String {
    use std::io::{Read, Write};
    let connect = || std::net::TcpStream::connect(("127.0.0.1", port));
    let Ok(mut stream) = world.node.run(connect).unwrap() else { return String::new() };
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn rules_follow_api_and_survive_shutdown() {
    let world = World::new(2, Mode::Nftables);
    world.serve_tcp(0, "10.1.0.2");
    let api = FakeApi::default();
    api.put("nodes", json!({"metadata": {"name": "n1"}, "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}}));
    api.put(
        "servicecidrs",
        json!({"metadata": {"name": "kubernetes"}, "spec": {"cidrs": ["10.96.0.0/12"]}}),
    );
    let running = Running::start(&world, &api);
    eventually("healthy once synchronised", || {
        status(&world, 10256, "/healthz").starts_with("HTTP/1.1 200")
    });
    let balanced = json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 31000,
        "ports": [{"name": "p", "port": 80, "nodePort": 30080}]});
    api.put("services", service("s", balanced));
    eventually("no endpoints yet", || status(&world, 31000, "/").starts_with("HTTP/1.1 503"));
    let start = Instant::now();
    api.put("endpointslices", slice("s", "TCP", &[0]));
    eventually("the Service answers", || ask(&world.pods[1], VIP).is_ok());
    println!("from EndpointSlice to an answer: {:?}", start.elapsed());
    assert_eq!(ask(&world.outside, "192.0.2.1:30080").unwrap().0, 0);
    assert_eq!(
        ask(&world.node, "127.0.0.1:30080").unwrap().0,
        0,
        "on localhost, as in iptables mode"
    );
    eventually("a local endpoint", || {
        let answer = status(&world, 31000, "/");
        answer.starts_with("HTTP/1.1 200") && answer.contains("x-load-balancing-endpoint-weight: 1")
    });
    let metrics = status(&world, 10249, "/metrics");
    assert!(metrics.contains("kubeproxy_sync_proxy_rules_duration_seconds_count"), "{metrics}");

    drop(running);
    assert_eq!(ask(&world.pods[1], VIP).unwrap().0, 0, "without the proxy");
    let handles = || {
        let list = || {
            std::process::Command::new("nft")
                .args(["-a", "-n", "list", "ruleset"])
                .output()
                .unwrap()
                .stdout
        };
        String::from_utf8(world.node.run(list).unwrap()).unwrap()
    };
    let before = handles();
    let again = Running::start(&world, &api);
    eventually("healthy again", || status(&world, 10256, "/healthz").starts_with("HTTP/1.1 200"));
    assert_eq!(handles(), before, "a restart wrote nothing");
    world
        .node
        .run(|| std::process::Command::new("nft").args(["flush", "ruleset"]).status().unwrap())
        .unwrap();
    api.delete("services", "ns/s");
    api.put("services", service("s", json!({})));
    eventually("rules that someone removed come back", || ask(&world.pods[1], VIP).is_ok());
    drop(again);
}
