//! Tests the allocation of devices to claims: results, failures and waiting Pods.

use super::*;
use crate::{
    DeviceBinding, DeviceClassView, Failure, Progress, ResourceClaimView, ResourceSliceView,
};

const DRIVER: &str = "d.example.com";

/// A slice that forms a pool of its own, with these devices of a node.
fn slice(name: &str, node: &str, devices: Value) -> Value {
    json!({"spec": {"driver": DRIVER, "nodeName": node, "devices": devices,
        "pool": {"name": name, "generation": 1, "resourceSliceCount": 1}}})
}

fn set_slice(core: &mut Core, name: &str, slice: Value) {
    let view: ResourceSliceView = serde_json::from_value(slice).unwrap();
    core.set_slice(name, Some(&view), 0);
}

fn set_class(core: &mut Core, name: &str, spec: Value) {
    let view: DeviceClassView = serde_json::from_value(json!({"spec": spec})).unwrap();
    core.set_device_class(name, Some(&view), 0);
}

fn set_claim(core: &mut Core, name: &str, more: Value, now: u64) {
    let mut claim = json!({"metadata": {"namespace": "default", "name": name, "uid": name, "resourceVersion": "1"}});
    merge(&mut claim, more);
    let view: ResourceClaimView = serde_json::from_value(claim).unwrap();
    core.set_device_claim(&"default".into(), name, Some(&view), now);
}

/// A claim with these requests. A request asks for a device of the class unless it says otherwise.
fn claim(core: &mut Core, name: &str, requests: &[Value]) {
    set_claim(core, name, json!({"spec": {"devices": {"requests": requests}}}), 0);
}

