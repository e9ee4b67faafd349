//! Extenders.

use super::*;
use crate::{
    AcceptedNode, Answer, Config, Consultation, Extender, Failure, NodeOpinions, NodeVictims,
    Profile, Question, RejectedNode, Sym,
};

const FILTER: Extender =
    Extender { resources: Vec::new(), filters: true, scores: false, preempts: false };

fn extended(extenders: Vec<Extender>, nodes: &[&str]) -> Core {
    let mut core = Core::new(Config { extenders, ..Config::default() });
    nodes.iter().for_each(|name| core.set_node(node(name, "2", json!({})), 0));
    core
}

fn question(decision: Option<Decision>) -> Consultation {
    match decision {
        Some(Decision::Consult(question)) => question,
        other => panic!("no question: {other:?}"),
    }
}

fn asked(question: &Consultation) -> Vec<&str> {
    let Question::Nodes(nodes) = &question.question else { panic!("{question:?}") };
    let mut names: Vec<_> = nodes.iter().map(|name| &**name).collect();
    names.sort_unstable();
    names
}

fn bound(decision: Option<Decision>) -> (String, String) {
    match decision {
        Some(Decision::Bind { pod, node, .. }) => (pod.id.name.to_string(), node.to_string()),
        other => panic!("not bound: {other:?}"),
    }
}

fn failure(decision: Option<Decision>) -> Failure {
    match decision {
        Some(Decision::Unschedulable(failure)) => failure,
        other => panic!("no failure: {other:?}"),
    }
}

fn accept(nodes: &[(&str, i64)]) -> Answer {
    let accepted =
        nodes.iter().map(|(name, score)| AcceptedNode { name: (*name).into(), score: *score });
    Answer::Nodes(NodeOpinions { accepted: accepted.collect(), rejected: Vec::new() })
}

fn reject(nodes: &[(&str, &str, bool)]) -> Answer {
    let rejected = nodes.iter().map(|(name, message, unresolvable)| RejectedNode {
        name: (*name).into(),
        message: (*message).to_owned(),
        unresolvable: *unresolvable,
    });
    Answer::Nodes(NodeOpinions { accepted: Vec::new(), rejected: rejected.collect() })
}

#[test]
fn extender_chooses_among_fitting_nodes() {
    let mut core = extended(vec![FILTER], &["a", "b", "c"]);
    core.set_node(node("small", "100m", json!({})), 0);
    core.set_pod(pod("p", "1", json!({})), 0);
    let question = question(core.next(0));
    assert_eq!(asked(&question), ["a", "b", "c"]);
    let answer = accept(&[("a", 1), ("c", 1000), ("small", i64::MAX), ("unknown", i64::MAX)]);
    assert_eq!(bound(core.answer(question.id, answer, 0)), ("p".into(), "c".into()));
    assert!(core.answer(question.id, accept(&[("a", 0)]), 0).is_none(), "it is answered");
}

#[test]
fn pods_without_interest_do_not_wait_for_extenders() {
    let managed = Extender { resources: vec![Sym::of("a.b/gpu")], ..FILTER };
    let mut core = extended(vec![managed], &[]);
    let gpus = json!({"status": {"allocatable": {"a.b/gpu": "8"}}});
    core.set_node(node("a", "8", gpus), 0);
    let gpu = |name: &str, priority: i32| {
        let resources = json!({"requests": {"cpu": "1", "a.b/gpu": "1"}});
        let containers = json!([{"image": "app", "resources": resources}]);
        pod(name, "1", json!({"spec": {"containers": containers, "priority": priority}}))
    };
    core.set_pod(gpu("first", 0), 0);
    let first = question(core.next(0));
    for (name, priority) in [("second", 0), ("third", 9)] {
        core.set_pod(gpu(name, priority), 0);
    }
    core.set_pod(pod("plain", "1", json!({})), 0);
    assert_eq!(bound(core.next(0)).0, "plain");
    assert!(core.next(0).is_none(), "the extender is asked about one Pod at a time");
    assert_eq!(core.queue_lengths().active, 3);
    assert_eq!(bound(core.answer(first.id, accept(&[("a", 0)]), 0)).0, "first");
    let third = question(core.next(0));
    assert_eq!(&*third.pod.id.name, "third", "the priority decides");
    // The Pod is deleted while it waits, and another one is while it is asked about.
    core.remove_pod("second", 0);
    core.remove_pod("third", 0);
    assert!(core.answer(third.id, accept(&[("a", 0)]), 0).is_none());
    assert!(core.next(0).is_none());
    assert_eq!(core.queue_lengths().active, 0);
}

