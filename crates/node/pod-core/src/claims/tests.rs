use serde_json::{Value, json};

use super::{allocations::Allocations, checkpoint::CheckpointError, *};
use crate::ChecksumError;

fn pod(claims: Value, status: Value, container: Value) -> Pod {
    let pod = json!({"metadata": {"name": "p", "namespace": "ns", "uid": "pod-1"},
        "spec": {"resourceClaims": claims, "containers": [container]}, "status": status});
    serde_json::from_value(pod).unwrap()
}

fn container(pod: &Pod) -> &Container {
    &pod.spec.as_ref().unwrap().containers[0]
}

fn of_template(statuses: Value) -> Pod {
    let claims = json!([{"name": "gpu", "resourceClaimTemplateName": "t"}]);
    let asks = json!({"name": "c", "resources": {"claims": [{"name": "gpu"}]}});
    pod(claims, json!({"resourceClaimStatuses": statuses}), asks)
}

fn object(change: impl FnOnce(&mut Value)) -> ResourceClaim {
    let mut claim = json!({
        "metadata": {"name": "claim", "namespace": "ns", "uid": "claim-1", "ownerReferences": [
            {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "pod-1", "controller": true}]},
        "spec": {},
        "status": {
            "reservedFor": [{"resource": "pods", "name": "p", "uid": "pod-1"}],
            "allocation": {"devices": {"results": [
                {"driver": "d.example.com", "pool": "node", "device": "a", "request": "one"},
                {"driver": "e.example.com", "pool": "node", "device": "b", "request": "two"}]}},
        },
    });
    change(&mut claim);
    serde_json::from_value(claim).unwrap()
}

fn device(name: &str, requests: &[&str], cdi: &[&str]) -> Device {
    let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
    let (requests, cdi) = (texts(requests), texts(cdi));
    Device { pool: "node".to_owned(), name: name.to_owned(), share: None, requests, cdi }
}

fn key() -> Key {
    ("ns".to_owned(), "claim".to_owned())
}

/// Returns the allocation of a claim that is prepared for these Pods.
fn ready(pods: &[&str]) -> Allocations {
    let pod = of_template(json!([{"name": "gpu", "resourceClaimName": "claim"}]));
    let claim = references(&pod).unwrap()[0].check(&pod, &object(|_| {})).unwrap();
    let mut allocations = Allocations::default();
    for uid in pods {
        assert_eq!(allocations.add_pod(uid, vec![claim.clone()]).unwrap().len(), 1);
    }
    allocations.set_devices(
        &key(),
        "d.example.com",
        vec![device("a", &["one"], &["d/x=a", "d/x=all"])],
    );
    allocations.set_devices(
        &key(),
        "e.example.com",
        vec![device("b", &["two"], &["e/x=b", "d/x=all"])],
    );
    allocations.set_prepared(&key());
    allocations
}

#[test]
fn checks_allocation_reservation_and_owner_of_a_claim() {
    let pod = of_template(json!([{"name": "gpu", "resourceClaimName": "claim"}]));
    let check = |change: fn(&mut Value)| {
        let error = references(&pod).unwrap()[0].check(&pod, &object(change));
        error.map(|claim| claim.drivers.len()).map_err(|error| error.to_string())
    };
    assert_eq!(check(|_| {}), Ok(2));
    let refused = |why: &str| Err(why.to_owned());
    assert_eq!(
        check(|claim| claim["status"]["allocation"] = Value::Null),
        refused("ResourceClaim claim: not allocated")
    );
    let other = "pod p (pod-1) is not allowed to use ResourceClaim claim (claim-1)";
    // Another Pod of the same name.
    assert_eq!(
        check(|claim| claim["status"]["reservedFor"][0]["uid"] = json!("pod-0")),
        refused(other)
    );
    assert_eq!(check(|claim| claim["status"] = Value::Null), refused(other));
    assert_eq!(
        check(|claim| claim["metadata"]["ownerReferences"][0]["uid"] = json!("pod-0")),
        refused("ResourceClaim ns/claim was not created for Pod ns/p (Pod is not owner)")
    );
    let none = references(&of_template(json!([]))).unwrap_err().to_string();
    assert_eq!(none, "pod \"ns/p\": ResourceClaim not created yet");
    // The status says that the template needs no claim.
    assert_eq!(references(&of_template(json!([{"name": "gpu"}]))).unwrap(), []);
    let nameless = self::pod(json!([{"name": "gpu"}]), json!({}), json!({"name": "c"}));
    let error = references(&nameless).unwrap_err().to_string();
    assert_eq!(
        error,
        "pod \"ns/p\", spec.resourceClaim \"gpu\": none of the supported fields are set"
    );
    // A static Pod without a UID must not match a reservation without a UID.
    let mut unborn = pod.clone();
    unborn.metadata.uid = None;
    let claim = object(|claim| claim["status"]["reservedFor"][0]["uid"] = json!(""));
    let shared = ClaimReference { name: "claim".to_owned(), own: false };
    assert!(matches!(shared.check(&unborn, &claim), Err(ClaimError::NotReserved { .. })));
}