fn request(name: &str, more: Value) -> Value {
    let mut exactly = json!({"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1});
    merge(&mut exactly, more);
    json!({"name": name, "exactly": exactly})
}

fn selector(text: &str) -> Value {
    json!({"selectors": [{"cel": {"expression": text}}]})
}

/// Two nodes: the first with a small and a large device, the second with a large one.
fn cluster() -> Core {
    let mut core = core([node("a", "8", json!({})), node("b", "8", json!({}))]);
    let device = |name: &str, size: i64, model: &str| {
        json!({"name": name, "attributes": {"size": {"int": size}, "model": {"string": model},
            "firmware": {"version": "1.2.3"}}, "capacity": {"memory": {"value": "8Gi"}}})
    };
    set_slice(&mut core, "a", slice("a", "a", json!([device("a0", 1, "x"), device("a1", 2, "y")])));
    set_slice(&mut core, "b", slice("b", "b", json!([device("b0", 2, "x")])));
    set_class(&mut core, "gpu", selector("device.driver == 'd.example.com'"));
    core
}

fn user(name: &str, claims: &[&str]) -> Arc<Pod> {
    let claims: Vec<_> =
        claims.iter().map(|c| json!({"name": c, "resourceClaimName": c})).collect();
    pod(name, "1", json!({"spec": {"resourceClaims": claims}}))
}

fn decide(core: &mut Core, pod: Arc<Pod>) -> Result<(String, Vec<DeviceBinding>), Failure> {
    core.set_pod(pod, 0);
    next(core, 0)
}

fn next(core: &mut Core, now: u64) -> Result<(String, Vec<DeviceBinding>), Failure> {
    match core.next(now) {
        Some(Decision::Bind { node, devices, .. }) => Ok((node.to_string(), devices)),
        Some(Decision::Unschedulable(failure)) => Err(failure),
        other => panic!("decided {other:?}"),
    }
}

/// Returns the names of the devices that a claim gets.
fn device_names(devices: &[DeviceBinding], claim: &str) -> Vec<String> {
    let binding = devices.iter().find(|binding| *binding.claim == *claim).unwrap();
    let results = &binding.allocation.as_ref().unwrap().devices.results;
    results.iter().map(|device| device.device.to_string()).collect()
}

fn why(core: &mut Core, pod: Arc<Pod>) -> String {
    decide(core, pod).unwrap_err().message
}

#[test]
fn selectors_choose_devices() {
    for (text, wanted) in [
        ("device.attributes['d.example.com'].size == 1", vec!["a0"]),
        (
            "device.attributes['d.example.com'].size > 1 && device.attributes['d.example.com'].model == 'x'",
            vec!["b0"],
        ),
        (
            "device.attributes['d.example.com'].firmware.isGreaterThan(semver('1.0.0')) && device.attributes['d.example.com'].size == 1",
            vec!["a0"],
        ),
        (
            "device.capacity['d.example.com'].memory.compareTo(quantity('1Gi')) > 0 && device.attributes['d.example.com'].model == 'y'",
            vec!["a1"],
        ),
        (
            "cel.bind(own, device.attributes['d.example.com'], own.size == 2 && own.model == 'y')",
            vec!["a1"],
        ),
        (
            "!('other.example.com' in device.attributes) && !device.allowMultipleAllocations && device.attributes['d.example.com'].size == 1",
            vec!["a0"],
        ),
        (
            "has(device.attributes['other.example.com'].any) || device.attributes['d.example.com'].size == 1",
            vec!["a0"],
        ),
        ("device.attributes['d.example.com'].size > 5", vec![]),
    ] {
        let mut core = cluster();
        claim(&mut core, "c", &[request("r", selector(text))]);
        match decide(&mut core, user("p", &["c"])) {
            Ok((_, devices)) => assert_eq!(device_names(&devices, "c"), wanted, "{text}"),
            Err(failure) => {
                assert!(wanted.is_empty(), "{text}: {}", failure.message);
                assert_eq!(
                    failure.message,
                    "0/2 nodes are available: 2 cannot allocate all claims. still not schedulable, preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling."
                );
            }
        }
    }
}

#[test]
fn reports_invalid_claims_as_errors() {
    for (text, words) in [
        (
            "device.attributes['d.example.com'].typo == 1",
            "running \"DynamicResources\" filter plugin: claim default/c: selector #0: CEL runtime error: no such key: typo",
        ),
        (
            "device.attributes[",
            "claim default/c: selector #0: CEL compile error: compilation failed: ERROR: <input>:1",
        ),
        (
            "device.attributes['d.example.com'].model",
            "CEL result of type string could not be converted to bool",
        ),
        ("'text'", "must evaluate to bool or the unknown type, not string"),
        // A hostile expression that exceeds the cost limit.
        (
            "['a','b','c','d','e','f','g','h'].all(a, [1,2,3,4,5,6,7,8].all(b, [1,2,3,4,5,6,7,8].all(c, [1,2,3,4,5,6,7,8].all(d, [1,2,3,4,5,6,7,8].all(e, [1,2,3,4,5,6,7,8].all(f, [1,2,3,4,5,6,7,8].all(g, true)))))))",
            "actual cost limit exceeded",
        ),
    ] {
        let mut core = cluster();
        claim(&mut core, "c", &[request("r", selector(text))]);
        let message = why(&mut core, user("p", &["c"]));
        assert!(message.contains(words), "{text}: {message}");
    }
    // The expression is true for one node and fails for the other: the Pod is not scheduled until someone repairs it.
    let mut core = cluster();
    set_slice(
        &mut core,
        "b",
        slice("b", "b", json!([{"name": "b0", "attributes": {"only": {"bool": true}}}])),
    );
    claim(&mut core, "c", &[request("r", selector("device.attributes['d.example.com'].only"))]);
    assert!(why(&mut core, user("p", &["c"])).contains("CEL runtime error: no such key: only"));
}

#[test]
fn holds_pod_until_its_claims_exist() {
    let mut core = cluster();
    core.set_pod(user("p", &["c"]), 0);
    assert!(core.next(0).is_none() && core.queue_lengths().gated == 1, "the claim is not there");
    claim(&mut core, "c", &[request("r", json!({}))]);
    assert_eq!(device_names(&next(&mut core, 0).unwrap().1, "c").len(), 1);
    // A claim from a template waits for the Pod's status, and for a claim that the Pod owns.
    let template = |status: Value| {
        let spec = json!({"resourceClaims": [{"name": "g", "resourceClaimTemplateName": "t"}]});
        pod("q", "1", json!({"spec": spec, "status": {"resourceClaimStatuses": status}}))
    };
    core.set_pod(template(json!([])), 0);
    assert!(core.next(0).is_none());
    claim(&mut core, "made", &[request("r", json!({}))]);
    let made = json!([{"name": "g", "resourceClaimName": "made"}]);
    core.set_pod(template(made), 0);
    assert!(core.next(0).is_none(), "the claim of that name has another owner");
    let owner =
        json!([{"apiVersion": "v1", "kind": "Pod", "name": "q", "uid": "q", "controller": true}]);
    let spec = json!({"devices": {"requests": [request("r", json!({}))]}});
    set_claim(&mut core, "made", json!({"metadata": {"ownerReferences": owner}, "spec": spec}), 0);
    assert_eq!(device_names(&next(&mut core, 0).unwrap().1, "made").len(), 1);
    // The controller found that no claim is needed.
    core.set_pod(
        pod(
            "r",
            "1",
            json!({"spec": {"resourceClaims": [{"name": "g", "resourceClaimTemplateName": "t"}]},
        "status": {"resourceClaimStatuses": [{"name": "g"}]}}),
        ),
        0,
    );
    assert!(next(&mut core, 0).unwrap().1.is_empty());
}

#[test]
fn allocates_device_once_until_freed() {
    let mut core = cluster();
    let mut first = Vec::new();
    for name in ["c1", "c2", "c3"] {
        claim(&mut core, name, &[request("r", json!({}))]);
        let (node, devices) = decide(&mut core, user(&format!("p-{name}"), &[name])).unwrap();
        let selector = devices[0].allocation.as_ref().unwrap().node_selector.clone().unwrap();
        assert_eq!(selector["nodeSelectorTerms"][0]["matchFields"][0]["values"][0], node);
        first.extend(device_names(&devices, name));
        core.allocation_written(name, "7");
        let written = json!({"metadata": {"resourceVersion": "7"}, "status": {
            "allocation": devices[0].allocation, "reservedFor": [{"uid": format!("p-{name}")}]}});
        if name != "c3" {
            set_claim(&mut core, name, written, 0);
        }
    }
    let freed = first[0].clone();
    first.sort();
    assert_eq!(first, ["a0", "a1", "b0"]);
    claim(&mut core, "c4", &[request("r", json!({}))]);
    assert!(why(&mut core, user("late", &["c4"])).contains("2 cannot allocate all claims."));
    // The last allocation is written but not visible: neither the end of its Pod nor an older state frees the device.
    core.remove_pod("p-c3", 0);
    set_claim(&mut core, "c3", json!({"metadata": {"resourceVersion": "6"}}), 0);
    assert!(core.next(100_000).is_none_or(|d| matches!(d, Decision::Unschedulable(_))));
    set_claim(&mut core, "c1", json!({"metadata": {"resourceVersion": "9"}}), 100_000);
    let (_, devices) = next(&mut core, 200_000).unwrap();
    assert_eq!(device_names(&devices, "c4"), [freed.as_str()]);
    // An allocation that was not written is released when the binding fails.
    let pod = user("late", &["c4"]);
    core.bind_failed(&pod.id, 200_000);
    claim(&mut core, "c5", &[request("r", json!({}))]);
    core.set_pod(user("other", &["c5"]), 200_000);
    assert_eq!(device_names(&next(&mut core, 200_000).unwrap().1, "c5"), [freed.as_str()]);
}

#[test]
fn waits_for_claim_in_allocation() {
    let mut core = cluster();
    claim(&mut core, "c", &[request("r", json!({}))]);
    let (node, devices) = decide(&mut core, user("p", &["c"])).unwrap();
    let message = why(&mut core, user("q", &["c"]));
    assert!(message.contains("resource claim default/c is in the process of being allocated"));
    // Both Pods share the allocation on its node once it exists.
    let status = json!({"allocation": devices[0].allocation, "reservedFor": [{"uid": "p"}]});
    set_claim(&mut core, "c", json!({"status": status}), 0);
    let (other, devices) = next(&mut core, 100_000).unwrap();
    assert_eq!((other, devices[0].allocation.is_none()), (node, true));
}

#[test]
fn ignores_incomplete_and_invalid_pools() {
    let mut core = cluster();
    let part = |generation: i64, device: &str| {
        json!({"spec": {"driver": DRIVER, "nodeName": "a", "devices": [{"name": device}],
            "pool": {"name": "a", "generation": generation, "resourceSliceCount": 2}}})
    };
    set_slice(&mut core, "a", part(2, "new"));
    claim(&mut core, "c", &[request("r", json!({"count": 2}))]);
    claim(&mut core, "all", &[request("r", json!({"allocationMode": "All"}))]);
    assert!(why(&mut core, user("p", &["c"])).contains("2 cannot allocate all claims."));
    assert!(why(&mut core, user("q", &["all"])).contains("claim default/all, request r: asks for all devices, but resource pool d.example.com/a is currently being updated"));
    // An old generation does not count; a duplicate name makes the pool invalid.
    set_slice(&mut core, "a2", part(1, "old"));
    assert!(why(&mut core, user("p2", &["c"])).contains("2 cannot allocate all claims."));
    set_slice(&mut core, "a2", part(2, "new"));
    assert!(
        why(&mut core, user("p3", &["c"]))
            .contains("1 cannot allocate all claims, 1 invalid resource pools were encountered.")
    );
    set_slice(&mut core, "a2", part(2, "more"));
    let (node, devices) = decide(&mut core, user("p4", &["c"])).unwrap();
    assert_eq!(
        (node.as_str(), device_names(&devices, "c")),
        ("a", vec!["new".to_owned(), "more".to_owned()])
    );
}

#[test]
fn allocates_first_possible_alternative() {
    let list = |first: Value, second: Value| {
        let alternative = |name: &str, more: Value| {
            let mut out = request(name, more)["exactly"].take();
            merge(&mut out, json!({"name": name}));
            out
        };
        json!({"name": "r", "firstAvailable": [alternative("best", first), alternative("good", second)]})
    };
    let mut core = cluster();
    let two = || selector("device.attributes['d.example.com'].size == 2");
    let config = json!([{"requests": ["r/good"], "opaque": {"driver": DRIVER, "parameters": {"a": 1}}},
        {"requests": ["r/best"], "opaque": {"driver": DRIVER, "parameters": {"a": 2}}}]);
    let none = selector("device.attributes['d.example.com'].size == 7");
    let spec = json!({"devices": {"requests": [list(none, two())], "config": config}});
    set_claim(&mut core, "c", json!({"spec": spec}), 0);
    let (_, devices) = decide(&mut core, user("p", &["c"])).unwrap();
    let allocation = devices[0].allocation.as_ref().unwrap();
    assert_eq!(&*allocation.devices.results[0].request, "r/good");
    let words: Vec<_> = allocation
        .devices
        .config
        .iter()
        .map(|c| (&*c.source, c.opaque.clone().unwrap()["parameters"]["a"].clone()))
        .collect();
    assert_eq!(words, [("FromClaim", json!(1))]);
    // The node with the better alternative scores higher.
    for _ in 0..8 {
        let mut core = cluster();
        let small = selector("device.attributes['d.example.com'].model == 'y'");
        let spec = json!({"devices": {"requests": [list(small, json!({}))]}});
        set_claim(&mut core, "c", json!({"spec": spec}), 0);
        assert_eq!(decide(&mut core, user("p", &["c"])).unwrap().0, "a");
    }
}

#[test]
fn applies_taints_counters_shares_and_admin_access() {
    let mut core = core([node("a", "8", json!({}))]);
    set_class(
        &mut core,
        "gpu",
        json!({"config": [{"opaque": {"driver": DRIVER, "parameters": {}}}]}),
    );
    let draws = |n: &str| json!([{"counterSet": "s", "counters": {"cores": {"value": n}}}]);
    let taints = json!([{"key": "broken", "effect": "NoSchedule"}]);
    let part = |counters: Value, devices: Value| {
        json!({"spec": {"driver": DRIVER, "nodeName": "a", "devices": devices, "sharedCounters": counters,
            "pool": {"name": "a", "generation": 1, "resourceSliceCount": 2}}})
    };
    set_slice(
        &mut core,
        "s",
        part(json!([{"name": "s", "counters": {"cores": {"value": "4"}}}]), json!([])),
    );
    let nic = json!({"name": "nic", "allowMultipleAllocations": true, "capacity": {"bandwidth": {"value": "10",
        "requestPolicy": {"default": "1", "validRange": {"min": "1", "step": "2", "max": "9"}}}}});
    set_slice(
        &mut core,
        "d",
        part(
            json!([]),
            json!([
        {"name": "whole", "consumesCounters": draws("4")}, {"name": "half0", "consumesCounters": draws("2")},
        {"name": "half1", "consumesCounters": draws("2")}, {"name": "tainted", "taints": taints}, nic]),
        ),
    );
    let has = |names: &str| selector(&format!("device.driver != '' && {names}"));
    let counted = || has("!device.allowMultipleAllocations");
    claim(
        &mut core,
        "two",
        &[request("r", json!({"count": 2, "selectors": counted()["selectors"]}))],
    );
    let (_, devices) = decide(&mut core, user("p", &["two"])).unwrap();
    assert_eq!(
        device_names(&devices, "two"),
        ["half0", "half1"],
        "the whole leaves nothing for a second"
    );
    claim(&mut core, "more", &[request("r", counted())]);
    assert!(why(&mut core, user("q", &["more"])).contains("cannot allocate all claims"));
    // The result contains the toleration, which decides who may keep the device.
    let mut tolerant = counted();
    merge(&mut tolerant, json!({"tolerations": [{"key": "broken", "operator": "Exists"}]}));
    claim(&mut core, "tolerant", &[request("r", tolerant)]);
    let (_, devices) = decide(&mut core, user("t", &["tolerant"])).unwrap();
    let allocation = devices[0].allocation.as_ref().unwrap();
    assert_eq!(
        (&*allocation.devices.results[0].device, allocation.devices.results[0].tolerations.len()),
        ("tainted", 1)
    );
    assert_eq!(allocation.devices.config[0].source.as_ref(), "FromClass");
    // Shares: a request for 4 is rounded up to 5, of 10 in total.
    let share = |n: &str| {
        let mut more = has("device.allowMultipleAllocations");
        merge(&mut more, json!({"capacity": {"requests": {"bandwidth": n}}}));
        request("r", more)
    };
    for (name, amount, fits) in
        [("s1", "4", true), ("s2", "11", false), ("s3", "4", true), ("s4", "1", false)]
    {
        claim(&mut core, name, &[share(amount)]);
        let decided = decide(&mut core, user(&format!("share-{name}"), &[name]));
        assert_eq!(decided.is_ok(), fits, "{name}");
        let Ok((_, devices)) = decided else { continue };
        let device = &devices[0].allocation.as_ref().unwrap().devices.results[0];
        assert_eq!(device.consumed_capacity["bandwidth"].value(), 5);
        assert_eq!(device.share_id.as_deref(), Some(""), "the id is generated when it is written");
    }
    // Admin access uses devices that others have, without taking them away.
    let mut admin = counted();
    merge(&mut admin, json!({"adminAccess": true, "tolerations": [{"operator": "Exists"}]}));
    let tainted = "device.driver != '' && !device.allowMultipleAllocations";
    merge(&mut admin, selector(tainted));
    claim(&mut core, "admin", &[request("r", admin)]);
    let (_, devices) = decide(&mut core, user("admin", &["admin"])).unwrap();
    assert_eq!(devices[0].allocation.as_ref().unwrap().devices.results[0].admin_access, Some(true));
}

#[test]
fn applies_constraints_across_requests() {
    let constrained = |core: &mut Core, name: &str, constraint: Value| {
        let requests = [request("x", json!({})), request("y", json!({}))];
        let spec = json!({"devices": {"requests": requests, "constraints": [constraint]}});
        set_claim(core, name, json!({"spec": spec}), 0);
    };
    let mut core = cluster();
    constrained(&mut core, "same", json!({"matchAttribute": "d.example.com/model"}));
    constrained(&mut core, "apart", json!({"distinctAttribute": "d.example.com/model"}));
    constrained(
        &mut core,
        "lacks",
        json!({"requests": ["y"], "matchAttribute": "d.example.com/none"}),
    );
    assert!(decide(&mut core, user("p", &["same"])).is_err());
    assert!(decide(&mut core, user("q", &["lacks"])).is_err());
    let (_, devices) = decide(&mut core, user("r", &["apart"])).unwrap();
    assert_eq!(device_names(&devices, "apart"), ["a0", "a1"]);
}

#[test]
fn deallocates_claim_with_unreachable_devices() {
    let elsewhere = json!({"allocation": {"devices": {"results": [{"request": "r", "driver": DRIVER,
        "pool": "gone", "device": "x"}]}, "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [
        {"key": "metadata.name", "operator": "In", "values": ["gone"]}]}]}}});
    let with = |users: Value| {
        let mut status = elsewhere.clone();
        merge(&mut status, json!({"reservedFor": users}));
        json!({"spec": {"devices": {"requests": [request("r", json!({}))]}}, "status": status})
    };
    let mut core = cluster();
    set_claim(&mut core, "c", with(json!([{"uid": "p"}, {"uid": "other"}])), 0);
    let failure = decide(&mut core, user("p", &["c"])).unwrap_err();
    assert!(
        failure.deallocate.is_none()
            && failure
                .message
                .contains("2 resourceclaim not available on the node. still not schedulable,")
    );
    set_claim(&mut core, "d", with(json!([{"uid": "q"}])), 0);
    let failure = decide(&mut core, user("q", &["d"])).unwrap_err();
    assert_eq!(failure.deallocate, Some(("d".into(), "d".into())));
    assert!(failure.message.contains("deallocation of ResourceClaim completed"));
}

