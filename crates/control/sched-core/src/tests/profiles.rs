use super::*;
use crate::{Config, FitScoring, Profile};

fn core_with(profile: Profile, nodes: impl IntoIterator<Item = Node>) -> Core {
    let mut core = Core::new(Config { profiles: vec![profile], ..Config::default() });
    nodes.into_iter().for_each(|node| core.set_node(node, 0));
    core
}

/// Returns the node that a Pod was bound to, or the message of its refusal.
fn outcome(core: &mut Core) -> Result<String, String> {
    match core.next(0) {
        Some(Decision::Bind { node, .. }) => Ok(node.to_string()),
        Some(Decision::Unschedulable(failure)) => Err(failure.message),
        None => Err("no decision".to_owned()),
        Some(Decision::Consult(question)) => panic!("{question:?}"),
    }
}

fn tainted() -> Node {
    node("a", "4", json!({"spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}}))
}

#[test]
fn skips_filter_that_the_profile_disables() {
    let mut profile = Profile::default();
    assert!(profile.set_filter("TaintToleration", false));
    assert!(!profile.set_filter("NoSuchPlugin", false));
    let mut core = core_with(profile, [tainted()]);
    core.set_pod(pod("p", "1", json!({})), 0);
    assert_eq!(outcome(&mut core).as_deref(), Ok("a"));
    let mut core = core_with(Profile::default(), [tainted()]);
    core.set_pod(pod("p", "1", json!({})), 0);
    assert!(outcome(&mut core).is_err());
}

#[test]
fn gives_each_pod_the_profile_that_it_names() {
    let mut lenient = Profile::new("lenient");
    lenient.set_filter("TaintToleration", false);
    let profiles = vec![Profile::default(), lenient];
    let mut core = Core::new(Config { profiles, ..Config::default() });
    core.set_node(tainted(), 0);
    core.set_pod(pod("strict", "1", json!({})), 0);
    assert!(outcome(&mut core).is_err());
    core.set_pod(pod("lenient", "1", json!({"spec": {"schedulerName": "lenient"}})), 0);
    assert_eq!(outcome(&mut core).as_deref(), Ok("a"));
    core.set_pod(pod("foreign", "1", json!({"spec": {"schedulerName": "other"}})), 0);
    assert_eq!(outcome(&mut core), Err("no decision".to_owned()));
}

#[test]
fn applies_added_affinity_to_every_pod() {
    let added = json!({
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "pool", "operator": "In", "values": ["blue"]}]}]},
        "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 5, "preference":
            {"matchExpressions": [{"key": "fast", "operator": "Exists"}]}}],
    });
    let mut profile = Profile::default();
    profile.set_added_affinity(&serde_json::from_value(added).unwrap());
    let labelled =
        |name: &str, labels: Value| node(name, "4", json!({"metadata": {"labels": labels}}));
    let mut core = core_with(
        profile.clone(),
        [
            labelled("red", json!({"pool": "red", "fast": ""})),
            labelled("slow", json!({"pool": "blue"})),
            labelled("fast", json!({"pool": "blue", "fast": ""})),
        ],
    );
    core.set_pod(pod("p", "1", json!({})), 0);
    assert_eq!(outcome(&mut core).as_deref(), Ok("fast"));
    let mut core = core_with(profile, [labelled("red", json!({"pool": "red"}))]);
    core.set_pod(pod("p", "1", json!({})), 0);
    let message = outcome(&mut core).unwrap_err();
    assert!(
        message.contains("1 node(s) didn't match scheduler-enforced node affinity"),
        "{message}"
    );
}

#[test]
fn spreads_pods_by_the_profiles_default_constraints() {
    let list = json!([{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}]);
    let constraints: Vec<crate::SpreadView> = serde_json::from_value(list).unwrap();
    let mut profile = Profile::default();
    profile.set_default_spread(&constraints);
    let zone =
        |name: &str, cpu: &str| node(name, cpu, json!({"metadata": {"labels": {"zone": name}}}));
    let mut core = core_with(profile, [zone("a", "8"), zone("b", "1")]);
    let service = serde_json::from_value(json!({"spec": {"selector": {"app": "web"}}})).unwrap();
    let key = SpreaderKey { kind: "Service", namespace: "default", name: "web" };
    core.set_spreader(key, Some(&service));
    let web = |name: &str| pod(name, "1", json!({"metadata": {"labels": {"app": "web"}}}));
    let mut nodes: Vec<_> = (0..2)
        .map(|i| {
            core.set_pod(web(&format!("p{i}")), 0);
            outcome(&mut core).unwrap()
        })
        .collect();
    nodes.sort();
    assert_eq!(nodes, ["a", "b"]);
    core.set_pod(web("third"), 0);
    assert_eq!(outcome(&mut core).as_deref(), Ok("a"));
    // The other zone is full, and another Pod in this zone would be uneven.
    core.set_pod(web("fourth"), 0);
    let message = outcome(&mut core).unwrap_err();
    assert!(message.contains("didn't match pod topology spread constraints"), "{message}");
    core.remove_pod("third", 1);
    assert!(matches!(core.next(10_000), Some(Decision::Bind { .. })));
}

#[test]
fn prefers_fuller_nodes_by_most_allocated() {
    let fit = FitScoring { most_allocated: true, cpu: 1, memory: 0 };
    let mut profile = Profile { fit, ..Profile::default() };
    profile.set_weight("NodeResourcesBalancedAllocation", 0);
    let full = json!({"spec": {"nodeName": "full"}});
    for (profile, expected) in [(profile, "full"), (Profile::default(), "empty")] {
        let mut core = core_with(profile, ["full", "empty"].map(|name| node(name, "8", json!({}))));
        core.set_pod(pod("there", "4", full.clone()), 0);
        core.set_pod(pod("p", "1", json!({})), 0);
        assert_eq!(outcome(&mut core).as_deref(), Ok(expected));
    }
}

#[test]
fn evicts_nothing_without_default_preemption() {
    let profile = Profile { preempts: false, ..Profile::default() };
    let mut core = core_with(profile, [node("a", "1", json!({}))]);
    core.set_pod(pod("low", "1", json!({"spec": {"nodeName": "a"}})), 0);
    core.set_pod(pod("vip", "1", json!({"spec": {"priority": 9}})), 0);
    assert_eq!(
        outcome(&mut core).unwrap_err(),
        "0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate"
    );
}

#[test]
fn looks_at_the_share_of_nodes_that_the_profile_names() {
    for (percentage, least) in [(100, 400), (50, 200), (0, 188)] {
        let profile = Profile { percentage_of_nodes_to_score: percentage, ..Profile::default() };
        let mut core = core_with(profile, (0..400).map(|i| node(&format!("n{i}"), "4", json!({}))));
        core.set_pod(pod("p", "1", json!({})), 0);
        let Some(Decision::Bind { feasible, .. }) = core.next(0) else { panic!() };
        assert_eq!(feasible, least, "{percentage} percent");
    }
}