#[test]
fn rejected_pod_is_told_why_and_retried_after_any_event() {
    let mut core = extended(vec![FILTER], &["a", "b"]);
    core.set_pod(pod("p", "1", json!({})), 0);
    let first = question(core.next(0));
    let answer = reject(&[("a", "no licence", true), ("b", "no licence", false), ("x", "?", true)]);
    let failed = failure(core.answer(first.id, answer, 0));
    assert!(!failed.is_error);
    let message = "0/2 nodes are available: 2 no licence.";
    assert!(failed.message.starts_with(message), "{}", failed.message);
    let preemption = "1 Preemption is not helpful for scheduling.";
    assert!(failed.message.ends_with(preemption), "{}", failed.message);
    assert!(core.next(0).is_none());
    core.set_pod(pod("other", "1", json!({"spec": {"nodeName": "a"}})), 5000);
    let again = question(core.next(5000));
    // An event while the extender thinks must not be lost.
    core.set_pod(pod("another", "1", json!({"spec": {"nodeName": "a"}})), 5001);
    let _ = failure(core.answer(again.id, reject(&[]), 5001));
    assert!(core.next(5002).is_none(), "each attempt calls the extender, so the backoff holds");
    let _ = question(core.next(7002));
}

#[test]
fn failure_of_extender_is_error_with_backoff() {
    let mut core = extended(vec![FILTER], &["a"]);
    core.set_pod(pod("p", "1", json!({})), 0);
    let first = question(core.next(0));
    let failed = failure(core.answer(first.id, Answer::Failed("it is down".into()), 0));
    assert!(failed.is_error && failed.nominated.is_none());
    assert_eq!(failed.message, "it is down");
    assert!(core.next(999).is_none());
    let again = question(core.next(1000));
    let wrong = core.answer(again.id, Answer::Victims(Vec::new()), 1000);
    assert!(failure(wrong).is_error);
}

#[test]
fn node_that_filled_up_meanwhile_is_asked_about_again() {
    let mut core = extended(vec![FILTER], &["a", "b"]);
    core.set_pod(pod("p", "2", json!({})), 0);
    let first = question(core.next(0));
    core.set_pod(pod("thief", "1", json!({"spec": {"nodeName": "a"}})), 0);
    let again = question(core.answer(first.id, accept(&[("a", 0)]), 0));
    assert_eq!(asked(&again), ["b"]);
    core.remove_node("b");
    let failed = failure(core.answer(again.id, accept(&[("b", 0)]), 0));
    assert!(failed.message.starts_with("0/1 nodes are available: 1 Insufficient cpu."));
}

#[test]
fn scorer_is_not_asked_about_one_node() {
    let scorer = Extender { filters: false, scores: true, ..FILTER };
    let mut core = extended(vec![scorer], &["a"]);
    core.set_pod(pod("p", "1", json!({})), 0);
    assert_eq!(bound(core.next(0)).1, "a");
}

