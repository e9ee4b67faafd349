//! Allocation with several API servers on one store, each of which sees changes late: namespaces, addresses and node
//! ports of Services.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use apiserver::Config;
use futures_util::future::{BoxFuture, join_all};
use serde_json::{Value, json};
use store::{
    Expected, KeyRange, KeyValue, Op, Outcome, Reply, Revision, Store, WatchMessage, WatchStream,
    Write,
};

use crate::{
    harness::{Answer, Api, TestServer, start},
    services::service,
};

const ADDRESSES: &str = "/apis/networking.k8s.io/v1/ipaddresses";
const PORTS: &str = "/registry/ranges/servicenodeports";

/// A store with delayed responses and changes. A seed determines the delays.
struct DelayedStore {
    inner: Arc<dyn Store>,
    state: Arc<AtomicU64>,
}

impl DelayedStore {
    fn over(inner: &Arc<dyn Store>, seed: u64) -> Arc<dyn Store> {
        let state = Arc::new(AtomicU64::new(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1));
        Arc::new(Self { inner: inner.clone(), state })
    }
}

/// Waits for up to `most` milliseconds.
async fn pass(state: &AtomicU64, most: u64) {
    let step = |mut x: u64| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x
    };
    let old = state.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |x| Some(step(x))).unwrap();
    tokio::time::sleep(Duration::from_micros(old % (most * 1000))).await;
}

impl Store for DelayedStore {
    fn below(&self) -> &dyn Store {
        &*self.inner
    }

    fn get<'a>(&'a self, key: &'a str) -> Reply<'a, (Option<KeyValue>, Revision)> {
        Box::pin(async move {
            let found = self.inner.get(key).await;
            pass(&self.state, 3).await;
            found
        })
    }

    fn write(&self, write: Write) -> Reply<'_, Outcome> {
        Box::pin(async move {
            pass(&self.state, 3).await;
            let outcome = self.inner.write(write).await;
            pass(&self.state, 3).await;
            outcome
        })
    }

    fn watch(&self, range: KeyRange, after: Revision) -> Reply<'_, Box<dyn WatchStream>> {
        Box::pin(async move {
            let inner = self.inner.watch(range, after).await?;
            let state = self.state.clone();
            Ok(Box::new(LateWatch { inner, state, held: None }) as Box<dyn WatchStream>)
        })
    }
}

struct LateWatch {
    inner: Box<dyn WatchStream>,
    state: Arc<AtomicU64>,
    held: Option<WatchMessage>,
}

impl WatchStream for LateWatch {
    fn next(&mut self) -> BoxFuture<'_, Option<WatchMessage>> {
        Box::pin(async move {
            if self.held.is_none() {
                self.held = Some(self.inner.next().await?);
                pass(&self.state, 10).await;
            }
            self.held.take()
        })
    }
}

/// Starts two servers on one store. The third one, which created it, has stopped.
async fn two(seed: u64, change: impl Fn(&mut Config)) -> [TestServer; 2] {
    let first = start(&change).await;
    first.tasks.shutdown().stop();
    let a = first.beside_on(DelayedStore::over(&first.store, seed), &change).await;
    let b = first.beside_on(DelayedStore::over(&first.store, seed + 1000), &change).await;
    [a, b]
}

fn stop(servers: &[TestServer]) {
    servers.iter().for_each(|server| server.tasks.shutdown().stop());
}

/// Creates `count` Services concurrently, alternating between both servers.
async fn create(apis: &[Api; 2], path: &str, count: usize, spec: &Value) -> Vec<Answer> {
    let created = (0..count).map(|i| {
        let (api, path) = (apis[i % 2].clone(), path.to_owned());
        let service = service(&format!("s{i}"), spec.clone());
        tokio::spawn(async move { api.post(&path, &service).await })
    });
    join_all(created).await.into_iter().map(|answer| answer.unwrap()).collect()
}