#[test]
fn gives_container_the_requests_that_it_names() {
    let allocations = ready(&["pod-1"]);
    let cdi = |claims: Value| {
        let listed = json!([{"name": "gpu", "resourceClaimName": "claim"}]);
        let asks = json!({"name": "c", "resources": {"claims": claims}});
        let pod = pod(listed, json!({}), asks);
        allocations.cdi(&pod, container(&pod)).unwrap()
    };
    assert_eq!(cdi(json!([{"name": "gpu"}])), ["d/x=a", "d/x=all", "e/x=b"]);
    assert_eq!(cdi(json!([{"name": "gpu", "request": "two"}])), ["e/x=b", "d/x=all"]);
    assert_eq!(cdi(json!([{"name": "gpu", "request": "none"}])), [""; 0]);
    assert_eq!(cdi(json!([])), [""; 0]);

    // Another Pod with the same reference gets nothing.
    let listed = json!([{"name": "gpu", "resourceClaimName": "claim"}]);
    let asks = json!({"name": "c", "resources": {"claims": [{"name": "gpu"}]}});
    let mut other = pod(listed, json!({}), asks);
    other.metadata.uid = Some("pod-2".to_owned());
    assert!(matches!(allocations.cdi(&other, container(&other)), Err(ClaimError::Unknown { .. })));
    assert!(
        !allocations.has_all(&other)
            && allocations.of_container(&other, container(&other)).is_empty()
    );
}

#[test]
fn returns_claim_once_if_container_names_other_claims_between_its_requests() {
    let listed = json!([{"name": "gpu", "resourceClaimName": "claim"},
        {"name": "nic", "resourceClaimName": "other"}]);
    let requests = json!([{"name": "gpu", "request": "one"}, {"name": "nic"},
        {"name": "gpu", "request": "two"}]);
    let pod = pod(listed, json!({}), json!({"name": "c", "resources": {"claims": requests}}));
    let allocations = ready(&["pod-1"]);
    let names = allocations.of_container(&pod, container(&pod)).into_iter().map(|c| &c.name);
    assert_eq!(names.collect::<Vec<_>>(), ["claim"]);
}

#[test]
fn takes_extended_resources_from_the_schedulers_claim() {
    let allocations = ready(&["pod-1"]);
    let status = json!({"extendedResourceClaimStatus": {"resourceClaimName": "claim",
        "requestMappings": [
            {"containerName": "c", "resourceName": "example.com/gpu", "requestName": "two"},
            {"containerName": "c", "resourceName": "example.com/fpga", "requestName": "one"},
            {"containerName": "other", "resourceName": "example.com/gpu", "requestName": "one"}]}});
    let asks = json!({"example.com/gpu": "1", "example.com/fpga": "0"});
    let asks = json!({"name": "c", "resources": {"requests": asks}});
    let pod = pod(json!([]), status, asks);
    assert_eq!(references(&pod).unwrap()[0].name, "claim");
    assert_eq!(allocations.cdi(&pod, container(&pod)).unwrap(), ["e/x=b", "d/x=all"]);
    assert_eq!(allocations.of_container(&pod, container(&pod)).len(), 1);
}