#[test]
fn waits_for_binding_conditions() {
    let mut core = core([node("a", "8", json!({}))]);
    set_class(&mut core, "gpu", json!({}));
    let fabric = json!({"name": "f", "bindsToNode": true, "bindingConditions": ["Attached"], "bindingFailureConditions": ["Failed"]});
    set_slice(
        &mut core,
        "s",
        json!({"spec": {"driver": DRIVER, "allNodes": true, "devices": [fabric],
        "pool": {"name": "s", "generation": 1, "resourceSliceCount": 1}}}),
    );
    claim(&mut core, "c", &[request("r", json!({}))]);
    let pod = user("p", &["c"]);
    let (_, devices) = decide(&mut core, pod.clone()).unwrap();
    let allocation = devices[0].allocation.clone().unwrap();
    assert!(allocation.node_selector.is_some(), "it binds to the node");
    assert_eq!(core.device_progress(&pod, &devices), Progress::Waiting, "nothing is written");
    let mut show = |conditions: Value| {
        let said =
            json!([{"driver": DRIVER, "pool": "s", "device": "f", "conditions": conditions}]);
        set_claim(
            &mut core,
            "c",
            json!({"status": {"allocation": allocation, "devices": said}}),
            0,
        );
        core.device_progress(&pod, &devices)
    };
    assert_eq!(show(json!([])), Progress::Waiting);
    assert_eq!(show(json!([{"type": "Attached", "status": "True"}])), Progress::Bound);
    let failed =
        json!([{"type": "Failed", "status": "True", "reason": "Burnt", "message": "smoke"}]);
    let words = "device binding failed: claim=c, reason=Burnt, message=\"smoke\"";
    assert_eq!(show(failed), Progress::Refused(words.to_owned()));
}

