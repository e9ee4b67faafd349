//! Tests of claims with correct and faulty drivers.

use std::collections::HashMap;

use client::{PatchTarget, Resource};
use deviceplugin::{dra::NodePrepareResourceResponse, podresources::ContainerResources};
use k8s_openapi::api::core::v1::PodStatus;
use serde_json::{Value, json};
use testkit::{
    Code, DraDriver, FakeApi, Fault, ServedResource,
    dra_driver::{HealthStatus, health as health_of},
};

use super::*;

const DRIVER: &str = "fpga.example.com";
const GROUP: &str = "resource.k8s.io";
const CLAIMS: Resource = Resource::constant(GROUP, "v1", "resourceclaims", "ResourceClaim", true);
const SLICES: Resource = Resource::constant(GROUP, "v1", "resourceslices", "ResourceSlice", false);

const FAST: Times = Times {
    grace: Duration::from_millis(200),
    again: Duration::from_millis(20),
    silent: Duration::from_millis(20),
    call: Duration::from_millis(200),
};

struct Scene {
    root: tempfile::TempDir,
    api: FakeApi,
    tasks: rt::Tasks,
    claims: Arc<Claims>,
}

fn claims(root: &Path, tasks: &rt::Tasks) -> Arc<Claims> {
    Arc::new(Claims::with_times(root, &Metrics::default(), tasks, FAST).unwrap())
}

impl Scene {
    fn new() -> Self {
        let (root, api) = (tempfile::tempdir().unwrap(), FakeApi::default());
        for (plural, kind, namespaced) in
            [("resourceclaims", "ResourceClaim", true), ("resourceslices", "ResourceSlice", false)]
        {
            api.serve(ServedResource { group: GROUP, version: "v1", plural, kind, namespaced });
        }
        let tasks = rt::Tasks::new(rt::Shutdown::new());
        let claims = claims(root.path(), &tasks);
        Self { root, api, tasks, claims }
    }

    /// Simulates a kubelet that was killed and restarted. Drivers must register again.
    fn restart(&mut self) {
        self.tasks.shutdown().stop();
        self.tasks = rt::Tasks::new(rt::Shutdown::new());
        self.claims = claims(self.root.path(), &self.tasks);
    }

    /// Starts and registers a driver, which runs as long as the returned tasks.
    fn driver(&self, name: &str, services: &[&str]) -> (Arc<DraDriver>, rt::Tasks) {
        let directory = self.root.path().join(name);
        std::fs::create_dir_all(&directory).unwrap();
        let (driver, tasks) =
            (Arc::new(DraDriver::new(name, &directory)), rt::Tasks::new(rt::Shutdown::new()));
        driver.serve(&tasks).unwrap();
        self.register(&driver, services).unwrap();
        (driver, tasks)
    }

    fn register(&self, driver: &DraDriver, services: &[&str]) -> Result<(), String> {
        let services: Vec<String> = services.iter().map(|s| (*s).to_owned()).collect();
        let endpoint = Path::new(&driver.plugin.endpoint);
        let done = self.claims.connect(&driver.plugin.name, endpoint, &services);
        done.map_err(|error| error.to_string())
    }

    /// Creates a claim that is allocated from drivers and reserved for Pods.
    async fn claim(&self, name: &str, drivers: &[&str], pods: &[&str]) {
        let result =
            |driver| json!({"driver": driver, "pool": "node", "device": name, "request": "r"});
        let results: Vec<Value> = drivers.iter().map(result).collect();
        let user = |uid: &&str| json!({"resource": "pods", "name": uid, "uid": uid});
        let users: Vec<Value> = pods.iter().map(user).collect();
        let claim = json!({"metadata": {"name": name, "namespace": "ns"}, "spec": {},
            "status": {"reservedFor": users, "allocation": {"devices": {"results": results}}}});
        self.api.create(&CLAIMS, claim).await;
    }

    fn uid_of(&self, claim: &str) -> String {
        let claim = self.api.get(&CLAIMS, "ns", claim).unwrap();
        claim["metadata"]["uid"].as_str().unwrap().to_owned()
    }

    async fn prepare(&self, pod: &Pod) -> Result<(), String> {
        let client = self.api.client("kubelet");
        let done = self.claims.prepare(Some(&client), pod).await;
        done.map_err(|error| error.to_string())
    }

    async fn unprepare(&self, uid: &str) -> Result<(), String> {
        self.claims.unprepare(uid).await.map_err(|error| error.to_string())
    }

