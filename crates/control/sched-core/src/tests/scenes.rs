use super::*;
use crate::{Decision, queue::QueueLengths};

fn bound(decision: Option<Decision>) -> Arc<str> {
    match decision {
        Some(Decision::Bind { node, .. }) => node,
        other => panic!("expected a binding, got {other:?}"),
    }
}

fn refused(decision: Option<Decision>) -> crate::Failure {
    match decision {
        Some(Decision::Unschedulable(failure)) => failure,
        other => panic!("expected a refusal, got {other:?}"),
    }
}

#[test]
fn failure_message_matches_upstream() {
    let taint = json!({"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}});
    let mut core =
        core([node("a", "1", json!({})), node("b", "8", taint.clone()), node("c", "8", taint)]);
    core.set_pod(pod("big", "2", json!({})), 0);
    let failure = refused(core.next(0));
    assert_eq!(
        failure.message,
        "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) had untolerated taint(s). no new claims to deallocate, preemption: \
         0/3 nodes are available: 3 Preemption is not helpful for scheduling."
    );
}

#[test]
fn reports_missing_nodes_and_retries_on_first_node() {
    let mut core = core([]);
    core.set_pod(pod("p", "1", json!({})), 0);
    assert_eq!(refused(core.next(0)).message, "no nodes available to schedule pods");
    assert!(core.next(10).is_none());
    core.set_node(node("a", "4", json!({})), 20);
    assert_eq!(&*bound(core.next(20)), "a");
}

#[test]
fn wakes_pods_only_for_relevant_events() {
    let mut core = core([node("a", "2", json!({})), node("b", "1", json!({}))]);
    core.set_pod(pod("first", "2", json!({})), 0);
    assert_eq!(&*bound(core.next(0)), "a");
    core.set_pod(pod("second", "2", json!({})), 0);
    refused(core.next(0));
    core.set_node(node("b", "1500m", json!({})), 1);
    assert_eq!(core.queue_lengths(), QueueLengths { unschedulable: 1, ..QueueLengths::default() });
    core.remove_pod("first", 2);
    assert_eq!(&*bound(core.next(2)), "a");
}

#[test]
fn orders_by_priority_and_holds_gated_pods() {
    let mut core = core([node("a", "8", json!({}))]);
    core.set_pod(pod("low", "1", json!({})), 0);
    core.set_pod(pod("gated", "1", json!({"spec": {"schedulingGates": [{"name": "x"}]}})), 0);
    core.set_pod(pod("high", "1", json!({"spec": {"priority": 10}})), 0);
    let names: Vec<_> = std::iter::from_fn(|| match core.next(0)? {
        Decision::Bind { pod, .. } => Some(pod.id.name.to_string()),
        Decision::Unschedulable(_) | Decision::Consult(_) => None,
    })
    .collect();
    assert_eq!(names, ["high", "low"]);
    core.set_pod(pod("gated", "1", json!({})), 0);
    assert_eq!(&*bound(core.next(0)), "a");
}

#[test]
fn long_decisions_of_a_namespace_delay_no_others() {
    let mut core = core([node("a", "64", json!({}))]);
    for number in 0..50 {
        let evil = json!({"metadata": {"namespace": "evil"}, "spec": {"priority": 10}});
        core.set_pod(pod(&format!("evil{number:02}"), "1", evil), 0);
    }
    let mut now = 0;
    let mut decide = |core: &mut Core, duration: u64| {
        let Some(Decision::Bind { pod, .. }) = core.next(now) else { panic!("nothing to bind") };
        now += duration;
        core.charge(&pod, duration, now);
        pod.id.namespace.to_string()
    };
    // Alone, the namespace uses all of the time.
    for _ in 0..10 {
        assert_eq!(decide(&mut core, 2000), "evil");
    }
    for number in 0..3 {
        core.set_pod(pod(&format!("good{number}"), "1", json!({})), 0);
    }
    for _ in 0..3 {
        assert_eq!(decide(&mut core, 1), "default");
    }
    assert_eq!(decide(&mut core, 2000), "evil", "no Pod of another namespace waits");
    core.set_pod(pod("late", "1", json!({})), 0);
    assert_eq!(decide(&mut core, 2500), "default");
    // The delays of both have their end, and the priority counts again.
    assert_eq!(decide(&mut core, 50), "evil");
    core.set_pod(pod("last", "1", json!({})), 0);
    assert_eq!(decide(&mut core, 50), "evil", "a short decision delays nothing");
}

#[test]
fn preempts_least_important_pods() {
    let mut core = core([node("a", "4", json!({})), node("b", "4", json!({}))]);
    for (name, node, cpu, priority) in
        [("a1", "a", "2", 5), ("a2", "a", "2", 1), ("b1", "b", "1", 3), ("b2", "b", "3", 5)]
    {
        core.set_pod(pod(name, cpu, json!({"spec": {"nodeName": node, "priority": priority}})), 0);
    }
    core.set_pod(pod("vip", "2", json!({"spec": {"priority": 100}})), 0);
    let failure = refused(core.next(0));
    let (node, victims) = failure.nominated.unwrap();
    assert_eq!((&*node, victims.len(), &*victims[0].id.name), ("a", 1, "a2"));
    // Another Pod of the same priority does not take the room that the victim leaves.
    core.remove_pod("a2", 1);
    let rival = json!({"spec": {"priority": 100, "preemptionPolicy": "Never"}});
    core.set_pod(pod("rival", "2", rival), 1);
    let mut where_to = std::collections::BTreeMap::new();
    while let Some(decision) = core.next(2) {
        if let Decision::Bind { pod, node, .. } = decision {
            where_to.insert(pod.id.name.to_string(), node.to_string());
        }
    }
    assert_eq!(where_to.get("vip").map(String::as_str), Some("a"));
    assert_eq!(where_to.get("rival"), None);
}

#[test]
fn preemption_respects_budget_if_possible() {
    let mut core = core([node("a", "2", json!({})), node("b", "2", json!({}))]);
    let labelled = json!({"metadata": {"labels": {"app": "db"}}, "spec": {"nodeName": "a"}});
    core.set_pod(pod("kept", "2", labelled), 0);
    core.set_pod(pod("gone", "2", json!({"spec": {"nodeName": "b", "priority": 2}})), 0);
    let budget = json!({"spec": {"selector": {"matchLabels": {"app": "db"}}}});
    core.set_budget("default", "db", Some(&serde_json::from_value(budget).unwrap()));
    core.set_pod(pod("vip", "2", json!({"spec": {"priority": 100}})), 0);
    let (node, victims) = refused(core.next(0)).nominated.unwrap();
    assert_eq!((&*node, &*victims[0].id.name), ("b", "gone"));
}

#[test]
fn reports_preemption_policy_never() {
    let mut core = core([node("a", "1", json!({}))]);
    core.set_pod(pod("low", "1", json!({"spec": {"nodeName": "a"}})), 0);
    let spec = json!({"spec": {"priority": 9, "preemptionPolicy": "Never"}});
    core.set_pod(pod("p", "1", spec), 0);
    assert_eq!(
        refused(core.next(0)).message,
        "0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate, preemption: not eligible due to preemptionPolicy=Never."
    );
}

#[test]
fn spreads_pods_of_service_by_default() {
    let mut core = core((0..4).map(|i| node(&format!("n{i}"), "16", json!({}))));
    let service = serde_json::from_value(json!({"spec": {"selector": {"app": "web"}}})).unwrap();
    let key = SpreaderKey { kind: "Service", namespace: "default", name: "web" };
    core.set_spreader(key, Some(&service));
    let mut nodes = std::collections::BTreeSet::new();
    for i in 0..4 {
        core.set_pod(
            pod(&format!("p{i}"), "0", json!({"metadata": {"labels": {"app": "web"}}})),
            0,
        );
        nodes.insert(bound(core.next(0)));
    }
    assert_eq!(nodes.len(), 4);
}

#[test]
fn checks_only_named_node_for_daemon_pod() {
    let mut core = core((0..3).map(|i| node(&format!("n{i}"), "1", json!({}))));
    let affinity = json!({"spec": {"affinity": {"nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]}}}}});
    core.set_pod(pod("d1", "1", affinity.clone()), 0);
    assert_eq!(&*bound(core.next(0)), "n1");
    core.set_pod(pod("d2", "1", affinity), 0);
    assert!(refused(core.next(0)).message.starts_with(
        "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) didn't satisfy plugin(s) [NodeAffinity]."
    ));
}

#[test]
fn failed_binding_frees_resources_and_retries() {
    let mut core = core([node("a", "1", json!({}))]);
    core.set_pod(pod("p", "1", json!({})), 0);
    let Some(Decision::Bind { pod, .. }) = core.next(0) else { panic!() };
    assert_eq!(core.cluster().hot[0].used_cpu, 1000);
    core.bind_failed(&pod.id, 10);
    assert_eq!(core.cluster().hot[0].used_cpu, 0);
    assert!(core.next(11).is_none());
    assert_eq!(core.next_time(), Some(1010));
    assert_eq!(&*bound(core.next(1010)), "a");
}

#[test]
fn reports_unbound_and_missing_claims() {
    let mut core = core([node("a", "1", json!({}))]);
    let spec = json!({"spec": {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]}});
    core.set_pod(pod("p", "1", spec), 0);
    assert!(
        refused(core.next(0))
            .message
            .starts_with("0/1 nodes are available: persistentvolumeclaim \"data\" not found.")
    );
    let claim = json!({"metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
        "spec": {"volumeName": "pv"}});
    let claim = serde_json::from_value(claim).unwrap();
    core.set_claim(&"default".into(), "data", Some(&claim), 1);
    core.set_volume("pv", Some(&Default::default()), 1);
    assert_eq!(&*bound(core.next(1)), "a");
}

#[test]
fn requires_features_that_nodes_declare() {
    let feature = "RestartAllContainersOnContainerExits";
    let mut core = core([node("old", "4", json!({}))]);
    let rules = json!([{"action": "RestartAllContainers"}]);
    let spec = json!({"containers": [{"image": "app", "restartPolicyRules": rules}]});
    core.set_pod(pod("p", "1", json!({ "spec": spec })), 0);
    core.set_pod(pod("plain", "1", json!({})), 0);
    let failure = refused(core.next(0));
    let reason = "1 node declared features check failed - unsatisfied requirements: RestartAllContainersOnContainerExits.";
    assert!(failure.message.contains(reason), "{}", failure.message);
    assert_eq!(&*bound(core.next(0)), "old");
    core.set_node(node("old", "4", json!({"status": {"declaredFeatures": [feature]}})), 5000);
    assert_eq!(&*bound(core.next(5000)), "old");
}