#[test]
fn written_allocations_survive_core_panic() {
    let mut before = core([node("a", "8", json!({}))]);
    let only = |core: &mut Core| {
        core.set_node(node("a", "8", json!({})), 0);
        set_slice(core, "a", slice("a", "a", json!([{"name": "only"}])));
        set_class(core, "gpu", json!({}));
        claim(core, "c", &[request("r", json!({}))]);
    };
    only(&mut before);
    assert!(decide(&mut before, user("p", &["c"])).is_ok());
    before.allocation_written("c", "5");
    before.remove_pod("p", 0);
    let mut after = before.restart(0);
    only(&mut after);
    claim(&mut after, "d", &[request("r", json!({}))]);
    assert!(decide(&mut after, user("q", &["d"])).is_err(), "the device is the first claim's");
    let given_back = json!({"metadata": {"resourceVersion": "6"}});
    set_claim(&mut after, "c", given_back, 0);
    assert!(next(&mut after, 100_000).is_ok());
}

/// Returns a Pod whose containers request extended resources.
fn extended(name: &str, spec: Value) -> Arc<Pod> {
    pod(name, "1", json!({ "spec": spec }))
}

fn requesting(name: &str, resources: Value) -> Value {
    json!({"name": name, "resources": {"requests": resources}})
}

