//! PodGroups.

use super::*;
use crate::{Config, Failure, queue::QueueLengths};

fn gangs(nodes: impl IntoIterator<Item = Node>) -> Core {
    let mut core = Core::new(Config { gangs: true, ..Config::default() });
    nodes.into_iter().for_each(|node| core.set_node(node, 0));
    core
}

fn set_group(core: &mut Core, name: &str, policy: Value, now: u64) {
    let view = json!({"metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {"schedulingPolicy": policy}});
    let view = serde_json::from_value(view).unwrap();
    core.set_pod_group(&"default".into(), &name.into(), Some(&view), now);
}

fn gang(count: usize) -> Value {
    json!({"gang": {"minCount": count}})
}

fn member(name: &str, group: &str, cpu: &str, priority: i32) -> Arc<Pod> {
    let spec = json!({"schedulingGroup": {"podGroupName": group}, "priority": priority});
    pod(name, cpu, json!({ "spec": spec }))
}

/// The decisions of one time.
#[derive(Default)]
struct Decisions {
    /// The bound Pods with their nodes.
    bound: Vec<(String, String)>,
    failures: Vec<Failure>,
}

impl Decisions {
    fn victims(&self) -> Vec<&str> {
        let victims = self.failures.iter().filter_map(|failure| failure.nominated.as_ref());
        let mut names: Vec<_> = victims.flat_map(|(_, pods)| pods).map(|p| &*p.id.name).collect();
        names.sort_unstable();
        names
    }
}

fn decide(core: &mut Core, now: u64) -> Decisions {
    let mut out = Decisions::default();
    // A decision that led to itself would never end.
    for _ in 0..100 {
        match core.next(now) {
            None => return out,
            Some(Decision::Bind { pod, node, .. }) => {
                out.bound.push((pod.id.name.to_string(), node.to_string()));
            }
            Some(Decision::Unschedulable(failure)) => out.failures.push(failure),
            Some(Decision::Consult(_)) => panic!("there is no extender"),
        }
    }
    panic!("the scheduler does not come to rest");
}

fn outcomes(core: &mut Core) -> Vec<(bool, String)> {
    core.take_outcomes().into_iter().map(|o| (o.scheduled, o.message)).collect()
}

#[test]
fn gang_waits_for_its_group_and_its_pods() {
    let mut core = gangs([node("a", "8", json!({}))]);
    core.set_pod(member("p1", "g", "1", 0), 0);
    core.set_pod(member("p2", "g", "1", 0), 0);
    assert!(core.next(0).is_none(), "the group does not exist");
    set_group(&mut core, "g", gang(3), 1);
    assert!(core.next(1).is_none(), "the group has too few Pods");
    assert_eq!(core.queue_lengths(), QueueLengths { gated: 2, ..QueueLengths::default() });
    core.set_pod(member("p3", "g", "1", 0), 2);
    assert_eq!(decide(&mut core, 2).bound.len(), 3);
    assert_eq!(outcomes(&mut core), [(true, String::new())]);
    // A later Pod joins those that have a node.
    core.set_pod(member("p4", "g", "1", 0), 3);
    assert_eq!(decide(&mut core, 3).bound.len(), 1);
}

#[test]
fn gang_gets_all_its_nodes_or_none() {
    let mut core = gangs([node("a", "2", json!({})), node("b", "1", json!({}))]);
    set_group(&mut core, "g", gang(4), 0);
    for name in ["p1", "p2", "p3", "p4", "p5"] {
        core.set_pod(member(name, "g", "1", 0), 0);
    }
    let decisions = decide(&mut core, 0);
    assert!(decisions.bound.is_empty());
    assert_eq!(decisions.failures.len(), 5);
    let [(scheduled, message)] = &outcomes(&mut core)[..] else { panic!("one outcome") };
    assert!(!scheduled);
    assert!(
        message.starts_with("3 of 4 required pods of pod group \"g\" can be scheduled: 0/2 nodes"),
        "{message}"
    );
    // Nothing is reserved for it.
    core.set_pod(pod("other", "2", json!({})), 1);
    assert_eq!(decide(&mut core, 1).bound, [("other".to_owned(), "a".to_owned())]);
    core.set_node(node("c", "4", json!({})), 2000);
    assert_eq!(decide(&mut core, 2000).bound.len(), 5);
    assert!(outcomes(&mut core)[0].0);
}

#[test]
fn competing_gangs_do_not_share_the_room_of_one() {
    let mut core = gangs([node("a", "3", json!({}))]);
    for group in ["g", "h"] {
        set_group(&mut core, group, gang(3), 0);
    }
    // The Pods arrive in turn, as of two controllers at the same time.
    for name in ["1", "2", "3"] {
        for group in ["g", "h"] {
            core.set_pod(member(&format!("{group}{name}"), group, "1", 0), 0);
        }
    }
    let first = decide(&mut core, 0);
    assert_eq!((first.bound.len(), first.failures.len()), (3, 3));
    let group = first.bound[0].0[..1].to_owned();
    assert!(first.bound.iter().all(|(name, _)| name.starts_with(&group)));
    for (name, _) in &first.bound {
        core.remove_pod(name, 5000);
    }
    assert_eq!(decide(&mut core, 5000).bound.len(), 3);
}

#[test]
fn gang_preempts_only_if_it_fits_afterwards() {
    let fill = |core: &mut Core| {
        for (name, node) in [("a1", "a"), ("b1", "b")] {
            core.set_pod(pod(name, "2", json!({"spec": {"nodeName": node}})), 0);
        }
        core.set_pod(pod("vip", "2", json!({"spec": {"nodeName": "c", "priority": 100}})), 0);
    };
    let nodes = || ["a", "b", "c"].map(|name| node(name, "2", json!({})));
    let mut core = gangs(nodes());
    fill(&mut core);
    set_group(&mut core, "g", gang(3), 0);
    for name in ["p1", "p2", "p3"] {
        core.set_pod(member(name, "g", "2", 10), 0);
    }
    let decisions = decide(&mut core, 0);
    assert_eq!((decisions.bound.len(), decisions.failures.len()), (0, 3));
    assert!(decisions.victims().is_empty(), "two of three Pods would not help");

    let mut core = gangs(nodes());
    fill(&mut core);
    set_group(&mut core, "g", gang(2), 0);
    for name in ["p1", "p2"] {
        core.set_pod(member(name, "g", "2", 10), 0);
    }
    let decisions = decide(&mut core, 0);
    assert!(decisions.bound.is_empty());
    assert_eq!(decisions.victims(), ["a1", "b1"]);
    core.remove_pod("a1", 5000);
    assert!(decide(&mut core, 5000).bound.is_empty(), "the second victim is still there");
    core.remove_pod("b1", 20_000);
    assert_eq!(decide(&mut core, 20_000).bound.len(), 2);
}

#[test]
fn gang_of_differing_schedulers_is_rejected() {
    let profiles = ["default-scheduler", "other"].map(crate::Profile::new).to_vec();
    let mut core = Core::new(Config { gangs: true, profiles, ..Config::default() });
    core.set_node(node("a", "8", json!({})), 0);
    set_group(&mut core, "g", gang(2), 0);
    core.set_pod(member("p1", "g", "1", 0), 0);
    let spec = json!({"schedulingGroup": {"podGroupName": "g"}, "schedulerName": "other"});
    core.set_pod(pod("p2", "1", json!({ "spec": spec })), 0);
    let decisions = decide(&mut core, 0);
    assert!(decisions.bound.is_empty());
    let message = &outcomes(&mut core)[0].1;
    assert!(message.ends_with("must have the same schedulerName"), "{message}");
}

#[test]
fn pods_of_a_basic_group_are_scheduled_one_by_one() {
    let mut core = gangs([node("a", "1", json!({}))]);
    core.set_pod(member("p1", "g", "1", 0), 0);
    assert!(core.next(0).is_none(), "the group does not exist");
    set_group(&mut core, "g", json!({"basic": {}}), 1);
    core.set_pod(member("p2", "g", "1", 0), 1);
    let decisions = decide(&mut core, 1);
    assert_eq!((decisions.bound.len(), decisions.failures.len()), (1, 1));
}

#[test]
fn groups_do_not_matter_without_the_feature() {
    let mut core = core([node("a", "1", json!({}))]);
    core.set_pod(member("p", "g", "1", 0), 0);
    assert_eq!(decide(&mut core, 0).bound.len(), 1);
}

#[test]
fn panic_within_a_gang_leaves_no_pod_on_a_node() {
    let machine = || node("a", "2", json!({}));
    let mut before = gangs([machine()]);
    set_group(&mut before, "g", gang(3), 0);
    for name in ["p1", "p2", "p3"] {
        before.set_pod(member(name, "g", "1", 0), 0);
    }
    // The gang is decided for, but nothing of the decision was carried out.
    let first = before.next(0);
    assert!(matches!(first, Some(Decision::Unschedulable(_))));
    let mut after = before.restart(1);
    after.set_node(machine(), 1);
    set_group(&mut after, "g", gang(3), 1);
    let alone = pod("alone", "2", json!({}));
    after.set_pod(alone, 1);
    assert_eq!(decide(&mut after, 1).bound, [("alone".to_owned(), "a".to_owned())]);
}

/// The time of a gang grows with its Pods, not with their product with the other Pods of the queue.
#[test]
fn large_gang_that_does_not_fit_stops_early() {
    let mut core = gangs([node("a", "10", json!({}))]);
    set_group(&mut core, "g", gang(3000), 0);
    for number in 0..3000 {
        core.set_pod(member(&format!("p{number}"), "g", "1", 0), 0);
    }
    let mut reasons = std::collections::BTreeMap::<String, usize>::new();
    while let Some(Decision::Unschedulable(failure)) = core.next(0) {
        *reasons.entry(failure.message).or_default() += 1;
    }
    assert_eq!(reasons.values().sum::<usize>(), 3000);
    assert_eq!(reasons["other pods of the pod group cannot be scheduled"], 2989);
}
