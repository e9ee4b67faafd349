use serde_json::json;

use super::*;

fn node(name: &str, zone: Option<&str>, cpu: &str, extra: &str) -> Node {
    let mut labels = json!({});
    if let Some(zone) = zone {
        labels[ZONE] = json!(zone);
    }
    let ready = if extra == "unready" { "Unknown" } else { "True" };
    if extra.starts_with("node-role") {
        labels[extra] = json!("");
    }
    serde_json::from_value(json!({"metadata": {"name": name, "labels": labels},
        "status": {"allocatable": {"cpu": cpu, "memory": "1Gi"}, "conditions": [{"type": "Ready", "status": ready}]}}))
    .unwrap()
}

fn endpoint(number: usize, zone: Option<&str>, ready: bool) -> Endpoint {
    serde_json::from_value(json!({
        "addresses": [format!("10.0.{}.{}", number / 250, number % 250)],
        "conditions": {"ready": ready, "serving": ready, "terminating": false},
        "nodeName": "n", "zone": zone,
    }))
    .unwrap()
}

fn sizes(zones: &[(&str, u64)]) -> Zones {
    Ok(zones.iter().map(|(name, cpu)| ((*name).to_owned(), *cpu)).collect())
}

/// Allocates `counts` ready endpoints of each zone, and returns how many each zone gets.
fn allocated(
    counts: &[(&str, usize)],
    zones: &Zones,
) -> Result<BTreeMap<String, usize>, Unbalanced> {
    let names = counts.iter().flat_map(|(zone, count)| std::iter::repeat_n(*zone, *count));
    let mut all: Vec<_> =
        names.enumerate().map(|(number, zone)| endpoint(number, Some(zone), true)).collect();
    allocate(&mut all.iter_mut().collect::<Vec<_>>(), zones)?;
    let mut got = BTreeMap::new();
    for endpoint in all {
        let hints = endpoint.hints.expect("each endpoint has a hint");
        assert_eq!((hints.for_zones.len(), hints.for_nodes.len()), (1, 0));
        *got.entry(hints.for_zones[0].name.clone()).or_insert(0) += 1;
    }
    Ok(got)
}

#[test]
fn annotation_wins_over_traffic_distribution() {
    let of = |annotations: serde_json::Value, distribution: Option<&str>| {
        let service = json!({"metadata": {"name": "web", "annotations": annotations},
            "spec": {"trafficDistribution": distribution}});
        Preference::of(&serde_json::from_value(service).unwrap())
    };
    let (mode, old) =
        ("service.kubernetes.io/topology-mode", "service.kubernetes.io/topology-aware-hints");
    for (annotations, distribution, expected) in [
        (json!({}), None, Preference::None),
        (json!({}), Some("PreferClose"), Preference::SameZone),
        (json!({}), Some("PreferSameZone"), Preference::SameZone),
        (json!({}), Some("PreferSameNode"), Preference::SameNode),
        (json!({}), Some("example.com/other"), Preference::None),
        (json!({mode: "Auto"}), Some("PreferSameNode"), Preference::Proportional),
        (json!({old: "auto"}), None, Preference::Proportional),
        (json!({mode: "Disabled", old: "Auto"}), None, Preference::None),
        (json!({mode: "AUTO"}), Some("PreferClose"), Preference::SameZone),
    ] {
        assert_eq!(of(annotations.clone(), distribution), expected, "{annotations}");
    }
}

#[test]
fn sums_processors_of_ready_worker_nodes() {
    let nodes = [
        node("a", Some("a"), "1500m", ""),
        node("b", Some("a"), "2", ""),
        node("c", Some("b"), "4", ""),
        // Neither counts, and their missing zones do not matter.
        node("d", None, "8", "unready"),
        node("e", None, "8", "node-role.kubernetes.io/control-plane"),
    ];
    assert_eq!(zones(&nodes), sizes(&[("a", 3500), ("b", 4000)]));
    for (bad, expected) in [
        (node("x", None, "8", ""), Unbalanced::Nodes),
        (node("x", Some(""), "8", ""), Unbalanced::Nodes),
        (node("x", Some("a"), "0", ""), Unbalanced::Nodes),
        (node("x", Some("a"), "-1", ""), Unbalanced::Nodes),
    ] {
        assert_eq!(zones(nodes.iter().chain([&bad])), Err(expected), "{bad:?}");
    }
    assert_eq!(zones(&nodes[..2]), Err(Unbalanced::OneZone));
    assert_eq!(zones([]), Err(Unbalanced::OneZone));
}

