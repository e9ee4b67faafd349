use proptest::prelude::*;
use serde_json::json;

use super::{checkpoint::StateError, *};

/// Returns a machine with these sockets, cores per socket and threads per core, numbered as on most machines.
fn machine(sockets: u32, cores: u32, threads: u32) -> Machine {
    let all = sockets * cores;
    (0..all * threads)
        .map(|cpu| {
            let core = cpu % all;
            let socket = i64::from(core / cores);
            (cpu, CpuLocation { core, socket, node: socket, cache: core / 2 * 2 })
        })
        .collect()
}

fn cpus(machine: Machine, options: Options, reserved: &str) -> Cpus {
    Cpus::new(machine, options, Reserved::Set(reserved.parse().unwrap())).unwrap()
}

fn pod(uid: &str, init: &[(&str, &str, bool)], apps: &[(&str, &str)]) -> Pod {
    let container = |name: &str, cpu: &str, sidecar: bool| {
        let amounts = json!({"cpu": cpu, "memory": "1Mi"});
        json!({"name": name, "restartPolicy": sidecar.then_some("Always"),
            "resources": {"limits": amounts, "requests": amounts}})
    };
    let init: Vec<_> = init.iter().map(|(n, c, s)| container(n, c, *s)).collect();
    let apps: Vec<_> = apps.iter().map(|(n, c)| container(n, c, false)).collect();
    let pod =
        json!({"metadata": {"uid": uid}, "spec": {"initContainers": init, "containers": apps}});
    serde_json::from_value(pod).unwrap()
}

/// Allocates CPUs to each container of a Pod and returns their CPUs.
fn allot(cpus: &mut Cpus, pod: &Pod, near: Option<Mask>) -> Result<String, CpuError> {
    let uid = pod.metadata.uid.clone().unwrap();
    let mut had = Vec::new();
    for member in members(pod) {
        cpus.allocate(pod, &member.container, near)?;
        had.push(cpus.of(&uid, &member.container.name).to_string());
    }
    Ok(had.join(" "))
}

fn one(uid: &str, cpu: &str) -> Pod {
    pod(uid, &[], &[("c", cpu)])
}

#[test]
fn allocates_whole_cpus_to_guaranteed_pods_only() {
    let mut cpus = cpus(machine(1, 4, 2), Options::default(), "0");
    assert_eq!(allot(&mut cpus, &one("half", "500m"), None).unwrap(), "0-7");
    assert_eq!(allot(&mut cpus, &one("most", "1500m"), None).unwrap(), "0-7");
    // Core 0 is partly reserved. A request for a whole core takes another one, and a single CPU comes from core 0.
    assert_eq!(allot(&mut cpus, &one("two", "2"), None).unwrap(), "1,5");
    assert_eq!(allot(&mut cpus, &one("one", "1"), None).unwrap(), "4");
    assert_eq!(cpus.of("half", "c").to_string(), "0,2-3,6-7");
    assert_eq!(allot(&mut cpus, &one("two", "2"), None).unwrap(), "1,5", "it keeps them");
    let error = allot(&mut cpus, &one("many", "5"), None).unwrap_err();
    assert_eq!(
        error.to_string(),
        "not enough cpus available to satisfy request: requested=5, available=4"
    );
    assert!(cpus.release("two") && !cpus.release("two"));
    assert_eq!(cpus.of("half", "c").to_string(), "0-3,5-7");
    let mut burstable = one("burstable", "2");
    burstable.spec.as_mut().unwrap().containers[0].resources.as_mut().unwrap().limits = None;
    assert_eq!(Cpus::requested(&burstable, &burstable.spec.as_ref().unwrap().containers[0]), 0);
}

#[test]
fn packs_cpus_near_the_wanted_nodes() {
    let of = |requested: &str, near: Option<i64>| {
        let mut cpus = cpus(machine(2, 2, 2), Options::default(), "0");
        allot(&mut cpus, &one("p", requested), near.map(|node| Mask::of([node])))
    };
    // An unused socket comes first if all of it is needed.
    assert_eq!(of("4", None).unwrap(), "2-3,6-7");
    assert_eq!(of("2", None).unwrap(), "1,5");
    assert_eq!(of("2", Some(1)).unwrap(), "2,6");
    assert_eq!(of("5", Some(1)).unwrap(), "2-4,6-7");
    assert_eq!(of("7", None).unwrap(), "1-7");
    assert!(of("8", None).is_err());
}

