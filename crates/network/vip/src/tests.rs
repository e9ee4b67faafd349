use std::net::Ipv4Addr;

use client::{Body, Transport};
use futures_util::future::BoxFuture;
use http::{Request, Response};
use net_core::Cidr;
use netlink::{Fake, NewKind, NewLink};
use testkit::FakeApi;
use tokio::sync::watch;

use super::*;

const ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 100);

fn machine() -> Arc<Fake> {
    let net = Arc::new(Fake::new());
    for (name, address) in [("eth0", [10, 0, 0, 1]), ("eth1", [192, 0, 2, 1])] {
        net.add_link(&NewLink { name, mtu: 0, mac: None, kind: NewKind::Bridge }).unwrap();
        let index = net.link(name).unwrap().unwrap().index;
        net.add_address(index, Cidr::new(Ipv4Addr::from(address).into(), 24).unwrap()).unwrap();
    }
    net
}

fn has(net: &Fake) -> bool {
    net.addresses().unwrap().iter().any(|a| a.cidr == Cidr::host(ADDRESS.into()))
}

#[test]
fn adds_and_removes_address_on_servers_interface() {
    let net = machine();
    let beside = host_of("https://192.0.2.1:6443");
    let place = AddressInterface::find(net.clone(), ADDRESS.into(), None, beside).unwrap();
    assert_eq!(place.interface, "eth1");
    place.add().unwrap();
    place.add().unwrap();
    assert!(has(&net));
    place.remove().unwrap();
    place.remove().unwrap();
    assert!(!has(&net));
}

#[test]
fn reads_address_of_a_url_with_and_without_port() {
    for (server, address) in [
        ("https://192.0.2.1:6443", Some("192.0.2.1")),
        ("http://192.0.2.1", Some("192.0.2.1")),
        ("https://192.0.2.1/path", Some("192.0.2.1")),
        ("https://[fd00::1]:6443", Some("fd00::1")),
        ("https://[fd00::1]", Some("fd00::1")),
        ("https://api.example.org:6443", None),
        ("https://:6443", None),
        ("", None),
        ("$(reboot)", None),
    ] {
        assert_eq!(host_of(server), address.map(|text| text.parse().unwrap()), "{server}");
    }
}

#[test]
fn missing_interface_error_names_remedy() {
    let net = machine();
    let find = |interface, beside| {
        AddressInterface::find(net.clone(), ADDRESS.into(), interface, beside)
            .err()
            .map(|e| e.to_string())
    };
    assert!(find(Some("eth7"), None).unwrap().contains("eth7"));
    let nowhere = find(None, host_of("https://[fd00::1]:6443")).unwrap();
    assert!(nowhere.contains("fd00::1") && nowhere.contains("--interface"), "{nowhere}");
    assert_eq!(find(Some("eth0"), None), None);
}

/// An API server that can fall silent, like one whose store has lost its quorum.
struct Server {
    api: Client,
    speaks: watch::Receiver<bool>,
}

impl Transport for Server {
    fn send(&self, request: Request<Body>) -> BoxFuture<'_, Result<Response<Body>, client::Error>> {
        Box::pin(async move {
            if !*self.speaks.borrow() {
                // Requests to a silent server stay unanswered, even after it recovers.
                std::future::pending::<()>().await;
            }
            self.api.request(request).await
        })
    }
}

#[tokio::test(start_paused = true)]
async fn one_machine_takes_address_after_quorum_loss() {
    let (speak, speaks) = watch::channel(true);
    let tasks = rt::Tasks::new(rt::Shutdown::new());
    let api = FakeApi::default().client("test");
    let machines: Vec<Arc<Fake>> = ["a", "b", "c"]
        .map(|name| {
            let net = machine();
            let beside = host_of("https://192.0.2.1:6443");
            let place = AddressInterface::find(net.clone(), ADDRESS.into(), None, beside).unwrap();
            let server = Server { api: api.clone(), speaks: speaks.clone() };
            let client = Client::new(Arc::new(server), "test");
            let shutdown = tasks.shutdown().clone();
            tasks.spawn("machine", async move {
                contend(&client, name, &place, &shutdown).await;
            });
            net
        })
        .into();
    let holders = || machines.iter().filter(|net| has(net)).count();
    let pass = |seconds| tokio::time::sleep(Duration::from_secs(seconds));
    for _ in 0..3 {
        pass(60).await;
        assert_eq!(holders(), 1, "with a quorum one has it");
        speak.send_replace(false);
        pass(15).await;
        assert_eq!(holders(), 0, "no machine keeps an address that another may get");
        pass(600).await;
        speak.send_replace(true);
        pass(30).await;
    }
    assert_eq!(holders(), 1);
    tasks.shutdown().stop();
    tasks.drain(Duration::from_secs(5)).await;
    assert_eq!(holders(), 0, "who ends gives it up");
}

#[tokio::test(start_paused = true)]
async fn initial_address_is_removed_without_answer() {
    let (_speak, speaks) = watch::channel(false);
    let tasks = rt::Tasks::new(rt::Shutdown::new());
    let net = machine();
    let beside = host_of("https://192.0.2.1:6443");
    let place = AddressInterface::find(net.clone(), ADDRESS.into(), None, beside).unwrap();
    place.add().unwrap();
    let server = Server { api: FakeApi::default().client("test"), speaks };
    let shutdown = tasks.shutdown().clone();
    tasks.spawn("machine", async move {
        contend(&Client::new(Arc::new(server), "test"), "a", &place, &shutdown).await;
    });
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(has(&net), "the first control plane has it while its API server starts");
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert!(!has(&net));
    tasks.shutdown().stop();
}
