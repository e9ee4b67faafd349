//! Tests the binder's plans with tables, and in a simulation with stale informers and a stop between any two writes.

use std::collections::BTreeMap;

use rand::{Rng as _, SeedableRng as _, rngs::StdRng, seq::IndexedRandom as _};

use super::{
    plan::{BIND_COMPLETED, BOUND_BY_CONTROLLER, PROVISIONED_BY, SELECTED_NODE},
    *,
};

fn claim(name: &str, spec: Value) -> Value {
    json!({"metadata": {"name": name, "namespace": "ns", "uid": format!("uid-{name}"), "resourceVersion": "1"},
        "spec": spec, "status": {"phase": "Pending"}})
}

fn volume(name: &str, size: &str, spec: Value) -> Value {
    let mut own = json!({"capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"],
        "persistentVolumeReclaimPolicy": "Retain"});
    own = merged(&own, &spec);
    json!({"metadata": {"name": name, "resourceVersion": "1"}, "spec": own, "status": {"phase": "Available"}})
}

fn wants(size: &str, more: Value) -> Value {
    let own =
        json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}});
    merged(&own, &more)
}

fn read<T: serde::de::DeserializeOwned>(object: &Value) -> T {
    serde_json::from_value(object.clone()).unwrap()
}

fn class(name: &str, more: Value) -> Arc<StorageClass> {
    Arc::new(read(&merged(&json!({"metadata": {"name": name}, "provisioner": "test/p"}), &more)))
}

fn planned(claim: &Value, volumes: &[Value], classes: &[Arc<StorageClass>]) -> Plan {
    let volumes: Vec<_> = volumes.iter().map(|volume| Arc::new(read(volume))).collect();
    plan_claim(
        &read(claim),
        &Surroundings { volumes: &volumes, classes, waiting: &[], provisions: true },
    )
}

/// The volume that a claim gets, or the Event that explains why it gets none.
fn outcome(claim: &Value, volumes: &[Value], classes: &[Arc<StorageClass>]) -> String {
    let plan = planned(claim, volumes, classes);
    match (plan.write.map(|write| write.target), plan.event) {
        (_, Some(event)) => format!("{}: {}", event.reason, event.message),
        (Some(Target::Volume(name)), _) => name,
        (Some(Target::Claim), _) => "claim".to_owned(),
        (None, None) => String::new(),
    }
}

#[test]
fn binds_smallest_matching_volume() {
    let none =
        "FailedBinding: no persistent volumes available for this claim and no storage class is set";
    let fits = |spec: Value, volumes: &[Value]| outcome(&claim("c", spec), volumes, &[]);
    let three = [
        volume("large", "10Gi", json!({})),
        volume("fits", "2Gi", json!({})),
        volume("small", "1Gi", json!({})),
    ];
    assert_eq!(fits(wants("2G", json!({})), &three), "fits");
    assert_eq!(fits(wants("3Gi", json!({})), &three), "large");
    assert_eq!(fits(wants("20Gi", json!({})), &three), none);
    for (of_claim, of_volume, binds) in [
        (json!({}), json!({"volumeMode": "Filesystem"}), true),
        (json!({"volumeMode": "Block"}), json!({}), false),
        (json!({"volumeMode": "Block"}), json!({"volumeMode": "Block"}), true),
        (json!({"accessModes": ["ReadWriteOncePod"]}), json!({}), false),
        (
            json!({"accessModes": ["ReadWriteOncePod"]}),
            json!({"accessModes": ["ReadWriteMany", "ReadWriteOncePod"]}),
            true,
        ),
        (json!({"storageClassName": "a"}), json!({"storageClassName": "b"}), false),
        (json!({"storageClassName": ""}), json!({}), true),
        (json!({}), json!({"storageClassName": "b"}), false),
        (json!({"volumeAttributesClassName": "gold"}), json!({}), false),
        (json!({"selector": {"matchLabels": {"a": "b"}}}), json!({}), false),
        (json!({}), json!({"claimRef": {"namespace": "ns", "name": "other"}}), false),
        // A claim of the same name in another namespace or with another uid is a different claim.
        (json!({}), json!({"claimRef": {"namespace": "else", "name": "c"}}), false),
        (json!({}), json!({"claimRef": {"namespace": "ns", "name": "c", "uid": "former"}}), false),
        (json!({}), json!({"claimRef": {"namespace": "ns", "name": "c"}}), true),
    ] {
        let got = fits(wants("1Gi", of_claim.clone()), &[volume("v", "1Gi", of_volume.clone())]);
        assert_eq!(got == "v", binds, "{of_claim} {of_volume}: {got}");
    }
    let kept = volume("kept", "9Gi", json!({"claimRef": {"namespace": "ns", "name": "c"}}));
    assert_eq!(fits(wants("1Gi", json!({})), &[three[1].clone(), kept]), "kept");
    let mut labelled = volume("v", "1Gi", json!({}));
    labelled["metadata"]["labels"] = json!({"a": "b"});
    let chosen = wants("1Gi", json!({"selector": {"matchLabels": {"a": "b"}}}));
    assert_eq!(fits(chosen, &[labelled.clone()]), "v");
    for (field, value) in [("phase", "Released"), ("phase", "Failed")] {
        labelled["status"][field] = json!(value);
        assert_eq!(fits(wants("1Gi", json!({})), &[labelled.clone()]), none);
    }
}

