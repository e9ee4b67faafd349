use proptest::prelude::*;
use serde_json::json;

use super::{checkpoint::StateError, *};

const GI: u64 = 1 << 30;

/// Returns nodes of 4 GiB, 1 GiB of it reserved, with 8 huge pages of 2 MiB each.
fn memory(nodes: i64) -> NumaMemory {
    let tables = || {
        let own = Table::new(4 * GI, GI, 3 * GI);
        let huge = Table::new(16 << 20, 0, 16 << 20);
        [("memory".to_owned(), own), ("hugepages-2Mi".to_owned(), huge)].into()
    };
    NumaMemory::new((0..nodes).map(|node| (node, tables())).collect())
}

fn pod(uid: &str, init: &[(&str, u64, bool)], apps: &[(&str, u64, u64)]) -> Pod {
    let container = |name: &str, size: u64, huge: u64, sidecar: bool| {
        let mut amounts = json!({"cpu": "1", "memory": size.to_string()});
        if huge > 0 {
            amounts["hugepages-2Mi"] = json!(huge.to_string());
        }
        json!({"name": name, "restartPolicy": sidecar.then_some("Always"),
            "resources": {"limits": amounts, "requests": amounts}})
    };
    let init: Vec<_> = init.iter().map(|(name, size, s)| container(name, *size, 0, *s)).collect();
    let apps: Vec<_> =
        apps.iter().map(|(name, size, h)| container(name, *size, *h, false)).collect();
    let pod =
        json!({"metadata": {"uid": uid}, "spec": {"initContainers": init, "containers": apps}});
    serde_json::from_value(pod).unwrap()
}

fn one(uid: &str, size: u64) -> Pod {
    pod(uid, &[], &[("c", size, 0)])
}

/// Allocates memory to each container of a Pod and returns their nodes.
fn allot(memory: &mut NumaMemory, pod: &Pod, near: Hint) -> Result<Vec<Vec<i64>>, String> {
    let uid = pod.metadata.uid.clone().unwrap();
    let mut had = Vec::new();
    for member in members(pod) {
        memory.allocate(pod, &member.container, near).map_err(|error| error.to_string())?;
        had.push(memory.nodes(&uid, &member.container.name).into_iter().collect());
    }
    Ok(had)
}

fn near(nodes: &[i64]) -> Hint {
    Hint { nodes: Some(Mask::of(nodes.iter().copied())), preferred: true }
}

fn left(memory: &NumaMemory, node: i64) -> u64 {
    memory.state()[&node].memory_map["memory"].free
}

#[test]
fn allocates_memory_on_the_fewest_nodes() {
    let mut memory = memory(2);
    assert_eq!(memory.allocatable().len(), 4);
    assert_eq!(allot(&mut memory, &one("a", 2 * GI), Hint::default()).unwrap(), [[0]]);
    assert_eq!(allot(&mut memory, &one("b", 2 * GI), Hint::default()).unwrap(), [[1]]);
    assert_eq!(allot(&mut memory, &one("b", 2 * GI), near(&[0])).unwrap(), [[1]], "it keeps it");
    // Nodes that are used separately are not used together.
    let error = allot(&mut memory, &one("c", 2 * GI), Hint::default()).unwrap_err();
    assert!(error.ends_with("no NUMA nodes with enough memory is available"), "{error}");
    let error = allot(&mut memory, &one("c", 2 * GI), near(&[0])).unwrap_err();
    assert!(error.ends_with("failed to find NUMA nodes to extend the current topology hint"));
    assert!(memory.release("a") && memory.release("b") && !memory.release("b"));
    assert_eq!(allot(&mut memory, &one("wide", 4 * GI), Hint::default()).unwrap(), [[0, 1]]);
    assert_eq!((left(&memory, 0), left(&memory, 1)), (0, 2 * GI));
    let error = allot(&mut memory, &one("narrow", GI), near(&[0])).unwrap_err();
    assert!(error.contains("failed to find the extended preferred hint"), "{error}");
    let hint = Hint { preferred: false, ..near(&[0]) };
    assert_eq!(allot(&mut memory, &one("narrow", GI), hint).unwrap(), [[0, 1]]);
    let mut burstable = one("burstable", GI);
    burstable.spec.as_mut().unwrap().containers[0].resources.as_mut().unwrap().limits = None;
    let container = &burstable.spec.as_ref().unwrap().containers[0];
    assert!(NumaMemory::requested(&burstable, container).is_empty());
}