#[test]
fn allocates_devices_for_extended_resources() {
    let mut core = cluster();
    let gpus =
        |amount: &str| json!({"containers": [requesting("c", json!({"example.com/gpu": amount}))]});
    let failure = why(&mut core, extended("early", gpus("1")));
    assert!(failure.contains("Insufficient example.com/gpu"), "{failure}");
    // The Pod is tried again after a class serves its resource.
    let mut spec = selector("device.driver == 'd.example.com'");
    spec["extendedResourceName"] = json!("example.com/gpu");
    set_class(&mut core, "gpu", spec);
    let (node, devices) = next(&mut core, 120_000).unwrap();
    let [binding] = &devices[..] else { panic!("{devices:?}") };
    assert!(binding.claim.is_empty() && binding.allocation.is_some(), "{binding:?}");
    let claim = binding.extended.as_ref().unwrap();
    let mapping = json!({"containerName": "c", "resourceName": "example.com/gpu", "requestName": "container-0-request-0"});
    assert_eq!(json!(claim.mappings), json!([mapping]));
    assert_eq!((&*claim.requests[0].class, claim.requests[0].count), ("gpu", 1));
    // Its device is in use before and after the claim is created.
    let other = if node == "a" { "b" } else { "a" };
    core.device_claim_created(&binding.uid, "u");
    let (second, _) = decide(&mut core, extended("two", gpus("1"))).unwrap();
    let (third, _) = decide(&mut core, extended("three", gpus("1"))).unwrap();
    assert!([&second, &third].contains(&&other.to_owned()), "{second} {third}");
    assert!(why(&mut core, extended("four", gpus("1"))).contains("cannot allocate all claims"));
}