    fn cdi(&self, pod: &Pod) -> Result<Vec<String>, String> {
        self.claims.for_start(pod, container(pod)).map_err(|error| error.to_string())
    }

    /// Returns the Pods that hold claims according to the checkpoint.
    fn written(&self) -> BTreeSet<String> {
        let bytes = std::fs::read(self.root.path().join(CHECKPOINT)).unwrap_or_default();
        let allocations = Allocations::restore(&bytes).unwrap_or_default();
        allocations.claims().flat_map(|claim| claim.pods.clone()).collect()
    }

    async fn until(&self, what: &str, condition: impl Fn(&State) -> bool) {
        let mut changes = self.claims.changed.subscribe();
        let wait = async {
            while !condition(&self.claims.lock()) {
                changes.changed().await.unwrap();
            }
        };
        tokio::time::timeout(Duration::from_secs(30), wait).await.expect(what);
    }
}

fn pod(uid: &str, claims: &[&str]) -> Pod {
    let refer = |name: &&str| json!({"name": name, "resourceClaimName": name});
    let listed: Vec<Value> = claims.iter().map(refer).collect();
    let requests: Vec<Value> = claims.iter().map(|name| json!({"name": name})).collect();
    let pod = json!({"metadata": {"name": uid, "namespace": "ns", "uid": uid},
        "spec": {"resourceClaims": listed,
            "containers": [{"name": "c", "resources": {"claims": requests}}]}});
    serde_json::from_value(pod).unwrap()
}

fn container(pod: &Pod) -> &Container {
    &pod.spec.as_ref().unwrap().containers[0]
}

fn users(uids: &[&str]) -> BTreeSet<String> {
    uids.iter().map(|uid| (*uid).to_owned()).collect()
}

const V1: &[&str] = &["v1.DRAPlugin"];

#[tokio::test]
async fn prepares_claim_once_and_unprepares_it_after_the_last_pod() {
    let mut scene = Scene::new();
    let (driver, _alive) = scene.driver(DRIVER, V1);
    scene.claim("shared", &[DRIVER], &["one", "two"]).await;
    let (one, two) = (pod("one", &["shared"]), pod("two", &["shared"]));
    assert!(!scene.claims.has_all(&one));
    let (first, second) = tokio::join!(scene.prepare(&one), scene.prepare(&two));
    assert_eq!((first, second), (Ok(()), Ok(())));
    scene.prepare(&one).await.unwrap();
    assert_eq!(driver.calls(), ["v1 NodePrepareResources shared"]);
    assert!(scene.claims.has_all(&one) && scene.claims.has_all(&two));
    for pod in [&one, &two] {
        assert_eq!(scene.cdi(pod).unwrap(), ["fpga.example.com/device=shared"]);
    }
    assert_eq!(scene.written(), users(&["one", "two"]));
    let dynamic_resources = scene.claims.dynamic_resources(&one, container(&one));
    let told = ContainerResources { dynamic_resources, ..ContainerResources::default() };
    let device = &told.dynamic_resources[0].claim_resources[0];
    assert_eq!(told.dynamic_resources[0].claim_name, "shared");
    assert_eq!(
        (device.driver_name.as_str(), device.pool_name.as_str(), device.device_name.as_str()),
        (DRIVER, "node", "shared")
    );
    assert_eq!(device.cdi_devices[0].name, "fpga.example.com/device=shared");

    scene.restart();
    assert_eq!(scene.cdi(&two).unwrap(), ["fpga.example.com/device=shared"]);
    scene.unprepare("one").await.unwrap();
    assert_eq!(driver.ready().len(), 1, "the other Pod uses it still");
    assert_eq!(scene.written(), users(&["two"]));
    let away = scene.unprepare("two").await.unwrap_err();
    assert_eq!(away, "DRA driver fpga.example.com is not registered");
    assert_eq!(scene.written(), users(&["two"]));
    scene.register(&driver, V1).unwrap();
    // After a restart the claim is prepared again, because a rebooted machine has lost what the driver prepared.
    scene.prepare(&two).await.unwrap();
    scene.unprepare("two").await.unwrap();
    scene.unprepare("two").await.unwrap();
    assert_eq!((driver.ready(), scene.written()), (users(&[]), users(&[])));
    let prepare = "v1 NodePrepareResources shared";
    assert_eq!(driver.calls(), [prepare, prepare, "v1 NodeUnprepareResources shared"]);
}

