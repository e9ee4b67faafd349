use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use api_meta::{Attributes, Changed, UserInfo};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn secs(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

#[test]
fn matches_upstreams_configuration() {
    let beside = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../../shared/reference");
    let root = std::env::var_os("WINDLASS_REFERENCE").map_or(beside, PathBuf::from);
    let Ok(text) = std::fs::read_to_string(root.join("golden/apiserver/flowcontrol.yaml")) else {
        eprintln!("skipped: no reference at hand; set WINDLASS_REFERENCE");
        return;
    };
    let key = |object: &Value| format!("{} {}", object["kind"], object["metadata"]["name"]);
    let recorded: BTreeMap<String, Value> = text
        .split("\n---\n")
        .map(|doc| serde_saphyr::from_str::<Value>(doc).unwrap())
        .map(|object| (key(&object), object["spec"].clone()))
        .collect();
    let ours: BTreeMap<String, Value> =
        bootstrap_objects().iter().map(|(_, o)| (key(o), o["spec"].clone())).collect();
    assert_eq!(ours, recorded);
}

#[test]
fn classifies_requests_by_user_and_resource() {
    let mut flow = Flow::new(600);
    let with = |name: &str, groups: &[&str]| UserInfo::new(name, groups);
    let (admin, bob) = (
        with("root", &["system:masters", "system:authenticated"]),
        with("bob", &["system:authenticated"]),
    );
    let node = with("system:node:n", &["system:nodes", "system:authenticated"]);
    let manager = with("system:kube-controller-manager", &["system:authenticated"]);
    let (app, system) =
        (UserInfo::service_account("ns", "app"), UserInfo::service_account("kube-system", "x"));
    let on = Attributes::resource;
    let leases = "coordination.k8s.io";
    let cases = [
        (on(&admin, "get", "", "pods"), "exempt"),
        (Attributes::path(&bob, "get", "/livez"), "probes"),
        (Attributes::path(&bob, "get", "/metrics"), "global-default"),
        (on(&bob, "list", "", "pods").in_namespace("ns"), "global-default"),
        (on(&node, "patch", "", "nodes").with_subresource("status"), "system-node-high"),
        (on(&node, "update", leases, "leases").in_namespace("kube-node-lease"), "system-node-high"),
        (on(&node, "list", "", "pods"), "system-nodes"),
        (
            on(&manager, "update", leases, "leases").in_namespace("kube-system"),
            "system-leader-election",
        ),
        (on(&manager, "list", "", "pods"), "kube-controller-manager"),
        (on(&app, "list", "", "pods").in_namespace("ns"), "service-accounts"),
        (on(&system, "list", "", "pods"), "kube-system-service-accounts"),
    ];
    for (request, want) in cases {
        assert_eq!(&*flow.arrive(&request, 1, Duration::ZERO).schema, want, "{request}");
    }
}

/// The form in which the API returns a rule of cluster scope.
#[test]
fn matches_cluster_scope_without_namespaces() {
    let mut flow = Flow::new(10);
    let rules = json!([{
        "subjects": [{"kind": "User", "user": {"name": "jane"}}],
        "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": null, "clusterScope": true}]
    }]);
    let schema = json!({"metadata": {"name": "own"}, "spec": {"priorityLevelConfiguration": {"name": "workload-low"}, "matchingPrecedence": 1, "rules": rules}});
    flow.changed(Changed::of(&FLOW_SCHEMAS, &schema), Duration::ZERO);
    let jane = UserInfo::new("jane", &["system:authenticated"]);
    for (namespace, want) in [("", "own"), ("default", "global-default")] {
        let request = Attributes { namespace, ..Attributes::resource(&jane, "list", "", "nodes") };
        assert_eq!(&*flow.arrive(&request, 1, Duration::ZERO).schema, want, "{namespace}");
    }
}

