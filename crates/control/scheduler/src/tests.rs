//! Injects panics into the scheduler: its core, its informers and its writes.

use std::{collections::BTreeMap, time::Duration};

use client::Resource;
use serde_json::{Value, json};
use testkit::{FakeApi, PanicInjector};

use super::*;

mod extended;
mod metrics;

const NODES: usize = 20;
/// The number of Pods that fit on a node.
const ROOM: usize = 20;

fn pod(name: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"schedulerName": "default-scheduler",
            "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]},
    })
}

fn nodes_of_pods(api: &FakeApi) -> BTreeMap<String, usize> {
    let mut count = BTreeMap::new();
    for pod in api.list(&Resource::PODS, "default") {
        if let Some(node) = pod["spec"]["nodeName"].as_str() {
            *count.entry(node.to_owned()).or_default() += 1;
        }
    }
    count
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    for _ in 0..36_000 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("timed out waiting: {what}");
}

#[tokio::test(start_paused = true)]
async fn schedules_all_pods_despite_thousand_panics() {
    let api = FakeApi::default();
    let tasks = rt::Tasks::new(rt::Shutdown::new());
    let (core, calls) = (PanicInjector::new(3, 500, 0.5), PanicInjector::new(4, 500, 0.2));
    let (client, running, deciding) =
        (calls.in_client(api.clone(), "scheduler"), tasks.clone(), core.clone());
    let decide = move |core: &mut Core, now: u64| {
        deciding.maybe();
        core.next(now)
    };
    tasks.spawn("scheduler", async move {
        run_deciding(Config::default(), client, &running, Arc::new(decide)).await.unwrap();
    });
    for node in 0..NODES {
        let allocatable = json!({"cpu": ROOM.to_string(), "memory": "8Gi", "pods": "110"});
        let node = json!({"metadata": {"name": format!("n{node}")}, "status": {"allocatable": allocatable}});
        api.create(&Resource::NODES, node).await;
    }
    let mut made = 0;
    while core.left() > 0 || calls.left() > 0 {
        assert!(made < 10_000, "{} and {} panics did not come", core.left(), calls.left());
        // Pods are created and deleted, and half of the capacity is in use at any time.
        api.create(&Resource::PODS, pod(&format!("p{made}"))).await;
        made += 1;
        if made > NODES * ROOM / 2 {
            let old = format!("p{}", made - NODES * ROOM / 2 - 1);
            let user = api.client("user");
            user.delete(&Resource::PODS, "default", &old, &Default::default()).await.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // The last Pods fill every node completely: nothing is counted twice or forgotten.
    let missing = NODES * ROOM - api.list(&Resource::PODS, "default").len();
    for last in 0..missing {
        api.create(&Resource::PODS, pod(&format!("last{last}"))).await;
    }
    until("every Pod has a node", || nodes_of_pods(&api).values().sum::<usize>() == NODES * ROOM)
        .await;
    assert!(nodes_of_pods(&api).values().all(|pods| *pods == ROOM), "{:?}", nodes_of_pods(&api));
    assert!(rt::panics().values().sum::<u64>() >= 1000);
    until("every loop runs", || tasks.missing().is_empty()).await;
    assert!(tasks.drain(Duration::from_secs(5)).await.unfinished.is_empty());
}

#[tokio::test(start_paused = true)]
async fn binds_pod_after_its_waiting_claim() {
    let api = FakeApi::default();
    let tasks = rt::Tasks::new(rt::Shutdown::new());
    let (client, running) = (api.client("scheduler"), tasks.clone());
    tasks
        .spawn("scheduler", async move { run(Config::default(), client, &running).await.unwrap() });
    let class = json!({"metadata": {"name": "late"}, "provisioner": "test/p",
        "volumeBindingMode": "WaitForFirstConsumer"});
    api.create(&Resource::STORAGE_CLASSES, class).await;
    let allocatable = json!({"cpu": "8", "memory": "8Gi", "pods": "110"});
    let node = json!({"metadata": {"name": "n"}, "status": {"allocatable": allocatable}});
    api.create(&Resource::NODES, node).await;
    let claim = |name: &str| {
        json!({"metadata": {"name": name, "namespace": "default"}, "spec": {"storageClassName": "late",
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}})
    };
    let user = |name: &str| {
        let mut pod = pod(name);
        api_meta::Tree::put(
            &mut pod,
            &["spec", "volumes"],
            json!([{"name": "v", "persistentVolumeClaim": {"claimName": name}}]),
        );
        pod
    };
    let get = |name: &str| {
        api.get(&Resource::PERSISTENT_VOLUME_CLAIMS, "default", name).unwrap_or_default()
    };
    let node_of = |name: &str| {
        api.get(&Resource::PODS, "default", name).unwrap_or_default()["spec"]["nodeName"].clone()
    };
    let bind = async |name: &str, volume: &str| {
        let at = client::PatchTarget { namespace: "default", name, subresource: "" };
        let change = json!({"spec": {"volumeName": volume},
            "metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}}});
        api.merge(&Resource::PERSISTENT_VOLUME_CLAIMS, at, change).await;
    };
    let selected = "volume.kubernetes.io/selected-node";
    api.create(&Resource::PERSISTENT_VOLUME_CLAIMS, claim("made")).await;
    api.create(&Resource::PODS, user("made")).await;
    until("the claim has a selected node", || {
        get("made")["metadata"]["annotations"][selected] == "n"
    })
    .await;
    assert!(node_of("made").is_null(), "it is not bound before its claim");
    // The provisioner rejects the node, and is asked again after the Pod's backoff.
    let at = client::PatchTarget { namespace: "default", name: "made", subresource: "" };
    let back = json!({"metadata": {"annotations": {selected: null}}});
    api.merge(&Resource::PERSISTENT_VOLUME_CLAIMS, at, back).await;
    until("the Pod has an Event", || {
        let events = api.list(&Resource::EVENTS, "default");
        events.iter().any(|e| {
            e["message"]
                .as_str()
                .is_some_and(|m| m.contains("does not create a volume for this node"))
        })
    })
    .await;
    until("it is asked again", || get("made")["metadata"]["annotations"][selected] == "n").await;
    let made = json!({"metadata": {"name": "new"}, "spec": {"capacity": {"storage": "1Gi"}}});
    api.create(&Resource::PERSISTENT_VOLUMES, made).await;
    bind("made", "new").await;
    until("the Pod has its node", || node_of("made") == "n").await;
    // An existing volume is reserved for the claim, and none is provisioned.
    let there = json!({"metadata": {"name": "there"}, "spec": {"capacity": {"storage": "1Gi"},
        "storageClassName": "late", "accessModes": ["ReadWriteOnce"]}, "status": {"phase": "Available"}});
    api.create(&Resource::PERSISTENT_VOLUMES, there).await;
    api.create(&Resource::PERSISTENT_VOLUME_CLAIMS, claim("found")).await;
    api.create(&Resource::PODS, user("found")).await;
    let kept = || {
        let volume = api.get(&Resource::PERSISTENT_VOLUMES, "", "there").unwrap_or_default();
        volume["spec"]["claimRef"]["uid"] == get("found")["metadata"]["uid"]
    };
    until("the volume is the claim's", kept).await;
    assert!(node_of("found").is_null() && get("found")["metadata"]["annotations"].is_null());
    bind("found", "there").await;
    until("the Pod has its node", || node_of("found") == "n").await;
    assert!(tasks.drain(Duration::from_secs(5)).await.unfinished.is_empty());
}

#[tokio::test(start_paused = true)]
#[allow(clippy::too_many_lines, reason = "one scenario")]
async fn allocates_devices_before_binding_pod() {
    let api = FakeApi::default();
    let tasks = rt::Tasks::new(rt::Shutdown::new());
    let (client, running) = (api.client("scheduler"), tasks.clone());
    tasks
        .spawn("scheduler", async move { run(Config::default(), client, &running).await.unwrap() });
    for name in ["n1", "n2"] {
        let allocatable = json!({"cpu": "8", "memory": "8Gi", "pods": "110"});
        let node = json!({"metadata": {"name": name}, "status": {"allocatable": allocatable}});
        api.create(&Resource::NODES, node).await;
    }
    let slice = json!({"metadata": {"name": "s"}, "spec": {"driver": "d", "nodeName": "n2",
        "pool": {"name": "n2", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "only"}, {"name": "nic", "allowMultipleAllocations": true}]}});
    api.create(&Resource::RESOURCE_SLICES, slice).await;
    api.create(&Resource::DEVICE_CLASSES, json!({"metadata": {"name": "c"}})).await;
    let request = |name: &str, shared: bool| {
        let text = format!("device.allowMultipleAllocations == {shared}");
        json!({"name": name, "exactly": {"deviceClassName": "c", "allocationMode": "ExactCount", "count": 1,
            "selectors": [{"cel": {"expression": text}}]}})
    };
    let user = |name: &str| {
        let mut pod = pod(name);
        let claims = json!([{"name": "r", "resourceClaimName": name}]);
        api_meta::Tree::put(&mut pod, &["spec", "resourceClaims"], claims);
        pod
    };
    let get = |name: &str| api.get(&Resource::RESOURCE_CLAIMS, "default", name).unwrap_or_default();
    let node_of = |name: &str| {
        api.get(&Resource::PODS, "default", name).unwrap_or_default()["spec"]["nodeName"].clone()
    };
    for name in ["first", "second"] {
        let spec = json!({"devices": {"requests": [request("x", false), request("y", true)]}});
        let claim = json!({"metadata": {"name": name, "namespace": "default"}, "spec": spec});
        api.create(&Resource::RESOURCE_CLAIMS, claim).await;
        api.create(&Resource::PODS, user(name)).await;
    }
    let bound = || ["first", "second"].into_iter().find(|name| !node_of(name).is_null());
    until("one has the device", || bound().is_some()).await;
    let (winner, loser) =
        if bound() == Some("first") { ("first", "second") } else { ("second", "first") };
    assert_eq!(node_of(winner), "n2");
    let claim = get(winner);
    let kept = &claim["metadata"]["finalizers"];
    assert_eq!(*kept, json!(["resource.kubernetes.io/delete-protection"]));
    let results = &claim["status"]["allocation"]["devices"]["results"];
    assert_eq!((&results[0]["device"], &results[0]["shareID"]), (&json!("only"), &Value::Null));
    assert_eq!(results[1]["shareID"].as_str().map(str::len), Some(36), "{results}");
    assert_eq!(claim["status"]["reservedFor"][0]["name"], winner);
    until("the other Pod has an Event", || {
        let pod = api.get(&Resource::PODS, "default", loser).unwrap_or_default();
        let message = pod["status"]["conditions"][0]["message"].as_str().map(str::to_owned);
        message.is_some_and(|message| message.contains("2 cannot allocate all claims."))
    })
    .await;
    assert!(node_of(loser).is_null() && get(loser)["status"]["allocation"].is_null());
    // The first Pod ends, and the test deallocates its devices.
    api.client("user")
        .delete(&Resource::PODS, "default", winner, &Default::default())
        .await
        .unwrap();
    let at = client::PatchTarget { namespace: "default", name: winner, subresource: "status" };
    let back = json!({"status": {"allocation": null, "reservedFor": null}});
    api.merge(&Resource::RESOURCE_CLAIMS, at, back).await;
    until("the other has it", || node_of(loser) == "n2").await;
    assert_eq!(get(loser)["status"]["reservedFor"][0]["name"], loser);
    // A driver cannot make a device ready: the Pod gets an Event, and the claim is deallocated.
    let slice = json!({"metadata": {"name": "t"}, "spec": {"driver": "e", "allNodes": true,
        "pool": {"name": "t", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "far", "bindingConditions": ["Ready"], "bindingFailureConditions": ["Failed"]}]}});
    api.create(&Resource::RESOURCE_SLICES, slice).await;
    let mut wants = request("x", false);
    wants["exactly"]["selectors"][0]["cel"]["expression"] = json!("device.driver == 'e'");
    let claim = json!({"metadata": {"name": "far", "namespace": "default"}, "spec": {"devices": {"requests": [wants]}}});
    api.create(&Resource::RESOURCE_CLAIMS, claim).await;
    api.create(&Resource::PODS, user("far")).await;
    until("it is allocated", || get("far")["status"]["allocation"].is_object()).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(node_of("far").is_null(), "the device is not ready");
    let say = async |condition: &str| {
        let at = client::PatchTarget { namespace: "default", name: "far", subresource: "status" };
        let said = json!([{"driver": "e", "pool": "t", "device": "far", "conditions": [
            {"type": condition, "status": "True", "reason": "Because", "message": ""}]}]);
        api.merge(&Resource::RESOURCE_CLAIMS, at, json!({"status": {"devices": said}})).await;
    };
    say("Failed").await;
    until("the Pod has an Event", || {
        let events = api.list(&Resource::EVENTS, "default");
        let told = |e: &Value| {
            e["message"]
                .as_str()
                .is_some_and(|m| m.contains("device binding failed: claim=far, reason=Because"))
        };
        events.iter().any(told)
    })
    .await;
    until("it is retried", || {
        let status = &get("far")["status"];
        status["allocation"].is_object() && status["devices"].is_null()
    })
    .await;
    say("Ready").await;
    until("the Pod has a node", || !node_of("far").is_null()).await;
    assert!(tasks.drain(Duration::from_secs(5)).await.unfinished.is_empty());
}

/// A Pod's claim through the real API server, which checks the scheduler's permissions and the allocation.
#[allow(clippy::too_many_lines, reason = "one scenario")]
#[tokio::test]
async fn api_server_accepts_allocation() {
    let api = testkit::RealApi::start().await.unwrap();
    let (client, running) = (api.user("system:kube-scheduler"), api.tasks());
    api.tasks()
        .spawn("scheduler", async move { run(Config::default(), client, &running).await.unwrap() });
    let admin = api.admin();
    let make = async |resource: &Resource, object: Value| {
        let namespace = if resource.namespaced { "default" } else { "" };
        admin.create::<_, Value>(resource, namespace, &object).await.unwrap()
    };
    let account = json!({"metadata": {"name": "default"}});
    let _ = admin.create::<_, Value>(&Resource::SERVICE_ACCOUNTS, "default", &account).await;
    make(&Resource::NODES, json!({"metadata": {"name": "n"}})).await;
    let at = client::PatchTarget { namespace: "", name: "n", subresource: "status" };
    let amounts = json!({"cpu": "8", "memory": "8Gi", "pods": "110"});
    let status = json!({"status": {"capacity": amounts, "allocatable": amounts}});
    let merge = client::PatchKind::Merge;
    admin.patch::<Value>(&Resource::NODES, at, merge, &status).await.unwrap();
    let bandwidth =
        json!({"value": "10Gi", "requestPolicy": {"default": "1Gi", "validRange": {"min": "1Gi"}}});
    let slice = json!({"metadata": {"name": "s"}, "spec": {"driver": "d.example.com", "nodeName": "n",
        "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "only", "attributes": {"model": {"string": "x"}}},
            {"name": "nic", "allowMultipleAllocations": true, "capacity": {"bandwidth": bandwidth}}]}});
    make(&Resource::RESOURCE_SLICES, slice).await;
    make(&Resource::DEVICE_CLASSES, json!({"metadata": {"name": "c"}, "spec": {}})).await;
    let request = |name: &str, shared: bool| {
        let text = format!("device.allowMultipleAllocations == {shared}");
        json!({"name": name, "exactly": {"deviceClassName": "c",
            "tolerations": [{"key": "t", "operator": "Exists", "effect": "NoSchedule"}],
            "selectors": [{"cel": {"expression": text}}]}})
    };
    let spec = json!({"devices": {"requests": [request("x", false), request("y", true)],
        "config": [{"requests": ["x"], "opaque": {"driver": "d.example.com", "parameters": {"a": 1}}}]}});
    for name in ["first", "second"] {
        make(&Resource::RESOURCE_CLAIMS, json!({"metadata": {"name": name}, "spec": spec})).await;
    }
    let user = |name: &str, claim: &str| {
        json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}],
            "automountServiceAccountToken": false, "tolerations": [{"operator": "Exists"}],
            "resourceClaims": [{"name": "r", "resourceClaimName": claim}]}})
    };
    let get = async |resource: &Resource, name: &str| {
        admin.get::<Value>(resource, "default", name).await.unwrap()
    };
    let until = async |pod: &str, path: &str, wanted: &str| {
        let waiting = async {
            loop {
                let pod = get(&Resource::PODS, pod).await;
                if pod.pointer(path).and_then(Value::as_str).is_some_and(|t| t.contains(wanted)) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(60), waiting).await;
        assert!(waited.is_ok(), "{pod} without {wanted}: {}", get(&Resource::PODS, pod).await);
    };
    make(&Resource::PODS, user("p", "first")).await;
    until("p", "/spec/nodeName", "n").await;
    let claim = get(&Resource::RESOURCE_CLAIMS, "first").await;
    let results = &claim["status"]["allocation"]["devices"]["results"];
    assert_eq!((&results[0]["device"], &results[1]["device"]), (&json!("only"), &json!("nic")));
    assert_eq!(results[1]["consumedCapacity"], json!({"bandwidth": "1Gi"}));
    assert_eq!(claim["status"]["allocation"]["devices"]["config"][0]["source"], "FromClaim");
    assert!(claim["status"]["allocation"]["allocationTimestamp"].is_string(), "{claim}");
    assert_eq!(
        claim["metadata"]["finalizers"],
        json!(["resource.kubernetes.io/delete-protection"])
    );
    make(&Resource::PODS, user("q", "second")).await;
    until("q", "/status/conditions/0/message", "1 cannot allocate all claims.").await;
    // A claim that only this Pod uses and whose devices are on another node is deallocated.
    let gone = json!({"allocation": {"devices": {"results": [{"request": "x", "driver": "d.example.com",
        "pool": "gone", "device": "x"}]}, "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [
        {"key": "metadata.name", "operator": "In", "values": ["gone"]}]}]}}});
    make(&Resource::RESOURCE_CLAIMS, json!({"metadata": {"name": "third"}, "spec": spec})).await;
    let at = client::PatchTarget { namespace: "default", name: "third", subresource: "status" };
    let status = json!({"status": gone});
    admin.patch::<Value>(&Resource::RESOURCE_CLAIMS, at, merge, &status).await.unwrap();
    make(&Resource::PODS, user("r", "third")).await;
    until("r", "/status/conditions/0/message", "1 cannot allocate all claims.").await;
    let claim = get(&Resource::RESOURCE_CLAIMS, "third").await;
    assert!(claim["status"]["allocation"].is_null(), "{claim}");
    let left = api.stop().await;
    assert!(left.unfinished.is_empty(), "{left:?}");
}