#[tokio::test]
async fn records_nothing_for_unsatisfiable_claims() {
    let scene = Scene::new();
    let (driver, _alive) = scene.driver(DRIVER, V1);
    scene.claim("others", &[DRIVER], &["else"]).await;
    scene.claim("absent", &["absent.example.com"], &["pod"]).await;
    scene.claim("good", &[DRIVER], &["pod"]).await;
    let unallocated = json!({"metadata": {"name": "empty", "namespace": "ns"}, "spec": {},
        "status": {"reservedFor": [{"resource": "pods", "name": "pod", "uid": "pod"}]}});
    scene.api.create(&CLAIMS, unallocated).await;
    for (name, words) in [
        ("others", "pod pod (pod) is not allowed to use ResourceClaim others"),
        ("absent", "DRA driver absent.example.com is not registered"),
        ("empty", "ResourceClaim empty: not allocated"),
        ("missing", "fetch ResourceClaim missing: "),
    ] {
        // The valid claim of the same Pod is not prepared, either.
        let pod = pod("pod", &["good", name]);
        let error = scene.prepare(&pod).await.unwrap_err();
        assert!(error.starts_with(words), "{error}");
        assert!(!scene.claims.has_all(&pod));
        assert!(scene.cdi(&pod).unwrap_err().starts_with("unable to get claim info"));
    }
    let nobody = scene.claims.prepare(None, &pod("pod", &["good"])).await.unwrap_err();
    assert!(nobody.to_string().contains("no API server"), "{nobody}");
    assert_eq!((driver.calls().len(), scene.written()), (0, users(&[])));
    // Without a recorded claim the Pod can end.
    scene.unprepare("pod").await.unwrap();
}

#[tokio::test]
async fn faulty_driver_blocks_only_its_own_pods() {
    let scene = Scene::new();
    let (bad, _alive) = scene.driver(DRIVER, V1);
    let (good, _well) = scene.driver("good.example.com", V1);
    scene.claim("bad", &[DRIVER], &["one"]).await;
    scene.claim("both", &[DRIVER, "good.example.com"], &["one"]).await;
    scene.claim("good", &["good.example.com"], &["two"]).await;
    let one = pod("one", &["bad", "both"]);
    let hangs = || bad.set_fault("NodePrepareResources", Some(Fault::Hang));
    hangs();
    let two = pod("two", &["good"]);
    let ((), error) = tokio::join!(
        async {
            scene.prepare(&two).await.unwrap();
            assert_eq!(scene.cdi(&two).unwrap(), ["good.example.com/device=good"]);
        },
        scene.prepare(&one),
    );
    assert_eq!(
        error.unwrap_err(),
        "NodePrepareResources: rpc error: code = DeadlineExceeded desc = context deadline exceeded"
    );
    assert_eq!(scene.written(), users(&["one", "two"]), "what was begun is known");

    bad.set_fault("NodePrepareResources", Some(Fault::Huge));
    let error = scene.prepare(&one).await.unwrap_err();
    assert!(error.starts_with("NodePrepareResources: rpc error") && error.len() < 3000, "{error}");
    bad.set_fault("NodePrepareResources", None);
    let response = |pairs: &[(&str, &str)]| -> HashMap<String, NodePrepareResourceResponse> {
        let one = |(uid, error): &(&str, &str)| {
            let error = (*error).to_owned();
            ((*uid).to_owned(), NodePrepareResourceResponse { error, devices: Vec::new() })
        };
        pairs.iter().map(one).collect()
    };
    let (first, second) = (scene.uid_of("bad"), scene.uid_of("both"));
    let long = "x".repeat(1 << 20);
    for (said, words) in [
        (response(&[]), "NodePrepareResources skipped 2 ResourceClaims"),
        (response(&[(&first, "")]), "NodePrepareResources skipped 1 ResourceClaims"),
        (
            response(&[(&first, ""), (&second, ""), ("stray", "")]),
            "NodePrepareResources returned result for unknown claim UID stray",
        ),
        (
            response(&[(&first, "no power"), (&second, "")]),
            "NodePrepareResources failed for ResourceClaim bad: no power",
        ),
        (
            response(&[(&first, &long), (&second, "")]),
            "NodePrepareResources failed for ResourceClaim bad: xxx",
        ),
    ] {
        bad.set_answer(Some(said));
        let error = scene.prepare(&one).await.unwrap_err();
        assert!(error.starts_with(words) && error.len() < 3000, "{error}");
    }
    bad.set_answer(None);
    scene.prepare(&one).await.unwrap();
    let cdi = scene.cdi(&one).unwrap();
    let each = ["fpga.example.com/device=bad", "fpga.example.com/device=both"];
    assert_eq!(cdi, [each[0], each[1], "good.example.com/device=both"]);

    let refuse = Fault::Refuse(Code::Internal, "stuck".to_owned());
    bad.set_fault("NodeUnprepareResources", Some(refuse));
    let error = scene.unprepare("one").await.unwrap_err();
    assert_eq!(error, "NodeUnprepareResources: rpc error: code = Internal desc = stuck");
    assert_eq!(scene.written(), users(&["one", "two"]));
    bad.set_fault("NodeUnprepareResources", None);
    scene.unprepare("one").await.unwrap();
    assert_eq!((bad.ready().len(), good.ready().len()), (0, 1));
    assert_eq!(scene.written(), users(&["two"]));
}

