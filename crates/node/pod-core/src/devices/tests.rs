use k8s_openapi::api::core::v1::Pod;
use proptest::prelude::*;
use serde_json::json;

use super::{checkpoint::CheckpointError, choice::Choice, *};
use crate::{
    ChecksumError,
    topology::{Hint, Hints, Mask},
};

const R: &str = "example.com/fpga";

fn pod(uid: &str, init: &[(&str, usize, bool)], apps: &[(&str, usize)]) -> Pod {
    let container = |name: &str, n: usize, sidecar: bool| {
        let limits = json!({"limits": {R: n.to_string()}});
        let policy = sidecar.then_some("Always");
        json!({"name": name, "resources": limits, "restartPolicy": policy})
    };
    let init: Vec<_> = init.iter().map(|(name, n, s)| container(name, *n, *s)).collect();
    let apps: Vec<_> = apps.iter().map(|(name, n)| container(name, *n, false)).collect();
    let pod = json!({"metadata": {"uid": uid, "name": uid},
        "spec": {"initContainers": init, "containers": apps}});
    serde_json::from_value(pod).unwrap()
}

fn devices(of: &[(&str, bool, &[i64])]) -> Devices {
    let device = |(id, healthy, nodes): &(&str, bool, &[i64])| {
        let nodes = nodes.iter().copied().collect();
        ((*id).to_owned(), Device { healthy: *healthy, nodes })
    };
    of.iter().map(device).collect()
}