/// Returns a configuration with a single level with these seats and queues.
fn one_level(seats: u32, queues: u32, length: u32) -> Flow {
    let mut flow = Flow::new(seats);
    for (resource, object) in bootstrap_objects() {
        flow.changed(Changed::of(resource, object).gone(), Duration::ZERO);
    }
    let response = json!({"type": "Queue", "queuing": {"queues": queues, "handSize": 1, "queueLengthLimit": length}});
    let level = json!({"metadata": {"name": "all"}, "spec": {"type": "Limited", "limited": {"nominalConcurrencyShares": 1, "limitResponse": response}}});
    flow.changed(Changed::of(&PRIORITY_LEVELS, &level), Duration::ZERO);
    let rules = json!([{
        "subjects": [{"kind": "User", "user": {"name": "*"}}],
        "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"], "clusterScope": true}]
    }]);
    let schema = json!({"metadata": {"name": "all"}, "spec": {"priorityLevelConfiguration": {"name": "all"}, "distinguisherMethod": {"type": "ByUser"}, "rules": rules}});
    flow.changed(Changed::of(&FLOW_SCHEMAS, &schema), Duration::ZERO);
    flow
}

fn arrive(flow: &mut Flow, user: &str, seats: u32, at: f64) -> Verdict {
    let user = UserInfo::new(user, &[]);
    flow.arrive(&Attributes::resource(&user, "get", "", "pods"), seats, secs(at)).verdict
}

#[test]
fn serves_others_during_flood() {
    let mut flow = one_level(1, 64, 100);
    let Verdict::Run(first) = arrive(&mut flow, "flood", 1, 0.0) else { panic!() };
    for _ in 0..50 {
        assert!(matches!(arrive(&mut flow, "flood", 1, 0.0), Verdict::Wait(_)));
    }
    let Verdict::Wait(modest) = arrive(&mut flow, "modest", 1, 0.1) else { panic!() };
    let mut running = first;
    let mut before = 0;
    for step in 1..10 {
        let started = flow.finish(running, secs(0.1 + 0.01 * f64::from(step)));
        assert_eq!(started.len(), 1);
        running = started[0];
        if running == modest {
            break;
        }
        before += 1;
    }
    assert!(running == modest && before <= 1, "{before} of the flood went before");
}

#[test]
fn rejects_requests_beyond_queues() {
    let mut flow = one_level(1, 1, 2);
    assert!(matches!(arrive(&mut flow, "a", 1, 0.0), Verdict::Run(_)));
    let Verdict::Wait(second) = arrive(&mut flow, "a", 1, 0.0) else { panic!() };
    assert!(matches!(arrive(&mut flow, "b", 1, 0.0), Verdict::Wait(_)));
    assert_eq!(arrive(&mut flow, "c", 1, 0.0), Verdict::Reject(RejectReason::QueueFull));
    assert!(flow.give_up(second, secs(1.0)).is_empty());
    assert!(matches!(arrive(&mut flow, "c", 1, 1.0), Verdict::Wait(_)));

    // The catch-all level has no queues.
    let mut flow = Flow::new(245);
    let nobody = UserInfo::new("x", &["system:authenticated"]);
    let global = bootstrap_objects()
        .iter()
        .find(|(_, o)| o["kind"] == "FlowSchema" && o["metadata"]["name"] == "global-default");
    flow.changed(Changed::of(&FLOW_SCHEMAS, &global.unwrap().1).gone(), Duration::ZERO);
    let request = Attributes::resource(&nobody, "get", "", "pods");
    let verdicts: Vec<Verdict> =
        (0..10).map(|_| flow.arrive(&request, 1, Duration::ZERO).verdict).collect();
    assert!(matches!(verdicts[0], Verdict::Run(_)));
    assert_eq!(verdicts[9], Verdict::Reject(RejectReason::ConcurrencyLimit));
}

