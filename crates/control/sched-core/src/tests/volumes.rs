use super::*;
use crate::{ClaimBinding, PersistentVolumeView, Progress, StorageClassView, VolumeClaimView};

fn class(core: &mut Core, name: &str, more: Value) {
    let mut view = json!({"provisioner": "test/p", "volumeBindingMode": "WaitForFirstConsumer"});
    merge(&mut view, more);
    let view: StorageClassView = serde_json::from_value(view).unwrap();
    core.set_class(name, Some(&view), 0);
}

fn claim(core: &mut Core, name: &str, more: Value) {
    let mut view = json!({"metadata": {"uid": name}, "spec": {"storageClassName": "late",
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    merge(&mut view, more);
    let view: VolumeClaimView = serde_json::from_value(view).unwrap();
    core.set_claim(&"default".into(), name, Some(&view), 0);
}

fn volume(core: &mut Core, name: &str, node: &str, more: Value) {
    let on = json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [
        {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}]}});
    let mut view = json!({"spec": {"storageClassName": "late", "accessModes": ["ReadWriteOnce"],
        "capacity": {"storage": "2Gi"}, "nodeAffinity": on}, "status": {"phase": "Available"}});
    merge(&mut view, more);
    let view: PersistentVolumeView = serde_json::from_value(view).unwrap();
    core.set_volume(name, Some(&view), 0);
}

fn user(name: &str, claims: &[&str]) -> Arc<Pod> {
    let volumes =
        claims.iter().map(|c| json!({"name": c, "persistentVolumeClaim": {"claimName": c}}));
    pod(name, "1", json!({"spec": {"volumes": volumes.collect::<Vec<_>>()}}))
}

/// Returns the node and the volumes of the claims, or the failure message.
fn decided(core: &mut Core, pod: Arc<Pod>) -> (String, Vec<ClaimBinding>) {
    core.set_pod(pod, 0);
    match core.next(0) {
        Some(Decision::Bind { node, claims, .. }) => (node.to_string(), claims),
        Some(Decision::Unschedulable(failure)) => (failure.message, Vec::new()),
        other => panic!("decided {other:?}"),
    }
}

fn two_nodes() -> Core {
    core([node("a", "8", json!({})), node("b", "8", json!({}))])
}

fn binding(claim: &str, volume: Option<&str>) -> ClaimBinding {
    ClaimBinding { claim: claim.into(), uid: claim.into(), volume: volume.map(Into::into) }
}

#[test]
fn reports_claims_that_block_every_node() {
    let bound = json!({"metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
        "spec": {"volumeName": "gone"}});
    let deleted = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    for (more, words) in [
        (
            json!({"spec": {"storageClassName": ""}}),
            "pod has unbound immediate PersistentVolumeClaims",
        ),
        // The claim names a volume but is not bound: the binder may find that it is reserved for another claim.
        (json!({"spec": {"volumeName": "v"}}), "pod has unbound immediate PersistentVolumeClaims"),
        (bound, "bound to non-existent persistentvolume \"gone\""),
        (deleted, "persistentvolumeclaim \"c\" is being deleted"),
        (json!({"status": {"phase": "Lost"}}), "bound to non-existent persistentvolume"),
    ] {
        let mut core = two_nodes();
        class(&mut core, "late", json!({}));
        claim(&mut core, "c", more.clone());
        let (message, _) = decided(&mut core, user("p", &["c"]));
        assert!(message.contains(words), "{more}: {message}");
    }
    let (message, _) = decided(&mut two_nodes(), user("p", &["c"]));
    assert!(message.contains("persistentvolumeclaim \"c\" not found"), "{message}");
}

#[test]
fn schedules_waiting_claim_to_node_with_volume() {
    let mut core = two_nodes();
    class(&mut core, "late", json!({"provisioner": "kubernetes.io/no-provisioner"}));
    class(
        &mut core,
        "made",
        json!({"allowedTopologies": [{"matchLabelExpressions": [
        {"key": "kubernetes.io/hostname", "values": ["a"]}]}]}),
    );
    for name in ["c", "d", "e"] {
        claim(&mut core, name, json!({}));
    }
    let none = "node(s) didn't find available persistent volumes to bind";
    let (message, _) = decided(&mut core, user("early", &["c"]));
    assert!(message.contains(none), "{message}");
    volume(&mut core, "large", "b", json!({"spec": {"capacity": {"storage": "9Gi"}}}));
    volume(&mut core, "small", "b", json!({"spec": {"capacity": {"storage": "1Mi"}}}));
    volume(&mut core, "fits", "b", json!({}));
    volume(
        &mut core,
        "theirs",
        "b",
        json!({"spec": {"claimRef": {"namespace": "else", "name": "c"}}}),
    );
    let (node, claims) = decided(&mut core, user("first", &["c", "d"]));
    let two = vec![binding("c", Some("fits")), binding("d", Some("large"))];
    assert_eq!((node.as_str(), &claims), ("b", &two));
    // Both volumes are reserved, and none is left for a third claim until they are released.
    let (message, _) = decided(&mut core, user("second", &["e"]));
    assert!(message.contains(none), "{message}");
    core.bind_failed(&user("first", &[]).id, 0);
    core.remove_pod("first", 0);
    assert_eq!(decided(&mut core, user("third", &["e"])).1, [binding("e", Some("fits"))]);
    claim(&mut core, "m", json!({"spec": {"storageClassName": "made"}}));
    let (node, claims) = decided(&mut core, user("maker", &["m"]));
    assert_eq!((node.as_str(), claims), ("a", vec![binding("m", None)]));
}