fn allocations(of: &[(&str, bool, &[i64])]) -> Allocations {
    let mut allocations = Allocations::default();
    allocations.connect(R).unwrap();
    allocations.list(R, devices(of));
    allocations
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// Allocates the chosen devices, without a plugin's preference.
fn allot(
    allocations: &mut Allocations,
    pod: &Pod,
    name: &str,
    count: usize,
) -> Result<Vec<String>, DeviceError> {
    let uid = pod.metadata.uid.clone().unwrap();
    if let Choice::New(ids, _) = allocations.choose(pod, name, R, count, None)? {
        allocations.allocate((&uid, name), R, &ids, vec![1]);
    }
    let allocated = &allocations.of_container((&uid, name)).unwrap()[R];
    Ok(allocated.ids().into_iter().map(str::to_owned).collect())
}

#[test]
fn gives_device_to_one_holder_and_reports_shortage() {
    let mut allocations = allocations(&[("a", true, &[]), ("b", true, &[]), ("c", false, &[])]);
    let (one, two) = (pod("one", &[], &[("x", 1)]), pod("two", &[], &[("x", 2)]));
    assert_eq!(allot(&mut allocations, &one, "x", 1).unwrap(), ["a"]);
    let error = allot(&mut allocations, &two, "x", 2).unwrap_err().to_string();
    assert_eq!(
        error,
        "requested number of devices unavailable for example.com/fpga. Requested: 2, Available: 1"
    );
    assert_eq!(
        allocations.choose(&one, "x", R, 1, None),
        Ok(Choice::Existing),
        "it keeps what it has"
    );
    let error = allocations.choose(&one, "x", R, 2, None).unwrap_err().to_string();
    assert!(error.contains("container \"x\" changed request"), "{error}");
    assert!(allocations.release("one") && !allocations.release("one"));
    assert_eq!(allot(&mut allocations, &two, "x", 2).unwrap(), ["a", "b"]);
}

#[test]
fn allocates_only_devices_listed_as_healthy() {
    let mut allocations = allocations(&[("a", false, &[])]);
    let pod = pod("one", &[], &[("x", 1)]);
    let refused =
        |allocations: &Allocations| allocations.choose(&pod, "x", R, 1, None).unwrap_err();
    assert_eq!(refused(&allocations), DeviceError::Unhealthy(R.to_owned()));
    allocations.list(R, devices(&[("a", true, &[])]));
    allocations.disconnect(R, at(10));
    assert_eq!(refused(&allocations), DeviceError::Unhealthy(R.to_owned()));
    // The plugin has reconnected and has not listed its devices yet.
    allocations.connect(R).unwrap();
    assert_eq!(refused(&allocations), DeviceError::Unhealthy(R.to_owned()));
    allocations.disconnect(R, at(10));
    assert!(!allocations.count(at(310)).1 && allocations.count(at(311)).1);
    assert_eq!(refused(&allocations), DeviceError::Unregistered(R.to_owned()));
    assert_eq!(Allocations::default().requests(&pod.spec.unwrap().containers[0]), BTreeMap::new());
}

#[test]
fn counts_unhealthy_devices_and_disconnected_plugins() {
    let mut allocations = allocations(&[("a", true, &[]), ("b", false, &[])]);
    let count =
        |allocations: &mut Allocations, second| allocations.count(at(second)).0.get(R).copied();
    let counted = |capacity, allocatable| Some(Count { capacity, allocatable });
    assert_eq!(count(&mut allocations, 0), counted(2, 1));
    allocations.disconnect(R, at(0));
    assert_eq!(count(&mut allocations, 300), counted(2, 0));
    assert_eq!(count(&mut allocations, 301), counted(0, 0), "it is both_hints that there are none");
    // After a restart the plugin has the same time to reconnect.
    let mut allocations =
        Allocations::restore(&self::allocations(&[("a", true, &[])]).checkpoint(), at(50)).unwrap();
    assert_eq!(count(&mut allocations, 350), counted(0, 0));
    assert!(allocations.count(at(351)).1);
}

#[test]
fn validates_names_and_number_of_resources() {
    for wrong in [
        "",
        "cpu",
        "/",
        "a/",
        "example.com/a/b",
        "kubernetes.io/x",
        "x.kubernetes.io/x",
        "requests.a/b",
        "a/b c",
    ] {
        assert!(!is_resource_name(wrong), "{wrong}");
    }
    assert!(is_resource_name(R) && !is_resource_name(&format!("a/{}", "b".repeat(64))));
    let mut allocations = Allocations::default();
    for n in 0..MAX_RESOURCES {
        allocations.connect(&format!("example.com/{n}")).unwrap();
    }
    assert_eq!(allocations.connect(R), Err(DeviceError::TooMany(R.to_owned())));
    allocations.connect("example.com/0").unwrap();
}

#[test]
fn reuses_devices_of_init_containers_but_not_of_sidecars() {
    let mut allocations = allocations(&[("a", true, &[]), ("b", true, &[]), ("c", true, &[])]);
    let pod = pod("p", &[("i", 2, false), ("s", 1, true)], &[("x", 1), ("y", 1)]);
    assert_eq!(allot(&mut allocations, &pod, "i", 2).unwrap(), ["a", "b"]);
    assert_eq!(allot(&mut allocations, &pod, "s", 1).unwrap(), ["a"]);
    assert_eq!(allot(&mut allocations, &pod, "x", 1).unwrap(), ["b"]);
    assert_eq!(allot(&mut allocations, &pod, "y", 1).unwrap(), ["c"]);
}

#[test]
fn ignores_preferences_for_devices_that_are_not_free() {
    let mut allocations =
        allocations(&[("a", true, &[]), ("b", true, &[]), ("c", true, &[]), ("d", false, &[])]);
    allot(&mut allocations, &pod("one", &[], &[("x", 1)]), "x", 1).unwrap();
    let two = pod("two", &[], &[("x", 1)]);
    let Choice::New(_, Some(request)) = allocations.choose(&two, "x", R, 1, None).unwrap() else {
        panic!("nothing to ask")
    };
    let choose =
        |ids: &[&str]| request.choose(&ids.iter().map(|s| s.to_string()).collect::<Vec<_>>());
    assert_eq!(choose(&["c"]), ["c".to_owned()].into());
    for wrong in [&["a"][..], &["d"], &["nonsense"], &[], &["b", "c", "c"]] {
        assert_eq!(choose(wrong), ["b".to_owned()].into(), "{wrong:?}");
    }
}

#[test]
fn prefers_devices_near_the_wanted_nodes() {
    let allocations =
        allocations(&[("a", true, &[0]), ("b", true, &[1]), ("c", true, &[]), ("d", true, &[1])]);
    let chosen = |count: usize, near: &[i64]| {
        let near = Some(Mask::of(near.iter().copied()));
        match allocations.choose(&pod("p", &[], &[("x", count)]), "x", R, count, near).unwrap() {
            Choice::New(ids, _) => ids.into_iter().collect::<Vec<_>>().join(""),
            Choice::Existing => String::new(),
        }
    };
    assert_eq!(
        (chosen(1, &[1]), chosen(2, &[1]), chosen(3, &[1])),
        ("b".into(), "bd".into(), "abd".into())
    );
    assert_eq!(chosen(4, &[1]), "abcd");
}

/// The checkpoints were written by upstream's code, v1.36.
#[test]
fn reads_and_writes_upstream_checkpoints() {
    let whole = r#"{"Data":{"PodDeviceEntries":[{"PodUID":"u1","ContainerName":"c","ResourceName":"example.com/a","DeviceIDs":{"-1":["d1"],"1":["d2","d3"]},"AllocResp":"CgL/"},{"PodUID":"u2","ContainerName":"c 2","ResourceName":"example.com/b","DeviceIDs":{"0":["x"]},"AllocResp":""}],"RegisteredDevices":{"example.com/a":[],"example.com/b":["x","é"]}},"Checksum":3846681417}"#;
    let empty =
        r#"{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":3467439661}"#;
    let nulls =
        r#"{"Data":{"PodDeviceEntries":[],"RegisteredDevices":{"a/b":null}},"Checksum":686998363}"#;
    let restored =
        [whole, empty, nulls].map(|text| Allocations::restore(text.as_bytes(), at(0)).unwrap());
    assert_eq!(restored[1].checkpoint(), empty.as_bytes());
    let allocated = &restored[0].of_container(("u1", "c")).unwrap()["example.com/a"];
    assert_eq!((allocated.ids().len(), &allocated.response[..]), (3, &[10, 2, 255][..]));
    assert!(restored[2].knows("a/b"));
    let damaged = whole.replace("d2", "d4");
    let error = Allocations::restore(damaged.as_bytes(), at(0)).unwrap_err();
    assert!(
        matches!(error, CheckpointError::Checksum(ChecksumError { stated: 3846681417, .. })),
        "{error}"
    );
    for broken in ["", "{}", "[]", "null", &whole[..90], &whole.replace("CgL/", "*")] {
        assert!(Allocations::restore(broken.as_bytes(), at(0)).is_err(), "{broken}");
    }
}

#[derive(Clone, Debug)]
enum Step {
    Allocate(usize, usize),
    End(usize),
    List(Vec<bool>),
    Vanish,
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..6_usize, 1..4_usize).prop_map(|(pod, n)| Step::Allocate(pod, n)),
        2 => (0..6_usize).prop_map(Step::End),
        2 => prop::collection::vec(any::<bool>(), 0..6).prop_map(Step::List),
        1 => Just(Step::Vanish),
        1 => Just(Step::Restart),
    ]
}

