//! Tests of the flags, and of the controller with a fake API server and a fake provider.

use std::{collections::BTreeMap, sync::Arc};

use clap::Parser;
use client::Resource;
use futures_util::FutureExt as _;
use kops_core::dns::{EXTERNAL, INTERNAL, Records};
use parking_lot::Mutex;
use serde_json::{Value, json};
use testkit::FakeApi;

use super::{
    provider::{ProviderError, Reply},
    *,
};

type Cli = api_config::CommandLine<Args>;

fn args(given: &[&str]) -> Args {
    Cli::try_parse_from(["dns-controller"].iter().chain(given)).unwrap().args
}

/// A provider in memory.
#[derive(Clone, Default)]
struct FakeProvider(Arc<Mutex<FakeState>>);

#[derive(Default)]
struct FakeState {
    zones: Vec<Zone>,
    records: BTreeMap<String, Records>,
    /// The number of names of each request.
    requests: Vec<usize>,
    /// The names whose changes are rejected.
    rejected: Vec<String>,
    /// `true` if no request is served.
    refuses: bool,
}

impl Provider for FakeProvider {
    fn zones(&self) -> Reply<'_, Vec<Zone>> {
        async { Ok(self.0.lock().zones.clone()) }.boxed()
    }

    fn apply<'a>(&'a self, zone: &'a Zone, changes: &'a [Change]) -> Reply<'a, ()> {
        let mut state = self.0.lock();
        state.requests.push(changes.len());
        let rejected = changes.iter().find(|change| state.rejected.contains(&change.name));
        let result = if state.refuses {
            Err(ProviderError::new(Effect::Refused, std::io::Error::other("refused")))
        } else if let Some(change) = rejected {
            let cause = std::io::Error::other(change.name.clone());
            Err(ProviderError::new(Effect::Rejected, cause))
        } else {
            for change in changes {
                assert!(change.name.ends_with(&zone.name));
                state.records.remove(&change.name);
                if !change.records.is_empty() {
                    state.records.insert(change.name.clone(), change.records.clone());
                }
            }
            Ok(())
        };
        std::future::ready(result).boxed()
    }
}

impl FakeProvider {
    fn new(zones: &[&str]) -> Self {
        let zones = zones.iter().map(|name| Zone::new(name, name).unwrap()).collect();
        Self(Arc::new(Mutex::new(FakeState { zones, ..FakeState::default() })))
    }

    fn controller(&self) -> Controller {
        Controller::new(Box::new(self.clone()), ZoneRules::default())
    }

    /// Returns the records: `name A 1.2.3.4`.
    fn shown(&self) -> Vec<String> {
        let state = self.0.lock();
        let sets = state.records.iter().flat_map(|(name, records)| {
            let sets = records.by_type().into_iter();
            sets.map(move |(kind, values)| format!("{name} {kind} {}", values.join(",")))
        });
        sets.collect()
    }
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_unix(seconds, 0)
}

/// Returns records with these addresses and this other name.
pub(super) fn records(ipv4: &[&str], ipv6: &[&str], host: Option<&str>) -> Records {
    Records {
        ipv4: ipv4.iter().map(|ip| ip.parse().unwrap()).collect(),
        ipv6: ipv6.iter().map(|ip| ip.parse().unwrap()).collect(),
        host: host.map(str::to_owned),
    }
}

pub(super) fn change(name: &str, records: Records) -> Change {
    Change { name: name.to_owned(), records }
}

fn wanted(names: &[&str]) -> DesiredRecords {
    let records = records(&["192.0.2.1"], &[], None);
    let names = names.iter().map(|name| ((*name).to_owned(), records.clone())).collect();
    DesiredRecords { names, ..DesiredRecords::default() }
}

pub(super) fn node(name: &str, ip: &str) -> Value {
    json!({
        "metadata": {"name": name, "labels": {"node-role.kubernetes.io/node": ""}},
        "status": {"addresses": [{"type": "InternalIP", "address": ip}]},
    })
}