#[test]
fn reuses_cpus_of_init_containers_but_not_of_sidecars() {
    let mut cpus = cpus(machine(1, 6, 1), Options::default(), "0");
    let pod = pod("p", &[("i", "2", false), ("s", "1", true)], &[("a", "1"), ("b", "1")]);
    assert_eq!(allot(&mut cpus, &pod, None).unwrap(), "1-2 1 2 3");
    assert_eq!(cpus.of("", "").to_string(), "0,4-5");
    assert!(cpus.release("p"));
    assert_eq!(cpus.of("", "").to_string(), "0-5");
}

#[test]
fn applies_policy_options() {
    let full = Options { full_cores: true, ..Options::default() };
    let mut whole = cpus(machine(1, 4, 2), full, "0");
    let error = allot(&mut whole, &one("p", "3"), None).unwrap_err();
    assert_eq!(
        error.to_string(),
        "SMT Alignment Error: requested 3 cpus not multiple cpus per core = 2"
    );
    let error = allot(&mut whole, &one("p", "8"), None).unwrap_err();
    assert_eq!(
        (error.to_string().as_str(), error.reason()),
        (
            "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = 6, requested CPUs = 8, CPUs per core = 2",
            "SMTAlignmentError"
        )
    );
    assert_eq!(allot(&mut whole, &one("p", "4"), None).unwrap(), "1-2,5-6");
    let strict = Options { strict: true, ..Options::default() };
    let strict = cpus(machine(1, 4, 2), strict, "0,4");
    assert_eq!(
        (strict.of("", "").to_string(), strict.allocatable().to_string()),
        ("1-3,5-7".into(), "1-3,5-7".into())
    );
    let counted = Cpus::new(machine(1, 4, 2), Options::default(), Reserved::Count(2)).unwrap();
    assert_eq!(counted.allocatable().to_string(), "1-3,5-7");
}

#[test]
fn distributes_cpus_over_the_fewest_nodes() {
    let of = |requested: &str, full_cores: bool| {
        let options = Options { distribute: true, full_cores, ..Options::default() };
        let mut cpus = cpus(machine(4, 2, 2), options, "0,8");
        allot(&mut cpus, &one("p", requested), None).unwrap()
    };
    // Nothing is distributed if one node suffices.
    assert_eq!(of("4", false), "2-3,10-11");
    assert_eq!(of("6", false), "2-5,10,12");
    assert_eq!(of("6", true), "2-4,10-12");
    assert_eq!(of("8", true), "2-5,10-13");
    assert_eq!(of("10", true), "2-6,10-14");
    assert_eq!(of("14", true), "1-7,9-15");
}

#[test]
fn packs_cpus_that_share_a_cache() {
    let of = |first: &str, by_cache: bool| {
        let options = Options { by_cache, ..Options::default() };
        let mut cpus = cpus(machine(1, 6, 1), options, "0");
        let first = allot(&mut cpus, &one("first", first), None).unwrap();
        (first, allot(&mut cpus, &one("second", "2"), None).unwrap())
    };
    let both = |a: &str, b: &str| (a.to_owned(), b.to_owned());
    assert_eq!(of("1", false), both("1", "2-3"));
    assert_eq!(of("2", false), both("1-2", "3-4"));
    assert_eq!(of("2", true), both("2-3", "4-5"));
    assert_eq!(of("3", true), both("1-3", "4-5"));
}

#[test]
fn hints_name_nodes_with_enough_cpus() {
    let mut cpus = cpus(machine(2, 2, 1), Options::default(), "0");
    let said = |cpus: &Cpus, requested: &str| {
        let pod = one("p", requested);
        let of_pod = cpus.pod_hints(&pod);
        assert_eq!(cpus.hints(&pod, &pod.spec.as_ref().unwrap().containers[0]), of_pod);
        let hints = of_pod?.into_iter();
        let said = hints.map(|hint| (hint.nodes.unwrap().nodes().collect(), hint.preferred));
        Some(said.collect::<Vec<(Vec<i64>, bool)>>())
    };
    assert_eq!(said(&cpus, "500m"), None);
    assert_eq!(said(&cpus, "2").unwrap(), [(vec![1], true), (vec![0, 1], false)]);
    assert_eq!(said(&cpus, "4").unwrap(), []);
    allot(&mut cpus, &one("p", "2"), None).unwrap();
    assert_eq!(said(&cpus, "2").unwrap(), [(vec![1], true), (vec![0, 1], false)], "as it has them");
}