/// Returns all addresses and node ports of Services, and asserts that none occurs twice.
async fn allocated(api: &Api) -> (BTreeSet<String>, BTreeSet<u64>) {
    let (mut addresses, mut ports) = (BTreeSet::new(), BTreeSet::new());
    let listed = api.get("/api/v1/services").await.ok();
    for service in listed["items"].as_array().unwrap() {
        let of = |list: &Value| list.as_array().cloned().unwrap_or_default();
        for address in of(&service["spec"]["clusterIPs"]).iter().filter(|a| **a != "None") {
            assert!(addresses.insert(address.as_str().unwrap().to_owned()), "{address} twice");
        }
        let health = service["spec"]["healthCheckNodePort"].as_u64();
        let own = of(&service["spec"]["ports"])
            .iter()
            .filter_map(|p| p["nodePort"].as_u64())
            .collect::<BTreeSet<_>>();
        for port in own.into_iter().chain(health) {
            assert!(ports.insert(port), "{port} twice");
        }
    }
    (addresses, ports)
}

/// Waits until the IPAddresses are exactly the wanted ones.
async fn recorded(api: &Api, wanted: &BTreeSet<String>) {
    let started = Instant::now();
    loop {
        let listed = api.get(ADDRESSES).await.ok();
        let names = listed["items"].as_array().unwrap().iter();
        let names: BTreeSet<String> =
            names.map(|a| a["metadata"]["name"].as_str().unwrap().to_owned()).collect();
        if names == *wanted {
            return;
        }
        assert!(started.elapsed().as_secs() < 30, "{names:?} are recorded, not {wanted:?}");
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn allocates_nothing_twice_with_two_servers() {
    for seed in 1..=3 {
        let servers = two(seed, |config| {
            config.service_cidrs = vec!["10.96.0.0/26".parse().unwrap()];
            config.node_ports = (30_000, 30_019);
        })
        .await;
        let apis = [servers[0].admin(), servers[1].admin()];
        let path = format!("/api/v1/namespaces/{}/services", apis[0].namespace().await);
        let answers = create(&apis, &path, 36, &json!({"type": "NodePort"})).await;
        let made = answers.iter().filter(|answer| answer.code == 201).count();
        for answer in answers.iter().filter(|answer| answer.code != 201) {
            let told = answer.refused(500, "InternalError");
            assert_eq!(
                told,
                "Internal error occurred: failed to allocate a nodePort: range is full"
            );
        }
        let (addresses, ports) = allocated(&apis[1]).await;
        // The kubernetes Service has one address.
        assert_eq!((made, addresses.len(), ports.len()), (20, 21, 20), "seed {seed}");
        // The allocations of rejected Services are released.
        recorded(&apis[0], &addresses).await;
        stop(&servers);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn allocates_whole_range_with_two_servers() {
    for seed in 4..=6 {
        let ranges = ["10.96.0.0/28", "fd96::/124"];
        let servers = two(seed, |config| {
            config.service_cidrs = ranges.iter().map(|r| r.parse().unwrap()).collect();
        })
        .await;
        let apis = [servers[0].admin(), servers[1].admin()];
        let path = format!("/api/v1/namespaces/{}/services", apis[0].namespace().await);
        let answers = create(&apis, &path, 16, &json!({})).await;
        let made = answers.iter().filter(|answer| answer.code == 201).count();
        for (i, answer) in answers.iter().enumerate().filter(|(_, answer)| answer.code != 201) {
            let told = answer.refused(500, "InternalError");
            let wanted = format!(
                "Internal error occurred: failed to allocate a serviceIP for Service \"s{i}\": range is full"
            );
            assert_eq!(told, wanted);
        }
        assert_eq!(made, 13, "seed {seed}");
        let both = json!({"ipFamilies": ["IPv6"], "ipFamilyPolicy": "PreferDualStack"});
        // The second family is exhausted, and the address of the first one is released.
        apis[0].post(&path, &service("both", both)).await.refused(500, "InternalError");
        let (addresses, _) = allocated(&apis[1]).await;
        assert_eq!(addresses.len(), 14);
        recorded(&apis[0], &addresses).await;
        stop(&servers);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn grants_requested_address_to_one_of_two() {
    let servers = two(7, |_| {}).await;
    let apis = [servers[0].admin(), servers[1].admin()];
    let namespace = apis[0].namespace().await;
    let path = format!("/api/v1/namespaces/{namespace}/services");
    for round in 1..=12 {
        // From the lower part of the ranges, where nothing is allocated automatically.
        let (address, port) = (format!("10.96.0.{}", 100 + round), 30_000 + round);
        let by_address = json!({"clusterIP": address});
        let by_port = json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": port}]});
        let health = json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": port + 40});
        let cases = [
            (
                "ip",
                by_address,
                format!(
                    "spec.clusterIPs: Invalid value: [\"{address}\"]: failed to allocate IP {address}: provided IP is already allocated"
                ),
            ),
            (
                "port",
                by_port,
                format!(
                    "spec.ports[0].nodePort: Invalid value: {port}: provided port is already allocated"
                ),
            ),
            (
                "health",
                health,
                format!(
                    "failed to allocate requested HealthCheck NodePort {}: provided port is already allocated",
                    port + 40
                ),
            ),
        ];
        for (kind, spec, wanted) in cases {
            let names =
                ["a", "b"].map(|server| service(&format!("{kind}{round}{server}"), spec.clone()));
            let (a, b) =
                futures_util::join!(apis[0].post(&path, &names[0]), apis[1].post(&path, &names[1]));
            assert!(a.code == 201 || b.code == 201, "neither: {}, {}", a.json(), b.json());
            let lost = if a.code == 201 { b } else { a };
            let told = lost.json()["message"].as_str().unwrap_or_default().to_owned();
            assert!(lost.code != 201 && told.contains(&wanted), "{told}");
        }
    }
    let (addresses, _) = allocated(&apis[1]).await;
    recorded(&apis[1], &addresses).await;
    stop(&servers);
}

#[tokio::test(flavor = "multi_thread")]
async fn sees_namespace_created_by_other_server() {
    let servers = two(9, |_| {}).await;
    let apis = [servers[0].admin(), servers[1].admin()];
    for _ in 0..10 {
        let path = format!("/api/v1/namespaces/{}/services", apis[0].namespace().await);
        apis[1].post(&path, &service("a", json!({}))).await.ok();
    }
    stop(&servers);
}

#[tokio::test(flavor = "multi_thread")]
async fn releases_only_unused_allocations() {
    let servers = two(8, |config| config.node_ports = (30_000, 30_099)).await;
    let apis = [servers[0].admin(), servers[1].admin()];
    let path = format!("/api/v1/namespaces/{}/services", apis[0].namespace().await);
    let turns = (0..16).map(|i| {
        let (own, other, path) = (apis[i % 2].clone(), apis[(i + 1) % 2].clone(), path.clone());
        tokio::spawn(async move {
            let name = format!("s{i}");
            let at = format!("{path}/{name}");
            for spec in [json!({"type": "NodePort"}), json!({}), json!({"type": "NodePort"})] {
                own.post(&path, &service(&name, spec)).await.ok();
                // To an external name and back.
                let out = json!({"spec": {"type": "ExternalName", "externalName": "x.example"}});
                let gone = other.patch(&at, "merge", &out).await.ok();
                assert!(gone["spec"].get("clusterIP").is_none(), "{gone}");
                assert!(gone["spec"]["ports"][0].get("nodePort").is_none(), "{gone}");
                let back = json!({"spec": {"type": "NodePort", "externalName": null}});
                let back = own.patch(&at, "merge", &back).await.ok();
                assert!(back["spec"]["ports"][0]["nodePort"].is_u64(), "{back}");
                other.delete(&at, &json!({})).await.ok();
            }
            own.post(&path, &service(&name, json!({"type": "NodePort"}))).await.ok();
        })
    });
    join_all(turns).await.into_iter().for_each(|turn| turn.unwrap());
    let (addresses, ports) = allocated(&apis[0]).await;
    assert_eq!((addresses.len(), ports.len()), (17, 16));
    recorded(&apis[1], &addresses).await;
    // All ports that no Service has can be allocated.
    for port in (30_000..30_100).filter(|port| !ports.contains(port)) {
        let spec = json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": port}]});
        apis[0].post(&path, &service(&format!("p{port}"), spec)).await.ok();
    }
    let last = apis[1].post(&path, &service("last", json!({"type": "NodePort"}))).await;
    assert!(
        last.refused(500, "InternalError")
            .ends_with("failed to allocate a nodePort: range is full")
    );
    stop(&servers);
}

#[tokio::test(flavor = "multi_thread")]
async fn releases_after_dry_run_and_rejection() {
    let server = start(|_| {}).await;
    let api = server.admin();
    let path = format!("/api/v1/namespaces/{}/services", api.namespace().await);
    let (before, _) = server.store.get(PORTS).await.unwrap();
    let revision = before.unwrap().mod_revision;
    let asked = json!({"type": "NodePort", "clusterIP": "10.96.5.5", "ports": [{"port": 80, "nodePort": 30555}]});
    let shown = api.post(&format!("{path}?dryRun=All"), &service("a", asked.clone())).await.ok();
    assert_eq!(shown["spec"]["clusterIPs"], json!(["10.96.5.5"]));
    let any = api
        .post(&format!("{path}?dryRun=All"), &service("a", json!({"type": "NodePort"})))
        .await
        .ok();
    assert!(any["spec"]["ports"][0]["nodePort"].is_u64(), "{any}");
    let (now, _) = server.store.get(PORTS).await.unwrap();
    assert_eq!(now.unwrap().mod_revision, revision);
    api.get(&format!("{ADDRESSES}/10.96.5.5")).await.refused(404, "NotFound");
    // Validation follows allocation, as upstream.
    let mut wrong = service("a", asked.clone());
    wrong["spec"]["sessionAffinity"] = json!("Sometimes");
    api.post(&path, &wrong).await.refused(422, "Invalid");
    recorded(&api, &BTreeSet::from(["10.96.0.1".to_owned()])).await;
    let started = Instant::now();
    while api.post(&path, &service("a", asked.clone())).await.code != 201 {
        assert!(started.elapsed().as_secs() < 30, "the port is not given back");
    }
    // A dry run rejects an allocated address, too.
    let again = api.post(&format!("{path}?dryRun=All"), &service("b", asked)).await;
    assert!(again.refused(422, "Invalid").contains("provided IP is already allocated"));
    server.tasks.shutdown().stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn releases_leaked_allocations_after_grace_period() {
    let server = start(|_| {}).await;
    let api = server.admin();
    let path = format!("/api/v1/namespaces/{}/services", api.namespace().await);
    let made = api.post(&path, &service("a", json!({"type": "NodePort"}))).await.ok();
    let (address, port) = (
        made["spec"]["clusterIP"].as_str().unwrap(),
        made["spec"]["ports"][0]["nodePort"].as_u64().unwrap(),
    );
    let key = |address: &str| format!("/registry/ipaddresses/{address}");
    let (stored, _) = server.store.get(&key(address)).await.unwrap();
    let stored = String::from_utf8(stored.unwrap().value.to_vec()).unwrap();
    let born = stored.split("\"creationTimestamp\":\"").nth(1).unwrap().split('"').next().unwrap();
    let leaked = |address_of: &str, time: &str| {
        let text = stored.replace(&format!("\"{address}\""), &format!("\"{address_of}\""));
        text.replace(born, time).replace("\"name\":\"a\"", "\"name\":\"never\"")
    };
    for (address, time) in [("10.96.9.1", "2020-01-01T00:00:00Z"), ("10.96.9.2", born)] {
        let op = Op::Put { value: leaked(address, time).into(), ttl_seconds: None };
        let write = Write { key: key(address).into(), expected: Expected::ModRevision(0), op };
        assert!(matches!(server.store.write(write).await, Ok(Outcome::Done { .. })));
    }
    recorded(&api, &BTreeSet::from(["10.96.0.1", address, "10.96.9.2"].map(str::to_owned))).await;
    let young = api.post(&path, &service("b", json!({"clusterIP": "10.96.9.2"}))).await;
    assert!(young.refused(422, "Invalid").contains("provided IP is already allocated"));
    api.post(&path, &service("c", json!({"clusterIP": "10.96.9.1"}))).await.ok();
    server.tasks.shutdown().stop();

    // A starting server restores lost allocations before it allocates.
    for key in [PORTS.to_owned(), key(address)] {
        let write = Write { key: key.into(), expected: Expected::Any, op: Op::Delete };
        server.store.write(write).await.unwrap();
    }
    let next = server.beside().await;
    let api = next.admin();
    let taken = api.post(&path, &service("d", json!({"clusterIP": address}))).await;
    assert!(taken.refused(422, "Invalid").contains("provided IP is already allocated"));
    let spec = json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": port}]});
    let taken = api.post(&path, &service("d", spec)).await.refused(422, "Invalid");
    assert!(taken.contains("provided port is already allocated"), "{taken}");
    next.tasks.shutdown().stop();
}
