use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use client::{Body, Client, Resource, Transport};
use futures_util::future::BoxFuture;
use http::{Request, Response};
use netlink::{Fake, Net as _, NewKind, NewLink};
use serde_json::{Value, json};
use testkit::FakeApi;
use tokio::{sync::watch, time::Instant};

use super::{
    SpeakerSettings, announce,
    plan::{Change, Claim, EXPIRE, FENCE, Plan, ServiceAddress, View, plan},
    subject::Subject,
};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn names_of_leases_are_unique_and_reversible() {
    for address in ["192.0.2.5", "2001:db8::5", "::", "fd00:1:2:3:4:5:6:7"] {
        let subject = Subject::Address(ip(address));
        assert!(!subject.name().contains(':'));
        assert_eq!(Subject::parse(&subject.name()), Some(subject));
    }
    assert_eq!(Subject::parse("node-a"), Some(Subject::Node("a".into())));
    for hostile in ["", "address-", "address-x", "kube-scheduler", "address-1.2.3.4.5"] {
        assert_eq!(Subject::parse(hostile), None, "{hostile}");
    }
}

/// An address as node `a` sees it, with times in milliseconds before now.
#[derive(Clone, Copy)]
struct Case {
    allowed: Option<bool>,
    /// The holder, and the last renewal of its Lease.
    holder: Option<(&'static str, u64)>,
    renewed: u64,
    steady: u64,
}

fn planned(case: Case) -> (bool, Option<Change>) {
    let now = Instant::now() + Duration::from_secs(3600);
    let ago = |milliseconds| now - Duration::from_millis(milliseconds);
    let address = ip("192.0.2.5");
    let wanted =
        case.allowed.map(|allowed| (address, ServiceAddress { allowed, since: ago(60_000) }));
    let claim = case
        .holder
        .map(|(holder, _)| (address, Claim { holder: holder.to_owned(), changed: ago(60_000) }));
    let heartbeat = case.holder.map(|(holder, seen)| (holder.to_owned(), ago(seen)));
    let Plan { announced, changes } = plan(&View {
        node: "a",
        now,
        wanted: &wanted.into_iter().collect(),
        claims: &claim.into_iter().collect(),
        heartbeats: &heartbeat.into_iter().collect(),
        renewed: Some(ago(case.renewed)),
        steady_since: Some(ago(case.steady)),
    });
    (announced.contains(&address), changes.get(&address).copied())
}

#[test]
fn takes_and_gives_up_addresses() {
    let base = Case { allowed: Some(true), holder: None, renewed: 100, steady: 60_000 };
    let silent = FENCE.as_millis() as u64;
    let lost = EXPIRE.as_millis() as u64;
    for (case, expected) in [
        (base, (false, Some(Change::Take))),
        (Case { holder: Some(("a", 0)), ..base }, (true, None)),
        (Case { holder: Some(("a", 0)), renewed: silent, ..base }, (false, None)),
        (Case { holder: Some(("", 0)), ..base }, (false, Some(Change::Take))),
        (Case { holder: Some(("b", 100)), ..base }, (false, None)),
        (Case { holder: Some(("b", lost - 1)), ..base }, (false, None)),
        (Case { holder: Some(("b", lost + 300)), ..base }, (false, Some(Change::Take))),
        // Nobody could renew a Lease while the API was down.
        (Case { holder: Some(("b", 60_000)), steady: 1000, ..base }, (false, None)),
        (Case { renewed: silent, ..base }, (false, None)),
        (Case { allowed: Some(false), ..base }, (false, None)),
        (
            Case { allowed: Some(false), holder: Some(("a", 0)), ..base },
            (false, Some(Change::Release)),
        ),
        (Case { allowed: None, holder: Some(("a", 0)), ..base }, (false, Some(Change::Delete))),
        (Case { allowed: None, holder: Some(("b", 0)), ..base }, (false, None)),
        (Case { allowed: None, holder: Some(("b", lost)), ..base }, (false, Some(Change::Delete))),
    ] {
        let Case { allowed, holder, renewed, steady } = case;
        assert_eq!(planned(case), expected, "{allowed:?} {holder:?} {renewed} {steady}");
    }
    assert!(
        FENCE + Duration::from_millis(400) < EXPIRE,
        "a node needs time to remove its addresses"
    );
}

#[test]
fn spreads_addresses_over_nodes() {
    let now = Instant::now() + Duration::from_secs(3600);
    let since = now - Duration::from_millis(100);
    let all: Vec<IpAddr> = (1..=200).map(|n| ip(&format!("192.0.2.{n}"))).collect();
    let wanted = all.iter().map(|ip| (*ip, ServiceAddress { allowed: true, since })).collect();
    let heartbeats: BTreeMap<String, Instant> =
        ["a", "b", "c"].map(|node| (node.to_owned(), now)).into();
    let mut taken = BTreeSet::new();
    for node in ["a", "b", "c"] {
        let view = View {
            node,
            now,
            wanted: &wanted,
            claims: &BTreeMap::new(),
            heartbeats: &heartbeats,
            renewed: Some(now),
            steady_since: Some(since),
        };
        let own: Vec<_> = plan(&view).changes.into_keys().collect();
        assert!(own.len() > 30, "{node} takes {} of 200", own.len());
        own.into_iter().for_each(|ip| assert!(taken.insert(ip), "{ip} is taken twice"));
    }
    assert_eq!(taken.len(), all.len());
}

/// A connection that can fail, as when a node loses its network.
struct Wire {
    api: Client,
    works: watch::Receiver<bool>,
}

impl Transport for Wire {
    fn send(&self, request: Request<Body>) -> BoxFuture<'_, Result<Response<Body>, client::Error>> {
        Box::pin(async move {
            if !*self.works.borrow() {
                // A request into a cut cable stays unanswered.
                std::future::pending::<()>().await;
            }
            self.api.request(request).await
        })
    }
}