#[test]
fn allocates_huge_pages_on_the_same_nodes() {
    let mut memory = memory(2);
    let both = pod("a", &[], &[("c", GI, 16 << 20)]);
    assert_eq!(allot(&mut memory, &both, Hint::default()).unwrap(), [[0]]);
    assert_eq!(memory.blocks("a", "c").len(), 2);
    let again = pod("b", &[], &[("c", GI, 2 << 20)]);
    assert_eq!(allot(&mut memory, &again, Hint::default()).unwrap(), [[1]]);
    let none = pod("c", &[], &[("c", GI, 16 << 20)]);
    assert!(allot(&mut memory, &none, Hint::default()).is_err());
}

#[test]
fn reuses_memory_of_init_containers_but_not_of_sidecars() {
    let mut memory = memory(1);
    let pod = pod(
        "p",
        &[("i", 2 * GI, false), ("s", GI, true), ("j", GI, false)],
        &[("a", GI, 0), ("b", GI, 0)],
    );
    assert_eq!(allot(&mut memory, &pod, Hint::default()).unwrap().len(), 5);
    assert_eq!(left(&memory, 0), 0);
    assert_eq!(memory.blocks("p", "i")[0].size, 0);
    assert!(memory.release("p"));
    assert_eq!(left(&memory, 0), 3 * GI);
}

#[test]
fn hints_name_nodes_with_enough_memory() {
    let mut memory = memory(2);
    let said = |memory: &NumaMemory, size: u64| {
        let pod = one("p", size);
        let hints = memory.hints(&pod, &pod.spec.as_ref().unwrap().containers[0]);
        assert_eq!(hints, memory.pod_hints(&pod));
        let hints = hints.into_iter().flatten().flatten();
        let said = hints.map(|hint| (hint.nodes.unwrap().nodes().collect(), hint.preferred));
        said.collect::<Vec<(Vec<i64>, bool)>>()
    };
    let all = vec![(vec![0], true), (vec![1], true), (vec![0, 1], false)];
    assert_eq!(said(&memory, GI), all);
    assert_eq!(said(&memory, 4 * GI), [(vec![0, 1], true)]);
    assert_eq!(said(&memory, 7 * GI), []);
    allot(&mut memory, &one("other", 3 * GI), near(&[0])).unwrap();
    assert_eq!(said(&memory, GI), [(vec![1], true)]);
    allot(&mut memory, &one("p", GI), near(&[1])).unwrap();
    assert_eq!(said(&memory, GI), [(vec![1], true)], "as it has it");
}