#[test]
fn parses_and_formats_lists_of_cpus() {
    for (text, formatted) in
        [("", ""), ("3", "3"), ("0-2,4", "0-2,4"), ("4,1,0\n", "0-1,4"), ("7-7", "7")]
    {
        assert_eq!(text.parse::<CpuSet>().unwrap().to_string(), formatted);
    }
    for wrong in ["a", "-", "1-", "2-1", "1,,2", "-1", "0-99999999", "4294967296", "1;2"] {
        assert!(wrong.parse::<CpuSet>().is_err(), "{wrong}");
    }
}

/// The checkpoint of a machine with seven CPUs, as printed by upstream's code.
#[test]
fn reads_and_writes_upstream_checkpoints() {
    let written = r#"{"policyName":"static","defaultCpuSet":"0,2-3","entries":{"u1":{"x":"6"},"u2":{"b 2":"4-5","c":"1"}},"checksum":4001222949}"#;
    let seven = || machine(1, 7, 1);
    let fresh = || cpus(seven(), Options::default(), "0");
    let restored = fresh().restore(written.as_bytes()).unwrap();
    assert_eq!(restored.checkpoint(), written.as_bytes());
    assert_eq!(restored.of("u2", "b 2").to_string(), "4-5");
    let none = r#"{"policyName":"none","defaultCpuSet":"","checksum":1353318690}"#;
    assert_eq!(checkpoint::none(), none.as_bytes());
    checkpoint::is_of(none.as_bytes(), "none").unwrap();
    let error = fresh().restore(none.as_bytes()).unwrap_err().to_string();
    assert_eq!(error, "configured policy \"static\" differs from state checkpoint policy \"none\"");
    let damaged = written.replace("0,2-3", "0,2");
    assert!(matches!(fresh().restore(damaged.as_bytes()), Err(StateError::Checksum { .. })));
    let unchecked = |text: &str| text.replace("4001222949", "0");
    let fails = |cpus: Cpus, text: &str, words: &str| {
        let error = cpus.restore(unchecked(text).as_bytes()).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    };
    fails(fresh(), &written.replace("0,2-3", ""), "default cpuset cannot be empty");
    let begun = r#"{"policyName":"static","defaultCpuSet":"","checksum":0}"#;
    assert_eq!(fresh().restore(begun.as_bytes()).unwrap().shared().to_string(), "0-6");
    fails(fresh(), &damaged, "doesn't match with CPUs in state");
    fails(cpus(machine(1, 8, 1), Options::default(), "0"), written, "\"0-7\" doesn't match");
    fails(cpus(seven(), Options::default(), "1"), written, "not all reserved cpus: \"1\"");
    fails(cpus(seven(), Options { strict: true, ..Options::default() }, "0"), written, "strictly");
    fails(fresh(), &written.replace("\"6\"", "\"2,6\""), "overlaps with default cpuset");
    fails(fresh(), &written.replace("\"6\"", "\"x\""), "is not a list of CPUs");
    for broken in ["", "[]", "{}", "null"] {
        assert!(fresh().restore(broken.as_bytes()).is_err());
    }
}

proptest! {
    /// At any time a CPU has one holder or is shared, and reserved CPUs are never allocated.
    #[test]
    fn no_cpu_has_two_holders(steps in prop::collection::vec((0..6_u32, 0..6_u32, 0..4_i64), 1..40)) {
        let mut cpus = cpus(machine(2, 3, 2), Options::default(), "0,6");
        for (who, requested, near) in steps {
            let uid = who.to_string();
            let near = (near < 3).then(|| Mask::of([near]));
            if requested == 0 {
                cpus.release(&uid);
            } else {
                let _ = allot(&mut cpus, &one(&uid, &requested.to_string()), near);
            }
            let allocated: Vec<CpuSet> = cpus.pods.values().flat_map(|p| p.values().cloned()).collect();
            let sum = allocated.iter().map(CpuSet::len).sum::<usize>() + cpus.shared.len();
            prop_assert_eq!(sum, 12);
            let reserved = &cpus.reserved;
            prop_assert!(allocated.iter().all(|set| set.is_apart(reserved) && set.is_apart(&cpus.shared)));
            let again = self::cpus(machine(2, 3, 2), Options::default(), "0,6");
            prop_assert_eq!(again.restore(&cpus.checkpoint()).unwrap().pods, cpus.pods.clone());
        }
    }
}