#[test]
fn prefers_device_plugins_and_accepts_names_of_classes() {
    let plugin = json!({"status": {"allocatable": {"example.com/gpu": "4"}}});
    let mut core = core([node("plugin", "8", plugin)]);
    let mut spec = selector("device.driver == 'd.example.com'");
    spec["extendedResourceName"] = json!("example.com/gpu");
    set_class(&mut core, "gpu", spec);
    let ask = |resource: &str| json!({"containers": [requesting("c", json!({resource: "2"}))]});
    let (_, devices) = decide(&mut core, extended("p", ask("example.com/gpu"))).unwrap();
    assert_eq!(devices, [], "the device plugin serves the resource");
    set_slice(&mut core, "s", slice("s", "plugin", json!([{"name": "x"}, {"name": "y"}])));
    let by_class = ask("deviceclass.resource.kubernetes.io/gpu");
    let (_, devices) = decide(&mut core, extended("q", by_class)).unwrap();
    assert_eq!(devices[0].allocation.as_ref().unwrap().devices.results.len(), 2);
}

#[test]
fn init_containers_share_requests() {
    let mut core = core([node("n", "8", json!({}))]);
    let devices: Vec<_> = (0..8).map(|i| json!({"name": format!("d{i}")})).collect();
    set_slice(&mut core, "s", slice("s", "n", json!(devices)));
    set_class(&mut core, "gpu", json!({"extendedResourceName": "a.b/gpu"}));
    let ask = |name: &str, amount: &str| requesting(name, json!({"a.b/gpu": amount, "cpu": "1m"}));
    let mut sidecar = ask("sidecar", "1");
    sidecar["restartPolicy"] = json!("Always");
    let spec = json!({"initContainers": [ask("first", "1"), sidecar, ask("last", "3")],
        "containers": [ask("main", "2")]});
    let (_, devices) = decide(&mut core, extended("p", spec)).unwrap();
    let claim = devices[0].extended.as_ref().unwrap();
    let counts: Vec<_> = claim.requests.iter().map(|r| (&*r.name, r.count)).collect();
    assert_eq!(
        counts,
        [("container-1-request-0", 1), ("container-3-request-0", 2), ("container-2-request-0", 3)]
    );
    let mapped: Vec<_> =
        claim.mappings.iter().map(|m| (&*m.container_name, &*m.request_name)).collect();
    assert_eq!(
        mapped,
        [
            ("sidecar", "container-1-request-0"),
            ("main", "container-3-request-0"),
            ("last", "container-2-request-0"),
            ("first", "container-1-request-0"),
        ]
    );
}