#[test]
fn keeps_selected_node_until_provisioner_rejects_it() {
    let mut core = two_nodes();
    class(&mut core, "late", json!({}));
    let chosen = json!({"metadata": {"annotations": {"volume.kubernetes.io/selected-node": "b"}}});
    claim(&mut core, "c", chosen);
    let waiting = user("p", &["c"]);
    let (node, claims) = decided(&mut core, waiting.clone());
    assert_eq!(node, "b");
    assert_eq!(core.volume_progress(&waiting, &claims), Progress::Waiting);
    assert!(!core.is_node_rejected(&waiting, &claims));
    claim(&mut core, "c", json!({}));
    assert!(core.is_node_rejected(&waiting, &claims));
    let bound = json!({"metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
        "spec": {"volumeName": "v"}});
    claim(&mut core, "c", bound);
    assert_eq!(
        core.volume_progress(&waiting, &claims),
        Progress::Waiting,
        "the volume is not seen yet"
    );
    volume(&mut core, "v", "b", json!({}));
    assert_eq!(core.volume_progress(&waiting, &claims), Progress::Bound);
    claim(&mut core, "c", json!({"metadata": {"uid": "successor"}}));
    assert!(matches!(core.volume_progress(&waiting, &claims), Progress::Refused(_)));
    core.remove_pod("p", 0);
    assert!(matches!(core.volume_progress(&waiting, &claims), Progress::Refused(_)));
}

#[test]
fn bound_volumes_limit_nodes_and_zones() {
    let zone = |zone: &str| json!({"metadata": {"labels": {"topology.kubernetes.io/zone": zone}}});
    let bound = json!({"metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
        "spec": {"volumeName": "v"}});
    let mut core = core([node("a", "8", zone("x")), node("b", "8", zone("y"))]);
    claim(&mut core, "c", bound);
    volume(&mut core, "v", "b", json!({}));
    assert_eq!(decided(&mut core, user("p", &["c"])).0, "b");
    let mut zoned = zone("z__x");
    merge(&mut zoned, json!({"spec": {"nodeAffinity": null}}));
    volume(&mut core, "v", "b", zoned);
    assert_eq!(decided(&mut core, user("q", &["c"])).0, "a");
    volume(&mut core, "v", "a", zone("y"));
    let (message, _) = decided(&mut core, user("r", &["c"]));
    assert!(message.contains("node(s) had no available volume zone"), "{message}");
    assert!(message.contains("node(s) didn't match PersistentVolume's node affinity"), "{message}");
}

#[test]
fn enforces_volume_limits_of_drivers() {
    let mut core = two_nodes();
    class(&mut core, "late", json!({"provisioner": "disks"}));
    for (node, count) in [("a", 1), ("b", 2)] {
        let drivers = json!([{"name": "disks", "allocatable": {"count": count}}, {"name": "free"}]);
        let view = serde_json::from_value(json!({"spec": {"drivers": drivers}})).unwrap();
        core.set_csi_node(node, Some(&view), 0);
    }
    let bound = |name: &str| {
        json!({"metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
            "spec": {"volumeName": name}})
    };
    for name in ["one", "two", "three", "four"] {
        claim(&mut core, name, bound(name));
        let disk = json!({"spec": {"nodeAffinity": null,
            "csi": {"driver": "disks", "volumeHandle": name}}});
        volume(&mut core, name, "a", disk);
    }
    claim(&mut core, "new", json!({}));
    let mut nodes: Vec<String> = ["one", "two", "three"]
        .iter()
        .map(|name| decided(&mut core, user(&format!("of-{name}"), &[name])).0)
        .collect();
    let first = nodes[0].clone();
    nodes.sort();
    assert_eq!(nodes, ["a", "b", "b"]);
    let words = "0/2 nodes are available: 2 node(s) exceed max volume count.";
    assert!(decided(&mut core, user("fourth", &["four"])).0.starts_with(words));
    // A volume to be provisioned counts too, and one that the node already has counts once.
    assert!(decided(&mut core, user("fifth", &["new"])).0.starts_with(words));
    assert_eq!(decided(&mut core, user("second", &["one"])).0, first);
    core.set_csi_node("a", None, 0);
    assert_eq!(decided(&mut core, user("sixth", &["four"])).0, "a");
}

#[test]
fn provisions_where_driver_has_capacity() {
    let mut core = two_nodes();
    class(&mut core, "late", json!({"provisioner": "disks"}));
    claim(&mut core, "small", json!({}));
    claim(&mut core, "big", json!({"spec": {"resources": {"requests": {"storage": "5Gi"}}}}));
    let telling = serde_json::from_value(json!({"spec": {"storageCapacity": true}})).unwrap();
    core.set_csi_driver("disks", Some(&telling), 0);
    let words = "0/2 nodes are available: 2 node(s) did not have enough free storage.";
    let refused = |core: &mut Core, name: &str, claim: &str| {
        let (told, _) = decided(core, user(name, &[claim]));
        assert!(told.starts_with(words), "{told}");
    };
    refused(&mut core, "one", "small");
    let room = |class: &str, node: &str, amounts: Value| {
        let mut view = json!({"storageClassName": class,
            "nodeTopology": {"matchLabels": {"kubernetes.io/hostname": node}}});
        merge(&mut view, amounts);
        serde_json::from_value(view).unwrap()
    };
    core.set_capacity(
        &"ns".into(),
        "other",
        Some(&room("other", "a", json!({"capacity": "9Gi"}))),
        0,
    );
    refused(&mut core, "two", "small");
    let bounded = json!({"capacity": "9Gi", "maximumVolumeSize": "4Gi"});
    core.set_capacity(&"ns".into(), "late", Some(&room("late", "b", bounded)), 0);
    refused(&mut core, "three", "big");
    assert_eq!(decided(&mut core, user("four", &["small"])).0, "b");
}