#[test]
fn moves_seats_to_levels_with_demand() {
    let mut flow = Flow::new(600);
    let limit =
        |flow: &Flow, name: &str| flow.levels().into_iter().find(|l| l.name == name).unwrap().limit;
    let total = |flow: &Flow| flow.levels().iter().map(|l| l.limit).sum::<u32>();
    let before = limit(&flow, "workload-low");
    assert!(total(&flow) <= 600);
    let mut tickets = Vec::new();
    for i in 0..900 {
        let user = UserInfo::service_account(&format!("ns{}", i % 90), "app");
        let request = Attributes::resource(&user, "get", "", "pods").in_namespace("ns");
        if let Verdict::Run(t) | Verdict::Wait(t) = flow.arrive(&request, 1, Duration::ZERO).verdict
        {
            tickets.push(t);
        }
    }
    let started = flow.rebalance(secs(10.0));
    let after = limit(&flow, "workload-low");
    assert!(after > before && !started.is_empty(), "{before} became {after}");
    assert!(total(&flow) <= 600, "{:?}", flow.levels());
    // Seats that a level may not lend stay with it: leader election's share is 10 of 245.
    assert!(limit(&flow, "leader-election") >= 24, "{:?}", flow.levels());
    for ticket in tickets {
        flow.give_up(ticket, secs(11.0));
        flow.finish(ticket, secs(11.0));
    }
}

#[test]
fn drains_deleted_level() {
    let mut flow = one_level(1, 1, 5);
    let Verdict::Run(first) = arrive(&mut flow, "a", 1, 0.0) else { panic!() };
    let Verdict::Wait(second) = arrive(&mut flow, "a", 1, 0.0) else { panic!() };
    let level = json!({"metadata": {"name": "all"}});
    flow.changed(Changed::of(&PRIORITY_LEVELS, &level).gone(), secs(1.0));
    assert_eq!(arrive(&mut flow, "a", 1, 1.0), Verdict::Exempt, "the schema refers to nothing");
    assert_eq!(flow.finish(first, secs(2.0)), [second]);
    assert!(flow.finish(second, secs(3.0)).is_empty());
    assert!(flow.levels().is_empty());
}

#[derive(Clone, Debug)]
enum Step {
    Arrive { user: u8, seats: u32 },
    Finish(usize),
    GiveUp(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0_u8..6, 1_u32..4).prop_map(|(user, seats)| Step::Arrive { user, seats }),
        2 => any::<prop::sample::Index>().prop_map(|i| Step::Finish(i.index(1000))),
        1 => any::<prop::sample::Index>().prop_map(|i| Step::GiveUp(i.index(1000))),
    ]
}