/// The checkpoints are as printed by upstream's code.
#[test]
fn reads_and_writes_upstream_checkpoints() {
    let none = r#"{"policyName":"None","machineState":{},"checksum":4236770233}"#;
    assert_eq!(checkpoint::none(), none.as_bytes());
    checkpoint::is_none(none.as_bytes()).unwrap();
    let fresh = || {
        let tables = |_| {
            let own = Table::new(4 * GI, GI, 3 * GI);
            [("memory".to_owned(), own), ("hugepages-2Mi".to_owned(), Table::default())].into()
        };
        NumaMemory::new((0..2).map(|node| (node, tables(node))).collect())
    };
    // Upstream's code printed this text from made-up data.
    let printed = r#"{"policyName":"Static","machineState":{"0":{"numberOfAssignments":0,"memoryMap":{"hugepages-2Mi":{"total":0,"systemReserved":0,"allocatable":0,"reserved":0,"free":0},"memory":{"total":4294967296,"systemReserved":1073741824,"allocatable":3221225472,"reserved":5,"free":3221225467}},"cells":[0,1]},"1":{"numberOfAssignments":1,"memoryMap":{"hugepages-2Mi":{"total":0,"systemReserved":0,"allocatable":0,"reserved":0,"free":0},"memory":{"total":4294967296,"systemReserved":1073741824,"allocatable":3221225472,"reserved":5,"free":3221225467}},"cells":[0,1]}},"entries":{"u1":{"b 2":null,"c":[{"numaAffinity":[0,1],"type":"memory","size":5},{"numaAffinity":[0],"type":"hugepages-2Mi","size":7}]}},"checksum":2664933617}"#;
    let fails = |text: &str, words: &str| {
        let error = fresh().restore(text.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    };
    fails(printed, "the expected machine state is different from the real one");
    assert!(matches!(
        fresh().restore(printed.replace("\"size\":5", "\"size\":6").as_bytes()),
        Err(StateError::Checksum { .. })
    ));
    let mut used = fresh();
    allot(&mut used, &one("u1", 5), near(&[0, 1])).unwrap();
    let own = String::from_utf8(used.checkpoint()).unwrap();
    let restored = fresh().restore(own.as_bytes()).unwrap();
    assert_eq!((&restored.pods, restored.checkpoint()), (&used.pods, used.checkpoint()));
    let unchecked = {
        let (data, _) = own.rsplit_once("\"checksum\":").unwrap();
        format!("{data}\"checksum\":0}}")
    };
    fresh().restore(unchecked.as_bytes()).unwrap();
    // The split between nodes that are used together does not matter.
    let elsewhere = unchecked.replacen(
        "\"reserved\":5,\"free\":3221225467",
        "\"reserved\":0,\"free\":3221225472",
        1,
    );
    let elsewhere = match elsewhere.rfind("\"reserved\":0,\"free\":3221225472") {
        Some(at) => format!(
            "{}\"reserved\":5,\"free\":3221225467{}",
            &elsewhere[..at],
            &elsewhere[at + "\"reserved\":0,\"free\":3221225472".len()..]
        ),
        None => unreachable!(),
    };
    fresh().restore(elsewhere.as_bytes()).unwrap();
    fails(none, "configured policy \"Static\" differs from state checkpoint policy \"None\"");
    fails(
        &unchecked.replace("[0,1],\"type\"", "[0,7],\"type\""),
        "uses the NUMA that does not exist",
    );
    fails(
        &unchecked.replace("\"type\":\"memory\"", "\"type\":\"x\""),
        "memory resource that does not exist",
    );
    fails(&unchecked.replace("4294967296", "1"), "the expected machine state is different");
    let emptied =
        r#"{"policyName":"Static","machineState":{},"entries":{"u":{"c":[]}},"checksum":0}"#;
    fails(emptied, "machine state can not be empty");
    let begun = r#"{"policyName":"Static","machineState":{},"checksum":0}"#;
    assert!(fresh().restore(begun.as_bytes()).unwrap().pods.is_empty());
    for broken in ["", "[]", "{}", "null", &unchecked.replace("\"size\":5", "\"size\":-5")] {
        assert!(fresh().restore(broken.as_bytes()).is_err());
    }
}

proptest! {
    /// At any time no set of nodes has more allocations than memory, and a checkpoint can be restored.
    #[test]
    fn no_memory_has_two_holders(steps in prop::collection::vec((0..5_u32, 0..7_u64, 0..4_i64), 1..30)) {
        let mut memory = memory(3);
        for (who, size, at) in steps {
            let uid = who.to_string();
            let hint = Hint { nodes: (at < 3).then(|| Mask::of([at])), preferred: false };
            if size == 0 {
                memory.release(&uid);
            } else {
                let _ = allot(&mut memory, &one(&uid, size * GI), hint);
            }
            let allocated: u64 = memory.pods.values().flat_map(|p| p.values().flatten()).map(|b| b.size).sum();
            let left: u64 = (0..3).map(|node| left(&memory, node)).sum();
            prop_assert_eq!(allocated + left, 9 * GI);
            let again = self::memory(3).restore(&memory.checkpoint()).unwrap();
            prop_assert_eq!(&again.pods, &memory.pods);
        }
    }
}

#[test]
fn counts_memory_of_single_nodes_before_that_of_several() {
    let mut memory = memory(3);
    let at = || Hint { nodes: Some(Mask::of([0])), preferred: false };
    allot(&mut memory, &one("1", 4 * GI), at()).unwrap();
    allot(&mut memory, &one("4", GI), at()).unwrap();
    memory.release("1");
    allot(&mut memory, &one("1", 2 * GI), at()).unwrap();
    allot(&mut memory, &one("0", 2 * GI), at()).unwrap();
    let left: u64 = (0..3).map(|node| left(&memory, node)).sum();
    assert_eq!(left, 4 * GI);
}