#[test]
fn prepares_claim_once_and_unprepares_it_after_the_last_pod() {
    let mut allocations = ready(&["pod-1"]);
    let claim = allocations.claims().next().unwrap().clone();
    assert_eq!(allocations.add_pod("pod-2", vec![claim.clone()]).unwrap(), []);
    let again = Claim { uid: "claim-2".to_owned(), ..claim.clone() };
    let error = allocations.add_pod("pod-3", vec![again]).unwrap_err().to_string();
    assert!(error.starts_with("old ResourceClaim with same name claim and different UID claim-1"));
    assert_eq!(allocations.used_by("pod-3"), []);
    assert_eq!(allocations.remove_pod("pod-1"), []);
    let last = allocations.remove_pod("pod-2");
    assert_eq!(last.iter().map(|claim| &*claim.uid).collect::<Vec<_>>(), ["claim-1"]);
    // The claim stays with the Pod until the drivers have unprepared it, and does not count as prepared for the next
    // Pod.
    assert_eq!(allocations.used_by("pod-2"), [key()]);
    assert_eq!(allocations.add_pod("pod-4", vec![claim]).unwrap().len(), 1);
    allocations.set_prepared(&key());
    let more = [("f.example.com".to_owned(), Vec::new())].into();
    let anew = Claim {
        uid: "claim-1".to_owned(),
        drivers: more,
        ..allocations.claims().next().unwrap().clone()
    };
    let lacking = allocations.add_pod("pod-5", vec![anew]).unwrap();
    assert_eq!(lacking[0].drivers.len(), 3, "another driver has part in it now");
    allocations.remove(&key());
    assert_eq!(allocations, Allocations::default());
}

/// Replaces a part of a checkpoint's data and corrects the checksum.
fn changed_data(checkpoint: &[u8], from: &str, to: &str) -> Vec<u8> {
    let mut file: Value = serde_json::from_slice(checkpoint).unwrap();
    let data = file["Data"].as_str().unwrap().replacen(from, to, 1);
    file["Checksum"] = crc32fast::hash(data.as_bytes()).into();
    file["Data"] = data.into();
    serde_json::to_vec(&file).unwrap()
}

#[test]
fn matches_upstream_checkpoint_and_rejects_a_damaged_one() {
    // A checkpoint of upstream's kubelet.
    let theirs = br#"{"Data":"{\"kind\":\"DRACheckpoint\",\"apiVersion\":\"checkpoint.dra.kubelet.k8s.io/v1\",\"ClaimInfoStateList\":[{\"ClaimUID\":\"067798be-454e-4be4-9047-1aa06aea63f7\",\"ClaimName\":\"example\",\"Namespace\":\"default\",\"PodUIDs\":{\"139cdb46-f989-4f17-9561-ca10cfb509a6\":{}},\"DriverState\":{\"test-driver.cdi.k8s.io\":{\"Devices\":[{\"PoolName\":\"worker-1\",\"DeviceName\":\"dev-1\",\"ShareID\":null,\"RequestNames\":[\"test request\"],\"CDIDeviceIDs\":[\"example.com/example=cdi-example\"]}]}}}]}","Checksum":2570581864}"#;
    let allocations = Allocations::restore(theirs).unwrap();
    assert_eq!(allocations.checkpoint(), theirs);
    assert!(!allocations.claims().next().unwrap().prepared);
    let text = String::from_utf8_lossy(theirs);
    let damaged = text.replace("worker-1", "worker-2");
    assert!(matches!(
        Allocations::restore(damaged.as_bytes()),
        Err(CheckpointError::Checksum(ChecksumError { stated: 2_570_581_864, .. }))
    ));
    assert!(matches!(Allocations::restore(b"{\"Data\":1}"), Err(CheckpointError::Syntax(_))));
    let newer = changed_data(theirs, ".k8s.io/v1", ".k8s.io/v2");
    let refused = Allocations::restore(&newer).unwrap_err().to_string();
    assert!(refused.contains("DRACheckpoint of checkpoint.dra.kubelet.k8s.io/v2,"), "{refused}");
    let none = Allocations::default().checkpoint();
    assert_eq!(Allocations::restore(&none).unwrap(), Allocations::default());
    let mut own = ready(&["pod-1"]);
    let restored = Allocations::restore(&own.checkpoint()).unwrap();
    own.remove_pod("pod-1");
    assert_eq!(restored, own);
}