#[test]
fn binds_named_volume_or_records_event() {
    let named = claim("c", wants("1Gi", json!({"volumeName": "v"})));
    let said = |volume: Value| outcome(&named, &[volume], &[]);
    assert_eq!(said(volume("v", "1Gi", json!({}))), "v");
    assert_eq!(said(volume("other", "1Gi", json!({}))), "");
    let small = "VolumeMismatch: Cannot bind to requested volume \"v\": requested PV is too small";
    assert_eq!(said(volume("v", "1Mi", json!({}))), small);
    // A volume of another claim is never given away by name, in particular across namespaces.
    let theirs = json!({"claimRef": {"namespace": "else", "name": "c", "uid": "x"}});
    let taken = "FailedBinding: volume \"v\" already bound to a different claim.";
    assert_eq!(said(volume("v", "1Gi", theirs)), taken);
}

#[test]
fn class_decides_provisioner_and_binding_time() {
    let waits = class("late", json!({"volumeBindingMode": "WaitForFirstConsumer"}));
    let hand = class("hand", json!({"provisioner": "kubernetes.io/no-provisioner"}));
    let older = class(
        "old",
        json!({"metadata": {"creationTimestamp": "2020-01-01T00:00:00Z",
        "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}}),
    );
    let default = class(
        "now",
        json!({"metadata": {"creationTimestamp": "2021-01-01T00:00:00Z",
        "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}}),
    );
    let classes = [waits, hand, older, default];
    let of = |name: &str| claim("c", wants("1Gi", json!({"storageClassName": name})));
    let free = volume("v", "1Gi", json!({"storageClassName": "late"}));
    let waiting = "WaitForFirstConsumer: waiting for first consumer to be created before binding";
    assert_eq!(outcome(&of("late"), std::slice::from_ref(&free), &classes), waiting);
    let kept = volume(
        "v",
        "1Gi",
        json!({"storageClassName": "late", "claimRef": {"namespace": "ns", "name": "c"}}),
    );
    assert_eq!(outcome(&of("late"), &[kept], &classes), "v", "the scheduler chose it");
    let mut scheduled = of("late");
    scheduled["metadata"]["annotations"] = json!({SELECTED_NODE: "n"});
    let write = planned(&scheduled, &[], &classes).write.unwrap();
    let annotations = &write.change["metadata"]["annotations"];
    assert_eq!(annotations["volume.kubernetes.io/storage-provisioner"], "test/p");
    assert_eq!(annotations["volume.beta.kubernetes.io/storage-provisioner"], "test/p");
    let around = Surroundings { volumes: &[], classes: &classes, waiting: &[], provisions: false };
    let without = plan_claim(&read(&scheduled), &around);
    assert!(without.event.is_none() && without.write.is_none_or(|w| w.subresource == "status"));
    let told = merged(&scheduled, &write.change);
    assert!(
        outcome(&told, &[], &classes).starts_with("ExternalProvisioning: Waiting for a volume")
    );
    assert!(
        outcome(&of("hand"), &[], &classes).starts_with("ProvisioningFailed: no volume plugin")
    );
    let missing = "ProvisioningFailed: storageclass.storage.k8s.io \"none\" not found";
    assert_eq!(outcome(&of("none"), &[], &classes), missing);
    // A claim created before the default class gets it; a claim without a class does not.
    let change = planned(&claim("c", wants("1Gi", json!({}))), &[], &classes).write.unwrap().change;
    assert_eq!(change, json!({"spec": {"storageClassName": "now"}}));
    assert!(outcome(&of(""), &[], &classes).starts_with("FailedBinding"));
}

#[test]
fn marks_claim_lost_without_volume() {
    let mut bound = claim("c", wants("1Gi", json!({"volumeName": "v"})));
    bound["metadata"]["annotations"] = json!({BIND_COMPLETED: "yes"});
    bound["status"]["phase"] = json!("Bound");
    let free = volume("other", "1Gi", json!({}));
    assert!(
        outcome(&bound, std::slice::from_ref(&free), &[]).starts_with("ClaimLost: Bound claim")
    );
    let theirs =
        volume("v", "1Gi", json!({"claimRef": {"namespace": "ns", "name": "d", "uid": "x"}}));
    assert!(outcome(&bound, &[theirs], &[]).starts_with("ClaimMisbound: Two claims"));
    bound["status"]["phase"] = json!("Lost");
    assert_eq!(planned(&bound, &[free], &[]), Plan::default(), "reported once");
}

#[test]
fn releases_volume_without_claim() {
    let reference = json!({"namespace": "ns", "name": "c", "uid": "uid-c"});
    let next = |policy: &str, phase: &str, more: Value| {
        let spec = json!({"claimRef": reference, "persistentVolumeReclaimPolicy": policy});
        let mut volume = merged(&volume("v", "1Gi", spec), &more);
        volume["status"]["phase"] = json!(phase);
        let plan = plan_volume(&read(&volume), None);
        let change = plan.write.map(|write| write.change).unwrap_or_default();
        let said = plan.event.map(|said| said.reason).unwrap_or_default();
        (change["status"]["phase"].as_str().unwrap_or_default().to_owned(), said)
    };
    let made = json!({"metadata": {"annotations": {PROVISIONED_BY: "test/p"}}});
    for (policy, phase, more, wanted) in [
        ("Retain", "Bound", json!({}), ("Released", "")),
        ("Retain", "Released", json!({}), ("", "")),
        ("Delete", "Bound", json!({}), ("Released", "")),
        ("Delete", "Released", made, ("", "")),
        ("Delete", "Released", json!({}), ("Failed", "VolumeFailedDelete")),
        ("Recycle", "Released", json!({}), ("Failed", "VolumeFailedRecycle")),
        ("Recycle", "Failed", json!({}), ("", "")),
    ] {
        assert_eq!(next(policy, phase, more), (wanted.0.to_owned(), wanted.1), "{policy} {phase}");
    }
}

/// Objects in the API and in an informer that may lag behind.
#[derive(Default)]
struct World {
    objects: BTreeMap<String, Value>,
    seen: BTreeMap<String, Value>,
    version: u64,
    /// Bound volumes with `Retain`, and the uids of their claims.
    held: BTreeMap<String, String>,
}

impl World {
    fn put(&mut self, key: &str, mut object: Value) {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.objects.insert(key.to_owned(), object);
        self.check();
    }

    /// Delivers one object, or its deletion, to the informer.
    fn deliver(&mut self, key: &str) {
        match self.objects.get(key) {
            Some(object) => drop(self.seen.insert(key.to_owned(), object.clone())),
            None => drop(self.seen.remove(key)),
        }
    }

    fn write(&mut self, key: &str, seen: &Value, change: &Value) -> bool {
        let Some(now) = self.objects.get(key) else { return false };
        let fresh = now["metadata"]["resourceVersion"] == seen["metadata"]["resourceVersion"];
        if fresh {
            self.put(key, merged(now, change));
        }
        fresh
    }

    fn volumes(&self) -> Vec<Arc<PersistentVolume>> {
        let all = self.seen.iter().filter(|(key, _)| !is_claim(key));
        all.map(|(_, volume)| Arc::new(read(volume))).collect()
    }

    /// Reconciles one key and stops after one write, as if the process had died.
    fn reconcile(&mut self, key: &str) -> bool {
        let Some(seen) = self.seen.get(key).cloned() else { return false };
        let (plan, other) = if is_claim(key) {
            let around = Surroundings {
                volumes: &self.volumes(),
                classes: &[],
                waiting: &[],
                provisions: true,
            };
            (plan_claim(&read(&seen), &around), String::new())
        } else {
            let volume: PersistentVolume = read(&seen);
            let of = volume.spec.claim_ref.as_ref().map(|own| own.key()).unwrap_or_default();
            // The reconciler reads the API before a claim counts as deleted.
            let claim = self.objects.get(&of).map(read::<VolumeClaim>);
            (plan_volume(&volume, claim.as_ref()), of)
        };
        let Some(write) = plan.write else { return false };
        let at = match write.target {
            Target::Volume(name) => name,
            Target::Claim if is_claim(key) => key.to_owned(),
            Target::Claim => other,
        };
        let seen = self.seen.get(&at).cloned().unwrap_or_default();
        self.write(&at, &seen, &write.change)
    }

    /// Asserts that no volume is bound twice and that a retained volume never changes its claim.
    fn check(&mut self) {
        let mut users: BTreeMap<&str, &str> = BTreeMap::new();
        for (key, claim) in self.objects.iter().filter(|(key, _)| is_claim(key)) {
            if claim["status"]["phase"] != "Bound" {
                continue;
            }
            let name = claim["spec"]["volumeName"].as_str().unwrap_or_default();
            assert_eq!(users.insert(name, key), None, "{name} is bound twice");
            let volume = &self.objects[name];
            assert_eq!(volume["spec"]["claimRef"]["uid"], claim["metadata"]["uid"], "{key} {name}");
        }
        for (name, volume) in self.objects.iter().filter(|(key, _)| !is_claim(key)) {
            let uid = volume["spec"]["claimRef"]["uid"].as_str();
            if let Some(holder) = self.held.get(name) {
                assert_eq!(uid, Some(holder.as_str()), "{name} went from one claim to another");
            }
            if let (Some(uid), Some(_)) = (uid, users.get(name.as_str())) {
                self.held.insert(name.clone(), uid.to_owned());
            }
        }
    }
}

#[test]
fn never_binds_twice_with_stale_reads_and_crashes() {
    for seed in 0..100 {
        let mut random = StdRng::seed_from_u64(seed);
        let mut world = World::default();
        let mut made = 0;
        for _ in 0..120 {
            let keys: Vec<String> = world.objects.keys().cloned().collect();
            match random.random_range(0..10) {
                0 => {
                    made += 1;
                    let size = format!("{}Gi", random.random_range(1..4));
                    // Some are reserved for a claim that may come, some for one of another namespace.
                    let spec = match random.random_range(0..6) {
                        0 => {
                            json!({"claimRef": {"namespace": "ns", "name": format!("c{}", made + 1)}})
                        }
                        1 => json!({"claimRef": {"namespace": "else", "name": format!("c{made}")}}),
                        _ => json!({}),
                    };
                    world.put(&format!("v{made}"), volume(&format!("v{made}"), &size, spec));
                }
                1 => {
                    made += 1;
                    let size = format!("{}Gi", random.random_range(1..4));
                    let named = random.random_range(0..made);
                    let more = match random.random_range(0..4) {
                        0 => json!({"volumeName": format!("v{named}")}),
                        _ => json!({}),
                    };
                    let name = format!("c{made}");
                    world.put(&format!("ns/{name}"), claim(&name, wants(&size, more)));
                }
                2 => {
                    let claims: Vec<_> = keys.iter().filter(|key| is_claim(key)).collect();
                    if let Some(key) = claims.choose(&mut random).filter(|_| random.random()) {
                        world.objects.remove(*key);
                    }
                }
                3..6 => {
                    if let Some(key) = keys.choose(&mut random) {
                        world.deliver(key);
                    }
                }
                _ => {
                    if let Some(key) = keys.choose(&mut random) {
                        world.reconcile(key);
                    }
                }
            }
        }
        settle(&mut world, seed);
    }
}

/// Lets the informer catch up and reconciles every key until no write is left.
fn settle(world: &mut World, seed: u64) {
    let mut rounds = 0;
    loop {
        let keys: Vec<String> = world.objects.keys().chain(world.seen.keys()).cloned().collect();
        keys.iter().for_each(|key| world.deliver(key));
        let mut wrote = false;
        for key in &keys {
            wrote |= world.reconcile(key);
        }
        if !wrote {
            break;
        }
        rounds += 1;
        assert!(rounds < 100, "seed {seed}: the controller writes for ever");
    }
    let volumes = world.volumes();
    for (key, object) in world.objects.iter().filter(|(key, _)| is_claim(key)) {
        let claim: VolumeClaim = read(object);
        if claim.status.phase == "Pending" && claim.spec.volume_name.is_empty() {
            let left = matching::best(&claim, &volumes, false).map(|v| &v.metadata.name);
            assert_eq!(left, None, "seed {seed}: {key} could have it");
        }
    }
    for volume in volumes.iter().filter(|volume| volume.annotated(BOUND_BY_CONTROLLER)) {
        let phase = volume.status.phase.as_str();
        assert!(matches!(phase, "Bound" | "Released"), "seed {seed}: {volume:?}");
    }
}