#[test]
fn allocates_endpoints_by_processors_of_zones() {
    let even = sizes(&[("a", 1000), ("b", 1000)]);
    let uneven = sizes(&[("a", 20_000), ("b", 16_000), ("c", 14_000)]);
    let got = |counts: &[(&str, usize)]| {
        counts.iter().map(|(zone, n)| ((*zone).to_owned(), *n)).collect::<BTreeMap<_, _>>()
    };
    for (counts, zones, expected) in [
        // All is well as it is.
        (&[("a", 3), ("b", 3)][..], &even, Ok(got(&[("a", 3), ("b", 3)]))),
        (&[("a", 6), ("b", 5)], &even, Ok(got(&[("a", 6), ("b", 5)]))),
        // Zone b would get 150 % of the traffic, so it borrows.
        (&[("a", 4), ("b", 2)], &even, Ok(got(&[("a", 3), ("b", 3)]))),
        // Two zones of one size cannot share three endpoints.
        (&[("a", 2), ("b", 1)], &even, Err(Unbalanced::Overload)),
        (&[("a", 1)], &even, Err(Unbalanced::Endpoints)),
        (&[], &even, Err(Unbalanced::Endpoints)),
        // The example of KEP-2433: 40 %, 32 % and 28 %.
        (&[("a", 40), ("b", 32), ("c", 28)], &uneven, Ok(got(&[("a", 40), ("b", 32), ("c", 28)]))),
        // An even spread is within the threshold there.
        (&[("a", 34), ("b", 33), ("c", 33)], &uneven, Ok(got(&[("a", 34), ("b", 33), ("c", 33)]))),
        (&[("a", 100)], &uneven, Ok(got(&[("a", 49), ("b", 27), ("c", 24)]))),
        // A zone without nodes that count has no traffic.
        (&[("a", 2), ("b", 2), ("gone", 2)], &even, Ok(got(&[("a", 3), ("b", 3)]))),
    ] {
        assert_eq!(allocated(counts, zones), expected, "{counts:?}");
    }
}

#[test]
fn clears_hints_of_endpoints_that_are_not_ready_or_have_no_zone() {
    let zones = sizes(&[("a", 1), ("b", 1)]);
    let stale = Some(Hints { for_zones: vec![Hint { name: "x".into() }], for_nodes: Vec::new() });
    let mut all = [
        endpoint(1, Some("a"), true),
        endpoint(2, Some("b"), true),
        Endpoint { hints: stale.clone(), ..endpoint(3, None, false) },
    ];
    allocate(&mut all.iter_mut().collect::<Vec<_>>(), &zones).unwrap();
    assert!(all[0].hints.is_some() && all[1].hints.is_some() && all[2].hints.is_none());
    all[1].zone = None;
    let failed = allocate(&mut all.iter_mut().collect::<Vec<_>>(), &zones);
    assert_eq!(failed, Err(Unbalanced::NoZone));
    assert!(all.iter().all(|endpoint| endpoint.hints.is_none()), "partial hints would overload");
}

/// No zone is overloaded, no endpoint is lost, and none moves that could stay.
#[test]
fn no_allocation_overloads_a_zone() {
    let mut random = 7_u64;
    let mut next = |below: u64| {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    let names = ["a", "b", "c", "d", "e"];
    let mut balanced = 0;
    for _ in 0..3000 {
        let zones: BTreeMap<String, u64> =
            (0..2 + next(3)).map(|at| (names[at as usize].to_owned(), 1 + next(64_000))).collect();
        let counts: Vec<_> =
            names.iter().map(|name| (*name, usize::try_from(next(30)).unwrap())).collect();
        let count: usize = counts.iter().map(|(_, n)| n).sum();
        let total: u64 = zones.values().sum();
        let Ok(got) = allocated(&counts, &Ok(zones.clone())) else { continue };
        balanced += 1;
        assert_eq!(got.values().sum::<usize>(), count);
        for (zone, cpu) in &zones {
            let have = got.get(zone).copied().unwrap_or(0) as f64;
            let even = count as f64 * *cpu as f64 / total as f64;
            assert!(even / have <= 1.2 + 1e-9, "{zone} of {zones:?}: {counts:?} became {got:?}");
        }
        let enough = |(zone, cpu): (&String, &u64)| {
            let own = counts.iter().find(|(name, _)| name == zone).map_or(0, |(_, n)| *n) as f64;
            own * 1.2 >= count as f64 * *cpu as f64 / total as f64
        };
        if zones.iter().all(enough) && counts.iter().all(|(n, c)| *c == 0 || zones.contains_key(*n))
        {
            let own = counts.iter().filter(|(_, n)| *n > 0);
            let own: BTreeMap<_, _> = own.map(|(name, n)| ((*name).to_owned(), *n)).collect();
            assert_eq!(got, own, "nothing needed to move");
        }
    }
    assert!(balanced > 500, "{balanced}");
}
