//! Tests of node-pressure eviction.

use std::{collections::BTreeMap, time::Duration};

use serde_json::json;

use super::steps::{at, pod};
use crate::evict::{
    Amount, ContainerUse, PodUse, Reading, Signal, Storage, Threshold, Watcher, ending,
    over_storage_limit, rank,
};

const MIB: u64 = 1 << 20;

fn threshold(signal: Signal, amount: &str, grace: Option<u64>, reclaim: &str) -> Threshold {
    let amount = Amount::parse(amount).unwrap();
    let grace = grace.map(Duration::from_secs);
    Threshold { signal, amount, grace, reclaim: Amount::parse(reclaim) }
}

fn memory(available: u64) -> BTreeMap<Signal, Reading> {
    [(Signal::Memory, Reading { available: available * MIB, capacity: 1000 * MIB })].into()
}

#[test]
fn parses_counts_and_shares() {
    for (text, of_1000) in [("100Mi", 100 * MIB), ("10%", 100), ("0%", 0), ("7.5%", 75)] {
        assert_eq!(Amount::parse(text).unwrap().of(1000), of_1000, "{text}");
    }
    for text in ["", "-1", "101%", "much"] {
        assert_eq!(Amount::parse(text), None, "{text}");
    }
}

#[test]
fn hard_threshold_acts_until_the_reclaim_amount_is_free() {
    let hard = threshold(Signal::Memory, "100Mi", None, "50Mi");
    let mut watcher = Watcher::new(vec![hard], Duration::from_secs(300));
    let mut look = |available, second| {
        let shortage = watcher.look(&memory(available), at(second));
        (shortage.conditions.len(), shortage.act.is_some())
    };
    assert_eq!(look(100, 0), (0, false), "as much as the threshold is enough");
    assert_eq!(look(99, 10), (1, true));
    assert_eq!(look(149, 20), (1, true), "50 Mi more are to be free");
    assert_eq!(look(150, 30), (1, false), "the condition stays for a while");
    assert_eq!(look(120, 40), (1, false), "it was resolved");
    assert_eq!(look(120, 320), (0, false));
}

#[test]
fn soft_threshold_reports_pressure_before_it_acts() {
    let soft = threshold(Signal::Memory, "20%", Some(60), "");
    let mut watcher = Watcher::new(vec![soft], Duration::from_secs(0));
    let mut look = |available, second| {
        let shortage = watcher.look(&memory(available), at(second));
        (shortage.conditions.len(), shortage.act.is_some())
    };
    assert_eq!(look(199, 0), (1, false));
    assert_eq!(look(201, 30), (0, false), "it begins anew");
    assert_eq!(look(199, 40), (1, false));
    assert_eq!(look(199, 99), (1, false));
    assert_eq!(look(199, 100), (1, true));
}

#[test]
fn ranks_pods_above_requests_first_then_by_priority() {
    let of = |name: &str, priority: i32, request: &str| {
        let mut pod = pod(json!({ "priority": priority, "containers": [{ "name": "c",
            "resources": { "requests": { "memory": request } } }] }));
        pod.metadata.name = Some(name.to_owned());
        pod
    };
    let pods = [
        (of("modest", 0, "100Mi"), 50),
        (of("greedy", 0, "10Mi"), 200),
        (of("greedier", 0, "10Mi"), 300),
        (of("important", 1000, "10Mi"), 900),
        (of("critical", 2_000_000_000, "10Mi"), 990),
    ];
    let used = pods
        .iter()
        .map(|(pod, used)| PodUse { pod, used: used * MIB, containers: vec![] })
        .collect();
    let order = rank(Signal::Memory, used);
    let names: Vec<_> = order.iter().map(|one| one.pod.metadata.name.as_deref().unwrap()).collect();
    assert_eq!(names, ["greedier", "greedy", "important", "modest"]);
}

#[test]
fn eviction_message_names_resource_and_usage() {
    let pod = pod(json!({ "containers": [{ "name": "c" }] }));
    let hard = threshold(Signal::Memory, "100Mi", None, "");
    let containers = vec![ContainerUse { name: "c".to_owned(), used: 20 * MIB + 5 }];
    let one = PodUse { pod: &pod, used: 20 * MIB + 5, containers };
    let reading = Reading { available: 50 * MIB, capacity: 1000 * MIB };
    let ending = ending(&hard, reading, &one);
    assert_eq!(
        ending.message.unwrap(),
        "The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Mi. \
         Container c was using 20Mi, request is 0, has larger consumption of memory. "
    );
    assert!(ending.disrupted);
}

#[test]
fn names_the_exceeded_storage_limit() {
    let pod = pod(json!({
        "volumes": [{ "name": "v", "emptyDir": { "sizeLimit": "1Mi" } }],
        "containers": [{ "name": "c", "resources": { "limits": { "ephemeral-storage": "2Mi" } } }],
    }));
    for (volume, container, message) in [
        (MIB, MIB, None),
        (MIB + 1, 0, Some("Usage of EmptyDir volume \"v\" exceeds the limit \"1Mi\". ")),
        (0, 2 * MIB + 1, Some("Container c exceeded its local ephemeral storage limit \"2Mi\". ")),
        (
            MIB,
            MIB + 1,
            Some("Pod ephemeral local storage usage exceeds the total limit of containers 2Mi. "),
        ),
    ] {
        let storage = Storage {
            empty_dirs: [("v".to_owned(), volume)].into(),
            containers: [("c".to_owned(), container)].into(),
            hosts: 0,
        };
        let said = over_storage_limit(&pod, &storage).and_then(|ending| ending.message);
        assert_eq!(said.as_deref(), message);
    }
}