/// A node that announces addresses on an interface of its own.
struct Speaker {
    net: Arc<Fake>,
    connect: watch::Sender<bool>,
    tasks: rt::Tasks,
}

impl Speaker {
    fn start(api: &FakeApi, node: &str, network: &str) -> Self {
        let net = Arc::new(Fake::new());
        net.add_link(&NewLink { name: "wl-speaker", mtu: 0, mac: None, kind: NewKind::Bridge })
            .unwrap();
        let index = net.link("wl-speaker").unwrap().unwrap().index;
        net.add_address(index, network.parse().unwrap()).unwrap();
        let (connect, works) = watch::channel(true);
        let client = Client::new(Arc::new(Wire { api: api.client(node), works }), node);
        let tasks = rt::Tasks::new(rt::Shutdown::new());
        let settings = SpeakerSettings {
            node: node.to_owned(),
            ranges: vec!["192.0.2.0/28".parse().unwrap(), "2001:db8::/120".parse().unwrap()],
            reserved: vec![ip("192.0.2.8")],
            namespace: "kube-system".to_owned(),
            beside: None,
        };
        let (own, running) = (net.clone(), tasks.clone());
        tasks.spawn("speaker", async move { announce(settings, client, own, &running).await });
        Self { net, connect, tasks }
    }

    fn has(&self, address: &str) -> bool {
        let address = ip(address);
        self.net.addresses().unwrap().iter().any(|a| a.cidr.address == address)
    }
}

async fn apply(api: &FakeApi, resource: &Resource, object: Value) {
    api.create(resource, object).await;
}

async fn cluster() -> FakeApi {
    let api = FakeApi::default();
    for node in ["a", "b", "c", "far"] {
        apply(&api, &Resource::NODES, json!({"metadata": {"name": node}})).await;
    }
    let service = |name: &str, kind: &str, ips: &[&str]| {
        let ingress: Vec<_> = ips.iter().map(|ip| json!({"ip": ip, "ipMode": "VIP"})).collect();
        json!({"metadata": {"name": name, "namespace": "default"},
            "spec": {"type": kind, "clusterIP": "10.96.0.9", "ports": [{"port": 80}]},
            "status": {"loadBalancer": {"ingress": ingress}}})
    };
    let both = ["192.0.2.5", "2001:db8::5"];
    apply(&api, &Resource::SERVICES, service("web", "LoadBalancer", &both)).await;
    // An address of another load balancer, and a Service that is none any more.
    apply(&api, &Resource::SERVICES, service("other", "LoadBalancer", &["198.51.100.1"])).await;
    apply(&api, &Resource::SERVICES, service("former", "ClusterIP", &["192.0.2.6"])).await;
    api
}

fn start_all(api: &FakeApi) -> Vec<Speaker> {
    let network = |n: u8| format!("192.0.2.{}/24", 100 + n);
    ["a", "b", "c"]
        .iter()
        .zip(1..)
        .map(|(node, n)| Speaker::start(api, node, &network(n)))
        .collect()
}

async fn pass(milliseconds: u64) {
    tokio::time::sleep(Duration::from_millis(milliseconds)).await;
}

#[tokio::test(start_paused = true)]
async fn one_node_has_address_and_another_takes_over_within_three_seconds() {
    let api = cluster().await;
    let speakers = start_all(&api);
    let far = Speaker::start(&api, "far", "10.0.0.1/24");
    pass(3000).await;
    let address = "192.0.2.5";
    let holders = || speakers.iter().filter(|speaker| speaker.has(address)).count();
    for round in 0..10 {
        assert_eq!(holders(), 1, "in round {round}");
        let index = speakers.iter().position(|speaker| speaker.has(address)).unwrap();
        let holder = &speakers[index];
        holder.connect.send_replace(false);
        for _ in 0..30 {
            pass(100).await;
            assert!(holders() <= 1, "two nodes have the address");
        }
        assert_eq!(holders(), 1, "no node took over in round {round}");
        assert!(!holder.has(address));
        holder.connect.send_replace(true);
        pass(5000).await;
    }
    assert!(!far.has(address), "the address is in none of its networks");
    for speaker in &speakers {
        assert!(!speaker.has("198.51.100.1") && !speaker.has("192.0.2.6"));
    }
    assert!(speakers.iter().all(|speaker| !speaker.has("2001:db8::5")), "no network has it");
}