#[test]
fn hints_name_nodes_with_enough_devices() {
    let mut allocations =
        allocations(&[("a", true, &[0]), ("b", true, &[1]), ("c", true, &[1]), ("d", true, &[])]);
    let hint = |of: &[(&[i64], bool)]| -> Hints {
        let hint = |(nodes, preferred): &(&[i64], bool)| Hint {
            nodes: Some(Mask::of(nodes.iter().copied())),
            preferred: *preferred,
        };
        Some(of.iter().map(hint).collect())
    };
    let both_hints = |allocations: &Allocations, pod: &Pod| {
        let container = &pod.spec.as_ref().unwrap().containers[0];
        (
            allocations.hints(pod, container, &[0, 1, 2]).remove(0),
            allocations.pod_hints(pod, &[0, 1, 2]).remove(0),
        )
    };
    let both = |hints: Hints| (hints.clone(), hints);
    let one = pod("one", &[], &[("x", 1)]);
    let any = hint(&[(&[0], true), (&[1], true), (&[0, 1], false)]);
    assert_eq!(both_hints(&allocations, &one), both(any));
    let two = pod("two", &[], &[("x", 2)]);
    assert_eq!(both_hints(&allocations, &two), both(hint(&[(&[1], true), (&[0, 1], false)])));
    assert_eq!(both_hints(&allocations, &pod("many", &[], &[("x", 5)])), both(Some(Vec::new())));
    // A Pod with devices gets hints for these, and none if its request has changed.
    allocations.choose(&two, "x", R, 2, Some(Mask::of([1]))).unwrap();
    allocations.allocate(("two", "x"), R, &["b".to_owned(), "c".to_owned()].into(), vec![]);
    assert_eq!(both_hints(&allocations, &two), both(hint(&[(&[1], true), (&[0, 1], false)])));
    assert_eq!(both_hints(&allocations, &pod("two", &[], &[("x", 1)])), both(Some(Vec::new())));
    assert_eq!(both_hints(&allocations, &one), both(hint(&[(&[0], true), (&[0, 1], false)])));
    // The devices of an init container are reused, with their nodes.
    let again = pod("two", &[("x", 2, false)], &[("y", 1)]);
    let app = &again.spec.as_ref().unwrap().containers[0];
    assert_eq!(allocations.hints(&again, app, &[0, 1]), [hint(&[(&[1], true), (&[0, 1], false)])]);
    // A resource whose devices have no affinity gives no hints.
    allocations.list(R, devices(&[("a", true, &[])]));
    assert_eq!(both_hints(&allocations, &one), (None, None));
}