#[tokio::test]
async fn unprepares_claims_of_a_killed_kubelet() {
    let mut scene = Scene::new();
    let (driver, _alive) = scene.driver(DRIVER, V1);
    scene.claim("claim", &[DRIVER], &["pod"]).await;
    driver.set_fault("NodePrepareResources", Some(Fault::Hang));
    scene.prepare(&pod("pod", &["claim"])).await.unwrap_err();
    scene.restart();
    assert_eq!(scene.claims.users(), users(&["pod"]));
    scene.register(&driver, V1).unwrap();
    scene.unprepare("pod").await.unwrap();
    assert_eq!(
        driver.calls(),
        ["v1 NodePrepareResources claim", "v1 NodeUnprepareResources claim"]
    );
    scene.restart();
    assert_eq!(scene.claims.users(), users(&[]));
    // A claim with the same name is another one, and waits until the first is unprepared.
    driver.set_fault("NodePrepareResources", None);
    scene.register(&driver, V1).unwrap();
    scene.prepare(&pod("pod", &["claim"])).await.unwrap();
    let at = PatchTarget { namespace: "ns", name: "claim", subresource: "" };
    let old = scene.uid_of("claim");
    let client = scene.api.client("test");
    client.delete(&CLAIMS, at.namespace, at.name, &Default::default()).await.unwrap();
    scene.claim("claim", &[DRIVER], &["next"]).await;
    let error = scene.prepare(&pod("next", &["claim"])).await.unwrap_err();
    let words =
        format!("old ResourceClaim with same name claim and different UID {old} still exists");
    assert!(error.starts_with(&words), "{error}");

    std::fs::write(scene.root.path().join(CHECKPOINT), "{\"Data\":\"{}\",\"Checksum\":1}").unwrap();
    let error = Claims::new(scene.root.path(), &Metrics::default(), &scene.tasks).err().unwrap();
    let error = error.to_string();
    assert!(
        error.contains("checkpoint is corrupted") && error.contains("drain this node"),
        "{error}"
    );
}

#[tokio::test]
async fn calls_driver_by_its_first_supported_service() {
    let scene = Scene::new();
    let beta = ["v1alpha3.Node", "v1beta1.DRAPlugin", "v1.DRAPlugin"];
    let (driver, _alive) = scene.driver(DRIVER, &beta);
    scene.claim("claim", &[DRIVER], &["pod"]).await;
    scene.prepare(&pod("pod", &["claim"])).await.unwrap();
    scene.unprepare("pod").await.unwrap();
    assert_eq!(
        driver.calls(),
        ["v1beta1 NodePrepareResources claim", "v1beta1 NodeUnprepareResources claim"]
    );
    let again = scene.register(&driver, V1).unwrap_err();
    assert!(
        again.ends_with("already registered for DRA driver plugin fpga.example.com"),
        "{again}"
    );
    let none = scene.register(&driver, &[]).unwrap_err();
    assert!(none.contains("empty list of supported gRPC services"), "{none}");
    let old = scene.register(&driver, &["v1alpha3.Node"]).unwrap_err();
    assert!(
        old.contains("none of services supported by the plugin ([\"v1alpha3.Node\"])"),
        "{old}"
    );

    // During a rolling update the newest plugin is called, or the older one if the newest has disconnected.
    let next = DraDriver::new(DRIVER, &scene.root.path().join("next"));
    std::fs::create_dir_all(scene.root.path().join("next")).unwrap();
    let (next, alive) = (Arc::new(next), rt::Tasks::new(rt::Shutdown::new()));
    next.serve(&alive).unwrap();
    scene.register(&next, V1).unwrap();
    scene.prepare(&pod("pod", &["claim"])).await.unwrap();
    assert_eq!(next.calls(), ["v1 NodePrepareResources claim"]);
    scene.claims.disconnect(DRIVER, Path::new(&next.plugin.endpoint));
    scene.unprepare("pod").await.unwrap();
    assert_eq!(driver.calls().len(), 3);
}