#[test]
fn uses_claim_of_earlier_attempt_and_rejects_too_many_devices() {
    let mut core = cluster();
    set_class(&mut core, "gpu", json!({"extendedResourceName": "a.b/gpu"}));
    let ask = |amount: &str| json!({"containers": [requesting("c", json!({"a.b/gpu": amount}))]});
    let pod = extended("p", ask("1"));
    let result =
        json!({"request": "container-0-request-0", "driver": DRIVER, "pool": "b", "device": "b0"});
    let only_b = json!({"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["b"]}]}]});
    let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": *pod.id.uid, "controller": true});
    let earlier = json!({
        "metadata": {"annotations": {"resource.kubernetes.io/extended-resource-claim": "true"}, "ownerReferences": [owner]},
        "status": {"allocation": {"devices": {"results": [result]}, "nodeSelector": only_b}},
    });
    set_claim(&mut core, "earlier", earlier, 0);
    let (node, devices) = decide(&mut core, pod).unwrap();
    assert_eq!((node.as_str(), &*devices[0].claim, devices.len()), ("b", "earlier", 1));
    assert!(devices[0].allocation.is_none() && devices[0].extended.is_some());
    assert!(why(&mut core, extended("big", ask("33"))).contains("cannot allocate all claims"));
    assert!(
        why(&mut core, extended("huge", ask("9223372036854775807")))
            .contains("cannot allocate all claims")
    );
}

#[test]
fn ignores_claim_of_other_namespace_for_extended_resources() {
    let mut core = cluster();
    set_class(&mut core, "gpu", json!({"extendedResourceName": "a.b/gpu"}));
    let pod = extended("p", json!({"containers": [requesting("c", json!({"a.b/gpu": "1"}))]}));
    let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": *pod.id.uid, "controller": true});
    let forged: ResourceClaimView = serde_json::from_value(json!({
        "metadata": {"namespace": "other", "name": "forged", "uid": "forged", "ownerReferences": [owner],
            "annotations": {"resource.kubernetes.io/extended-resource-claim": "true"}},
        "status": {"allocation": {"devices": {"results": []}}},
    }))
    .unwrap();
    core.set_device_claim(&"other".into(), "forged", Some(&forged), 0);
    let (_, devices) = decide(&mut core, pod).unwrap();
    assert!(devices[0].claim.is_empty() && devices[0].allocation.is_some(), "{devices:?}");
}

#[test]
fn keeps_pods_off_devices_that_rules_taint() {
    let mut core = cluster();
    let set_rule = |core: &mut Core, spec: Value, now: u64| {
        let rule: crate::DeviceTaintRuleView =
            serde_json::from_value(json!({ "spec": spec })).unwrap();
        core.set_taint_rule("rule", Some(&rule), now);
    };
    let taint = json!({"key": "sick", "effect": "NoSchedule"});
    set_rule(&mut core, json!({"deviceSelector": {"driver": DRIVER}, "taint": taint}), 0);
    claim(&mut core, "any", &[request("r", json!({}))]);
    assert!(why(&mut core, user("p", &["any"])).contains("cannot allocate all claims"));
    // A claim that tolerates the taint gets a device, and so does the Pod after the rule names another device.
    let tolerations = json!({"tolerations": [{"key": "sick", "operator": "Exists"}]});
    claim(&mut core, "brave", &[request("r", tolerations)]);
    let (_, devices) = decide(&mut core, user("q", &["brave"])).unwrap();
    assert_eq!(device_names(&devices, "brave").len(), 1);
    let only = json!({"driver": DRIVER, "pool": "a", "device": "a0"});
    set_rule(&mut core, json!({"deviceSelector": only, "taint": taint}), 120_000);
    let (_, devices) = next(&mut core, 120_000).unwrap();
    assert_ne!(device_names(&devices, "any"), ["a0"]);
    // A rule without a selector and one with the effect None taint nothing.
    for spec in [
        json!({"taint": taint}),
        json!({"deviceSelector": {}, "taint": {"key": "sick", "effect": "None"}}),
    ] {
        let mut core = cluster();
        set_rule(&mut core, spec, 0);
        claim(&mut core, "any", &[request("r", json!({}))]);
        assert!(decide(&mut core, user("p", &["any"])).is_ok());
    }
}