proptest! {
    /// Seats are never oversold, queues never overfull, no request is lost, and none waits while all seats are free.
    #[test]
    fn keeps_counts_consistent(seats in 1_u32..6, steps in prop::collection::vec(step(), 0..200)) {
        let mut flow = one_level(seats, 3, 4);
        let mut running: Vec<(Ticket, u32)> = Vec::new();
        let mut waiting: Vec<(Ticket, u32)> = Vec::new();
        for (i, step) in steps.into_iter().enumerate() {
            let at = i as f64 * 0.1;
            let started = match step {
                Step::Arrive { user, seats } => {
                    match arrive(&mut flow, &format!("u{user}"), seats, at) {
                        Verdict::Run(ticket) => running.push((ticket, seats)),
                        Verdict::Wait(ticket) => waiting.push((ticket, seats)),
                        Verdict::Reject(why) => prop_assert_eq!(why, RejectReason::QueueFull),
                        Verdict::Exempt => prop_assert!(false),
                    }
                    Vec::new()
                }
                Step::Finish(n) if !running.is_empty() => {
                    let (ticket, _) = running.swap_remove(n % running.len());
                    flow.finish(ticket, secs(at))
                }
                Step::GiveUp(n) if !waiting.is_empty() => {
                    let (ticket, _) = waiting.swap_remove(n % waiting.len());
                    flow.give_up(ticket, secs(at))
                }
                _ => Vec::new(),
            };
            for ticket in started {
                let at = waiting.iter().position(|(t, _)| *t == ticket);
                prop_assert!(at.is_some(), "one was started that did not wait");
                running.push(waiting.swap_remove(at.unwrap()));
            }
            let in_use: u32 = running.iter().map(|(_, seats)| seats).sum();
            prop_assert!(in_use <= seats || running.len() == 1, "{} of {} seats", in_use, seats);
            prop_assert!(waiting.is_empty() || !running.is_empty());
            let state = flow.levels().remove(0);
            prop_assert_eq!((state.in_use, state.waiting), (in_use, waiting.len()));
            prop_assert!(state.waiting <= 3 * 4);
        }
    }

    /// Flows with constant demand get the same number of turns.
    #[test]
    fn shares_turns_equally(users in 2_usize..5, turns in 40_usize..120) {
        let mut flow = one_level(1, 512, 200);
        let mut owner = std::collections::HashMap::new();
        let mut served = vec![0_usize; users];
        let mut running = None;
        for _ in 0..turns {
            for user in 0..users {
                match arrive(&mut flow, &format!("user-{user}"), 1, 0.0) {
                    Verdict::Run(ticket) => { owner.insert(ticket, user); running = Some(ticket); }
                    Verdict::Wait(ticket) => { owner.insert(ticket, user); }
                    other => prop_assert!(false, "{:?}", other),
                }
            }
        }
        let mut at = 0.0;
        for _ in 0..turns * users / 2 {
            let Some(ticket) = running else { break };
            served[owner[&ticket]] += 1;
            at += 0.01;
            running = flow.finish(ticket, secs(at)).first().copied();
        }
        let (most, least) = (served.iter().max().unwrap(), served.iter().min().unwrap());
        prop_assert!(most - least <= 2, "{:?}", served);
    }
}

#[test]
fn admits_queues_and_rejects_requests() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let gate = Gate::new(8, Duration::from_millis(50));
        let user = UserInfo::new("bob", &["system:authenticated"]);
        let request = Attributes::resource(&user, "get", "", "pods");
        let mut held = Vec::new();
        let limit = gate.levels().into_iter().find(|l| l.name == "global-default").unwrap().limit;
        for _ in 0..limit {
            held.push(gate.enter(&request, 1).await.map_err(|e| e.to_string()).unwrap());
        }
        let refused = gate.enter(&request, 1).await.err().unwrap();
        assert_eq!(refused.reason, RejectReason::TimeOut);
        assert_eq!(
            (refused.status().code, refused.status().details.unwrap().retry_after_seconds),
            (429, 1)
        );
        // When one request ends, a queued one starts.
        let (entered, ()) = tokio::join!(gate.enter(&request, 1), async { drop(held.pop()) });
        assert!(entered.is_ok());
        // A future that is dropped while queued leaves no state behind.
        drop(tokio::time::timeout(Duration::from_millis(1), gate.enter(&request, 1)).await);
        drop((entered, held));
        assert!(
            gate.levels().iter().all(|l| l.in_use == 0 && l.waiting == 0),
            "{:?}",
            gate.levels()
        );
    });
}

#[test]
fn releases_limited_seat_at_its_time() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let gate = Gate::new(600, Duration::from_millis(50));
        let user = UserInfo::new("bob", &["system:authenticated"]);
        let watch = Attributes::resource(&user, "watch", "", "pods");
        let in_use = || gate.levels().iter().map(|level| level.in_use).sum::<u32>();
        let enter = async || gate.enter(&watch, 1).await.map_err(|e| e.to_string()).unwrap().permit;
        // A client that never reads the initial events loses the seat, which is released only once.
        let overdue = enter().await.for_at_most(Duration::ZERO);
        let kept = enter().await.for_at_most(Duration::from_secs(3600));
        let plain = enter().await;
        assert_eq!(in_use(), 3);
        gate.rebalance();
        assert_eq!(in_use(), 2);
        drop(overdue);
        assert_eq!(in_use(), 2);
        drop((kept, plain));
        assert_eq!(in_use(), 0);
    });
}