pub(super) fn api_server_pod(node: &str, ip: &str) -> Value {
    json!({
        "metadata": {
            "name": format!("kube-apiserver-{node}"), "namespace": "kube-system",
            "annotations": {INTERNAL: "api.internal.a.test", EXTERNAL: "api.a.test"},
        },
        "spec": {"hostNetwork": true, "nodeName": node},
        "status": {"podIP": ip, "podIPs": [{"ip": ip}]},
    })
}

#[tokio::test]
async fn publishes_names_of_watched_objects() {
    let api = FakeApi::default();
    api.create(&Resource::NODES, node("cp-1", "10.0.0.1")).await;
    api.create(&Resource::PODS, api_server_pod("cp-1", "10.0.0.1")).await;
    let tasks = rt::Tasks::new(rt::Shutdown::new());
    // Until Services are listed, nothing is written.
    api.set_broken("services", true);
    let watch = Watch::start(&api.client("test"), "", true, &tasks);
    assert!(watch.synced().now_or_never().is_none());
    api.set_broken("services", false);
    watch.synced().await;
    let fake = FakeProvider::new(&["a.test"]);
    let mut controller = fake.controller();
    let options = AddressOptions { internal_as_external: true, ..AddressOptions::default() };
    let mut now = 0;
    let mut update = async |what: &str, expected: &[&str]| {
        let deadline = std::time::Instant::now() + Duration::from_secs(20);
        while fake.shown() != expected {
            now += 5;
            if let Some(wanted) = watch.wanted(options) {
                controller.set_wanted(wanted);
            }
            controller.update(at(now)).await;
            assert!(std::time::Instant::now() < deadline, "{what}: {:?}", fake.shown());
            tokio::task::yield_now().await;
        }
        fake.0.lock().requests.len()
    };
    let first = ["api.a.test A 10.0.0.1", "api.internal.a.test A 10.0.0.1"];
    assert_eq!(update("the first write", &first).await, 1);
    assert!(watch.wanted(options).is_none());
    let service = json!({
        "metadata": {"name": "web", "namespace": "default", "annotations": {INTERNAL: "web.a.test,api.a.test"}},
        "spec": {"type": "NodePort"},
    });
    api.create(&Resource::SERVICES, service).await;
    update("a Service", &[first[0], first[1], "web.a.test A 10.0.0.1"]).await;
    // The control plane's Node is gone, and its Pod has no address: the names stay.
    let status = json!({"status": {"podIP": null, "podIPs": []}});
    let pod = client::PatchTarget {
        namespace: "kube-system",
        name: "kube-apiserver-cp-1",
        subresource: "status",
    };
    api.merge(&Resource::PODS, pod, status).await;
    let client = api.client("test");
    let deletion = client::DeleteOptions::default();
    client.delete(&Resource::NODES, "", "cp-1", &deletion).await.unwrap();
    api.create(&Resource::NODES, node("w-1", "10.0.0.9")).await;
    update("another Node", &[first[0], first[1], "web.a.test A 10.0.0.9"]).await;
    client.delete(&Resource::SERVICES, "default", "web", &deletion).await.unwrap();
    update("the end of the Service", &first).await;
    tasks.shutdown().stop();
    tasks.drain(Duration::from_secs(5)).await;
}

#[tokio::test]
async fn bad_name_does_not_block_others() {
    let fake = FakeProvider::new(&["a.test", "b.test"]);
    fake.0.lock().rejected.push("n3.a.test".to_owned());
    let mut controller = fake.controller();
    let names: Vec<_> = (0..25).map(|n| format!("n{n}.a.test")).collect();
    let mut names: Vec<_> = names.iter().map(String::as_str).collect();
    names.extend(["x.b.test", "nowhere.test"]);
    controller.set_wanted(wanted(&names));
    controller.update(at(0)).await;
    assert_eq!(fake.0.lock().records.len(), 25);
    let requests = fake.0.lock().requests.len();
    // The rejected name and the one without a zone wait.
    controller.update(at(1)).await;
    assert_eq!(fake.0.lock().requests.len(), requests);
    fake.0.lock().rejected.clear();
    controller.update(at(5)).await;
    assert_eq!(fake.0.lock().records.len(), 26);
}