#[test]
fn extender_chooses_victims() {
    let preempts = Extender { filters: false, preempts: true, ..FILTER };
    let mut core = extended(vec![preempts], &["a", "b"]);
    for (name, at) in [("va", "a"), ("vb", "b")] {
        core.set_pod(pod(name, "2", json!({"spec": {"nodeName": at}})), 0);
    }
    core.set_pod(pod("p", "2", json!({"spec": {"priority": 5}})), 0);
    let first = question(core.next(0));
    let Question::Victims(mut offered) = first.question.clone() else { panic!("{first:?}") };
    offered.sort_by(|x, y| x.node.cmp(&y.node));
    let names: Vec<_> = offered.iter().map(|v| (&*v.node, &*v.pods[0].id.name)).collect();
    assert_eq!(names, [("a", "va"), ("b", "vb")]);
    // One victim is not on the node that it is said to be on.
    let stranger = NodeVictims { node: "b".into(), ..offered[0].clone() };
    let unknown = NodeVictims { node: "unknown".into(), ..offered[0].clone() };
    let chosen = vec![offered[1].clone(), stranger, unknown];
    let failed = failure(core.answer(first.id, Answer::Victims(chosen), 0));
    let (at, victims) = failed.nominated.unwrap();
    assert_eq!((&*at, &*victims[0].id.name), ("b", "vb"));
    core.set_pod(pod("q", "2", json!({"spec": {"priority": 6}})), 0);
    let second = question(core.next(0));
    let failed = failure(core.answer(second.id, Answer::Victims(Vec::new()), 0));
    let message = "preemption: no candidate node for preemption";
    assert!(failed.message.ends_with(message), "{}", failed.message);
    core.set_pod(pod("r", "2", json!({"spec": {"priority": 7}})), 0);
    let third = question(core.next(0));
    let failed = failure(core.answer(third.id, Answer::Failed("it is down".into()), 0));
    assert!(failed.message.ends_with("preemption: it is down"), "{}", failed.message);
}

#[test]
fn nominated_node_is_asked_about_first() {
    let mut core = extended(vec![FILTER], &["a", "b"]);
    let nominated = json!({"status": {"nominatedNodeName": "a"}});
    core.set_pod(pod("p", "1", nominated), 0);
    let first = question(core.next(0));
    assert_eq!(asked(&first), ["a"]);
    let all = question(core.answer(first.id, reject(&[("a", "no", false)]), 0));
    assert_eq!(asked(&all), ["a", "b"]);
    assert_eq!(bound(core.answer(all.id, accept(&[("b", 0)]), 0)).1, "b");
}

#[test]
fn late_answer_does_not_reach_rebuilt_core() {
    let mut core = extended(vec![FILTER], &["a"]);
    core.set_pod(pod("p", "1", json!({})), 0);
    let first = question(core.next(0));
    let mut rebuilt = core.restart(0);
    rebuilt.set_node(node("a", "2", json!({})), 0);
    rebuilt.set_pod(pod("p", "1", json!({})), 0);
    let second = question(rebuilt.next(0));
    assert!(rebuilt.answer(first.id, accept(&[("a", 0)]), 0).is_none());
    assert_eq!(bound(rebuilt.answer(second.id, accept(&[("a", 0)]), 0)).1, "a");
}

#[test]
fn ignored_resources_are_not_checked() {
    let wants = |name: &str, resource: &str| {
        let containers = json!([{"image": "i", "resources": {"requests": {resource: "1"}}}]);
        pod(name, "1", json!({"spec": {"containers": containers}}))
    };
    let profile = Profile {
        ignored_resources: vec!["a.b/gpu".into()],
        ignored_resource_groups: vec!["c.d".into()],
        ..Profile::default()
    };
    let mut core = Core::new(Config { profiles: vec![profile], ..Config::default() });
    core.set_node(node("a", "2", json!({})), 0);
    for (name, resource) in [("p", "a.b/gpu"), ("q", "c.d/any")] {
        core.set_pod(wants(name, resource), 0);
        assert_eq!(bound(core.next(0)).0, name);
    }
    core.set_pod(wants("r", "a.b/nic"), 0);
    assert!(failure(core.next(0)).message.contains("Insufficient a.b/nic"));
}