#[tokio::test]
async fn reports_device_health_until_it_expires() {
    let scene = Scene::new();
    let (driver, alive) = scene.driver(DRIVER, V1);
    scene.claim("claim", &[DRIVER], &["pod"]).await;
    let pod = pod("pod", &["claim"]);
    scene.prepare(&pod).await.unwrap();
    let told = || {
        let mut status: PodStatus =
            serde_json::from_value(json!({"containerStatuses": [{"name": "c", "image": "",
                "imageID": "", "ready": true, "restartCount": 0}]}))
            .unwrap();
        scene.claims.describe(&pod, &mut status);
        serde_json::to_value(&status).unwrap()["containerStatuses"][0]["allocatedResourcesStatus"]
            .clone()
    };
    let is = |health: Value| {
        let mut all = json!({"resourceID": "fpga.example.com/device=claim"});
        all.as_object_mut().unwrap().extend(health.as_object().unwrap().clone());
        json!([{"name": "claim:claim", "resources": [all]}])
    };
    assert_eq!(told(), is(json!({"health": "Unknown"})));
    driver.set_healths(vec![
        health_of("claim", HealthStatus::Unhealthy, &"hot ".repeat(1000)),
        health_of("stray", HealthStatus::Healthy, ""),
    ]);
    scene.until("the Pod hears of it", |state| state.changed_pods.contains("pod")).await;
    let message = format!("{}h...", "hot ".repeat(255));
    assert_eq!(told(), is(json!({"health": "Unhealthy", "message": message})));
    driver.set_healths(vec![health_of("claim", HealthStatus::Healthy, "")]);
    let known = |state: &State| state.healths[DRIVER][&("node".into(), "claim".into())].clone();
    scene.until("it is well", |state| known(state).health_and_message().0 == "Healthy").await;
    assert_eq!(told(), is(json!({"health": "Healthy"})));
    // A report expires after its timeout.
    let mut brief = health_of("claim", HealthStatus::Healthy, "");
    brief.health_check_timeout_seconds = 1;
    let until = health::Health::of(&brief).until;
    assert!(until <= Instant::now() + Duration::from_secs(1));
    alive.shutdown().stop();
    scene.until("nobody says anything", |state| state.healths.is_empty()).await;
    assert_eq!(told(), is(json!({"health": "Unknown"})));
}

#[tokio::test]
async fn deletes_slices_of_disconnected_drivers() {
    let scene = Scene::new();
    let slice = |name: &str, driver: &str, node: &str| json!({"metadata": {"name": name}, "spec": {"driver": driver, "nodeName": node}});
    let left = |api: &FakeApi| -> Vec<String> {
        let all = api.list(&SLICES, "");
        all.iter().map(|s| s["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    };
    for (name, driver, node) in
        [("old", "gone.example.com", "node"), ("other-node", DRIVER, "other")]
    {
        scene.api.create(&SLICES, slice(name, driver, node)).await;
    }
    let client = scene.api.client("kubelet");
    let removal = slices::remove_slices(scene.claims.clone(), client, "node".to_owned());
    scene.tasks.spawn_until_shutdown("slices", removal);
    scene.api.until("what was left is deleted", |api| left(api) == ["other-node"]).await;

    let (_driver, alive) = scene.driver(DRIVER, V1);
    let (_stays, _alive) = scene.driver("stays.example.com", V1);
    for (name, driver) in [("own", DRIVER), ("stays", "stays.example.com")] {
        scene.api.create(&SLICES, slice(name, driver, "node")).await;
    }
    // The socket file stays, as after a kill.
    alive.shutdown().stop();
    let gone = |state: &State| state.wipes.contains_key(DRIVER);
    scene.until("the driver is missed", gone).await;
    assert_eq!(left(&scene.api), ["other-node", "own", "stays"], "it may come back");
    scene.api.until("its slices are deleted", |api| left(api) == ["other-node", "stays"]).await;
    scene.api.until("nothing is left to do", |_| scene.claims.lock().wipes.is_empty()).await;
}