#[tokio::test]
async fn provider_that_refuses_is_asked_once_per_round() {
    let fake = FakeProvider::new(&["a.test"]);
    fake.0.lock().refuses = true;
    let mut controller = fake.controller();
    let names: Vec<_> = (0..100).map(|n| format!("n{n}.a.test")).collect();
    controller.set_wanted(wanted(&names.iter().map(String::as_str).collect::<Vec<_>>()));
    let mut rounds = Vec::new();
    for now in 0..1_000 {
        controller.update(at(now)).await;
        if !fake.0.lock().requests.is_empty() {
            fake.0.lock().requests.clear();
            rounds.push(now);
        }
    }
    assert_eq!(rounds, [0, 5, 15, 35, 75, 155, 315, 475, 635, 795, 955]);
    fake.0.lock().refuses = false;
    controller.update(at(5_000)).await;
    assert_eq!(fake.0.lock().records.len(), 100);
}

#[tokio::test]
async fn zone_has_no_cname_at_its_top() {
    let fake = FakeProvider::new(&["a.test"]);
    let mut controller = fake.controller();
    let records = records(&[], &[], Some("b.test"));
    let names = ["a.test", "x.a.test"].map(|name| (name.to_owned(), records.clone())).into();
    controller.set_wanted(DesiredRecords { names, ..DesiredRecords::default() });
    controller.update(at(0)).await;
    assert_eq!(fake.shown(), ["x.a.test CNAME b.test"]);
}

#[test]
fn flags_select_the_provider() {
    let provider = |given: &[&str]| {
        let args = args(given);
        let rules = ZoneRules::parse(&args.zone).unwrap();
        args.provider(&rules).map_or_else(|error| error.to_string(), |_| "accepted".to_owned())
    };
    let rfc2136 = ["--dns=rfc2136", "--rfc2136-server=192.0.2.53"];
    let with = |more: &[&'static str]| [&rfc2136[..], more].concat();
    for (given, expected) in [
        (vec![], "accepted"),
        (
            vec!["--dns=aws-route53", "--zone=*/Z1", "-z=*/*", "--watch-ingress=false", "-v=2"],
            "accepted",
        ),
        (vec!["--dns=gossip"], "--dns \"gossip\" is not supported"),
        (vec!["--gossip-seed=a"], "--gossip-seed is not supported"),
        (vec!["--rfc2136-server=a"], "--rfc2136-server belongs to --dns rfc2136"),
        (vec!["--rfc2136-insecure"], "--rfc2136-insecure belongs to --dns rfc2136"),
        (vec!["--dns=rfc2136"], "needs --rfc2136-server"),
        (with(&["--zone=a.test"]), "needs --rfc2136-tsig-key-file, or --rfc2136-insecure"),
        (with(&["--rfc2136-insecure"]), "needs --zone NAME"),
        (with(&["--rfc2136-insecure", "--zone=*"]), "needs --zone NAME"),
        (with(&["--rfc2136-tsig-key-file=/k", "--zone=a.test,b.test"]), "accepted"),
    ] {
        let text = provider(&given);
        assert!(text.contains(expected), "{given:?}: {text}");
    }
    for given in ["--update-interval=0", "--internal-ipv4=maybe", "--frob"] {
        assert!(Cli::try_parse_from(["dns-controller", given]).is_err(), "{given}");
    }
    for (given, ipv4, ipv6) in [
        (&[][..], true, true),
        (&["--internal-ipv4"], true, false),
        (&["--internal-ipv6"], false, true),
        (&["--internal-ipv4", "--internal-ipv6"], true, true),
        (&["--internal-ipv4=false"], false, true),
    ] {
        let options = args(given).address_options();
        assert_eq!((options.internal_ipv4, options.internal_ipv6), (ipv4, ipv6), "{given:?}");
    }
    for (server, expected) in [
        ("ns.test", "ns.test:53"),
        ("ns.test:5353", "ns.test:5353"),
        ("192.0.2.1", "192.0.2.1:53"),
        ("2001:db8::1", "[2001:db8::1]:53"),
        ("[2001:db8::1]", "[2001:db8::1]:53"),
        ("[2001:db8::1]:5353", "[2001:db8::1]:5353"),
    ] {
        assert_eq!(with_port(server), expected);
    }
}