#[tokio::test(start_paused = true)]
async fn holder_releases_address_with_service_and_at_shutdown() {
    let api = cluster().await;
    let speakers = start_all(&api);
    pass(3000).await;
    let holder = || speakers.iter().position(|speaker| speaker.has("192.0.2.5"));
    let first = holder().unwrap();
    speakers[first].tasks.shutdown().stop();
    pass(700).await;
    let second = holder().unwrap();
    assert_ne!(first, second, "a node that stops releases its addresses at once");
    let user = api.client("user");
    user.delete(&Resource::SERVICES, "default", "web", &Default::default()).await.unwrap();
    pass(500).await;
    assert_eq!(holder(), None);
    pass(3000).await;
    let leases = api.list(&Resource::LEASES, "kube-system");
    let of_address = leases.iter().filter(|l| l["metadata"]["name"] == "address-192.0.2.5");
    assert_eq!(of_address.count(), 0);
}

#[tokio::test(start_paused = true)]
async fn address_moves_back_to_one_node_after_api_outage() {
    let api = cluster().await;
    let speakers = start_all(&api);
    pass(3000).await;
    let holder = || speakers.iter().position(|speaker| speaker.has("192.0.2.5"));
    let before = holder();
    assert!(before.is_some());
    speakers.iter().for_each(|speaker| _ = speaker.connect.send_replace(false));
    pass(30_000).await;
    assert_eq!(holder(), None, "no node knows whether another one has taken it");
    speakers.iter().for_each(|speaker| _ = speaker.connect.send_replace(true));
    pass(3000).await;
    assert_eq!(holder(), before, "the holder keeps its address");
}

#[tokio::test(start_paused = true)]
async fn removes_address_of_earlier_run_that_another_node_has() {
    let api = cluster().await;
    let speaker = Speaker::start(&api, "a", "192.0.2.101/24");
    pass(3000).await;
    assert!(speaker.has("192.0.2.5"));
    let late = Speaker::start(&api, "b", "192.0.2.102/24");
    let index = late.net.link("wl-speaker").unwrap().unwrap().index;
    for left in ["192.0.2.5/32", "192.0.2.7/32"] {
        late.net.add_service_address(index, left.parse().unwrap()).unwrap();
    }
    pass(1000).await;
    assert!(!late.has("192.0.2.5") && !late.has("192.0.2.7") && late.has("192.0.2.102"));
}

/// Sets the addresses of a Service of type LoadBalancer or of a Node.
async fn set_status(api: &FakeApi, resource: &Resource, name: &str, status: Value) {
    let namespace = if resource.namespaced { "default" } else { "" };
    let at = client::PatchTarget { namespace, name, subresource: "status" };
    api.merge(resource, at, json!({"status": status})).await;
}

#[tokio::test(start_paused = true)]
async fn keeps_and_never_announces_addresses_of_api_and_nodes() {
    let api = cluster().await;
    let node = |address: &str| json!({"addresses": [{"type": "InternalIP", "address": address}]});
    set_status(&api, &Resource::NODES, "b", node("192.0.2.9")).await;
    let ips = ["192.0.2.8", "192.0.2.9", "192.0.2.10"].map(|ip| json!({"ip": ip}));
    let taken = json!({"loadBalancer": {"ingress": ips}});
    set_status(&api, &Resource::SERVICES, "web", taken).await;
    let speaker = Speaker::start(&api, "a", "192.0.2.101/24");
    pass(3000).await;
    assert!(!speaker.has("192.0.2.8") && !speaker.has("192.0.2.9") && speaker.has("192.0.2.10"));
    // A node joins with the address of a Service.
    set_status(&api, &Resource::NODES, "c", node("192.0.2.10")).await;
    pass(1000).await;
    assert!(!speaker.has("192.0.2.10"), "a node has it");

    let holder = Speaker::start(&api, "b", "192.0.2.102/24");
    let index = holder.net.link("wl-speaker").unwrap().unwrap().index;
    for address in ["192.0.2.8/32", "192.0.2.9/32", "192.0.2.12/32"] {
        holder.net.add_service_address(index, address.parse().unwrap()).unwrap();
    }
    holder.net.add_address(index, "192.0.2.11/32".parse().unwrap()).unwrap();
    pass(3000).await;
    assert!(holder.has("192.0.2.8"), "the API has it");
    assert!(holder.has("192.0.2.9"), "a node has it");
    assert!(holder.has("192.0.2.11"), "an administrator added it");
    assert!(!holder.has("192.0.2.12"), "an earlier run added it");
}