proptest! {
    /// At any time a device has at most one holder, and only healthy devices are allocated.
    #[test]
    fn no_device_has_two_holders(steps in prop::collection::vec(step(), 1..60)) {
        let mut allocations = allocations(&[]);
        for step in steps {
            match step {
                Step::Allocate(n, count) => {
                    let pod = pod(&n.to_string(), &[], &[("x", count)]);
                    let free: BTreeSet<String> = {
                        let allocated = allocations.allocated(R);
                        let known = allocations.devices(R);
                        known.into_iter().filter(|(id, d)| d.healthy && !allocated.contains(id.as_str())).map(|(id, _)| id).collect()
                    };
                    let existing = allocations.of_container((&n.to_string(), "x")).is_some();
                    if let Ok(ids) = allot(&mut allocations, &pod, "x", count) {
                        prop_assert_eq!(ids.len(), count);
                        prop_assert!(existing || ids.iter().all(|id| free.contains(id)));
                    }
                }
                Step::End(n) => drop(allocations.release(&n.to_string())),
                Step::List(healths) => {
                    allocations.connect(R).unwrap();
                    let listed = healths.iter().enumerate();
                    let listed = listed.map(|(n, healthy)| (n.to_string(), Device { healthy: *healthy, nodes: BTreeSet::new() }));
                    allocations.list(R, listed.collect());
                }
                Step::Vanish => allocations.disconnect(R, at(1)),
                Step::Restart => {
                    let allocated = allocations.pods.clone();
                    allocations = Allocations::restore(&allocations.checkpoint(), at(0)).unwrap();
                    prop_assert_eq!(&allocations.pods, &allocated);
                }
            }
            let holders: Vec<&str> = allocations.pods.values().flat_map(|p| p["x"][R].ids()).collect();
            let distinct: BTreeSet<&str> = holders.iter().copied().collect();
            prop_assert_eq!(holders.len(), distinct.len());
        }
    }
}
