use proptest::prelude::*;

use super::*;

fn hint(nodes: &[i64], preferred: bool) -> Hint {
    Hint { nodes: Some(Mask::of(nodes.iter().copied())), preferred }
}

fn nodes(n: i64) -> Nodes {
    Nodes { all: (0..n).collect(), distances: BTreeMap::new() }
}

#[test]
fn merges_hints_by_policy() {
    let near_0 = || Some(vec![hint(&[0], true), hint(&[0, 1], false)]);
    let near_1 = || Some(vec![hint(&[1], true), hint(&[0, 1], false)]);
    let anywhere = || Some(vec![hint(&[0], true), hint(&[1], true), hint(&[0, 1], false)]);
    let nowhere = || Some(Vec::new());
    let both = || Some(vec![hint(&[0, 1], true)]);
    let all = Some(Mask::of([0, 1]));
    let at = |node| Some(Mask::of([node]));
    use Policy::{BestEffort, Restricted, SingleNode};
    for (said, mask, preferred, single) in [
        (vec![], all, true, (None, true)),
        (vec![None, None], all, true, (None, true)),
        (vec![near_0(), anywhere()], at(0), true, (at(0), true)),
        (vec![anywhere(), near_1(), None], at(1), true, (at(1), true)),
        (vec![anywhere(), anywhere()], at(0), true, (at(0), true)),
        (vec![near_0(), near_1()], at(0), false, (None, false)),
        (vec![near_0(), nowhere()], at(0), false, (None, false)),
        (vec![both(), anywhere()], all, false, (None, false)),
        (vec![both()], all, true, (None, false)),
        (vec![both(), None], all, true, (None, false)),
    ] {
        let best = Hint { nodes: mask, preferred };
        assert_eq!(merge(BestEffort, &nodes(2), &said), (best, true), "{said:?}");
        assert_eq!(merge(Restricted, &nodes(2), &said), (best, preferred), "{said:?}");
        let (best, taken) = merge(SingleNode, &nodes(2), &said);
        assert_eq!((best.nodes, taken), single, "{said:?}");
        assert!(merge(Policy::None, &nodes(2), &said).1);
    }
}

#[test]
fn prefers_hints_with_the_fewest_nodes() {
    // There are two units on node 0, one of them free, and two free units on node 1.
    let count = |of: [usize; 2]| {
        move |mask: Mask| (0..2).filter(|n| mask.has(*n as i64)).map(|n| of[n]).sum::<usize>()
    };
    let of = |units| hints(&[0, 1], units, count([2, 2]), |mask| Some(count([1, 2])(mask)));
    assert_eq!(of(1), [hint(&[0], true), hint(&[1], true), hint(&[0, 1], false)]);
    assert_eq!(of(2), [hint(&[1], true), hint(&[0, 1], false)]);
    assert_eq!(of(3), [hint(&[0, 1], true)]);
    assert_eq!(of(4), []);
    let only_0 = |mask: Mask| mask.has(0).then(|| count([1, 2])(mask));
    assert_eq!(hints(&[0, 1], 2, count([2, 2]), only_0), [hint(&[0, 1], false)]);
    assert_eq!(hints(&[], 1, |_| 0, |_| Some(9)), []);
}

#[test]
fn prefers_close_nodes_if_distances_are_set() {
    let said = [Some(vec![hint(&[0, 1], true), hint(&[0, 2], true), hint(&[1, 2], true)])];
    let mut machine = nodes(3);
    assert_eq!(merge(Policy::Restricted, &machine, &said).0, hint(&[0, 1], true));
    let far = |a: i64, b: i64| {
        if a == b {
            10
        } else if a + b == 3 {
            15
        } else {
            30
        }
    };
    machine.distances = (0..3).flat_map(|a| (0..3).map(move |b| ((a, b), far(a, b)))).collect();
    assert_eq!(merge(Policy::Restricted, &machine, &said).0, hint(&[1, 2], true));
}

/// Merges hints by upstream's documented procedure, which tries every combination in turn.
fn tried(policy: Policy, machine: &Nodes, said: &[Vec<Hint>]) -> Hint {
    let all = machine.mask();
    let goal = said
        .iter()
        .map(|h| h.iter().filter_map(|h| h.nodes).map(Mask::count).min().unwrap_or(0))
        .max()
        .unwrap_or(0);
    let mut best: Option<Hint> = None;
    let combinations: usize = said.iter().map(Vec::len).product();
    for mut n in 0..combinations {
        let mut picked = Vec::new();
        for hints in said {
            picked.push(hints[n % hints.len()]);
            n /= hints.len();
        }
        let masks: Vec<Mask> = picked.iter().filter_map(|h| h.nodes).collect();
        let mask = masks.iter().fold(all, |a, b| a.and(*b));
        let preferred = picked.iter().all(|h| h.preferred) && masks.iter().all(|m| *m == masks[0]);
        if mask.count() == 0 {
            continue;
        }
        let (candidate, count) = (Hint { nodes: Some(mask), preferred }, mask.count());
        let narrower = |than: Mask| (count, mask) < (than.count(), than);
        let better = best.is_none_or(|best| {
            let (now, have) = (best.nodes.unwrap(), best.nodes.unwrap().count());
            match (best.preferred, preferred) {
                (false, true) => true,
                (true, false) => false,
                (true, true) => narrower(now),
                (false, false) if have > goal => narrower(now),
                (false, false) if have == goal => count == goal && narrower(now),
                (false, false) if count > goal => false,
                (false, false) => count > have || count == have && narrower(now),
            }
        });
        if better {
            best = Some(candidate);
        }
    }
    let _ = policy;
    best.unwrap_or(Hint { nodes: Some(all), preferred: false })
}

proptest! {
    #[test]
    fn matches_trying_all_combinations(
        said in prop::collection::vec(prop::collection::vec((1_u64..16, any::<bool>()), 1..6), 1..4)
    ) {
        let said: Vec<Vec<Hint>> = said
            .into_iter()
            .map(|hints| hints.into_iter().map(|(bits, preferred)| Hint { nodes: Some(Mask(bits)), preferred }).collect())
            .collect();
        let machine = nodes(4);
        let expected = tried(Policy::BestEffort, &machine, &said);
        let said: Vec<Hints> = said.into_iter().map(Some).collect();
        prop_assert_eq!(merge(Policy::BestEffort, &machine, &said).0, expected);
    }
}
