//! Preemption: chooses the node on which evicting the least important Pods makes room.

use std::{cmp::Reverse, sync::Arc};

use crate::{
    cluster::Cluster,
    explain::Reasons,
    index::NodeIx,
    labels::{Labels, Selector},
    pod::Pod,
    profile::Candidates,
    schedule::{Diagnosis, NominatedPods, Turn, check_node, rivals},
    sym::Sym,
    view::BudgetView,
};

/// The fields of a PodDisruptionBudget that preemption uses.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    namespace: Sym,
    selector: Selector,
    allowed: i64,
    /// Pods whose eviction is already counted.
    disrupted: Vec<Box<str>>,
}

impl Budget {
    pub(crate) fn new(namespace: &str, view: &BudgetView) -> Self {
        Self {
            namespace: Sym::of(namespace),
            selector: view.spec.selector.as_ref().map_or_else(Selector::default, Selector::new),
            allowed: view.status.disruptions_allowed,
            disrupted: view.status.disrupted_pods.keys().cloned().collect(),
        }
    }

    fn covers(&self, pod: &Pod) -> bool {
        self.namespace == pod.namespace_symbol
            && pod.labels != Labels::default()
            && !self.selector.is_empty()
            && self.selector.matches(&pod.labels)
            && !self.disrupted.iter().any(|name| **name == *pod.id.name)
    }
}

/// The victims on one node.
#[derive(Debug)]
pub(crate) struct Candidate {
    pub(crate) node: NodeIx,
    pub(crate) victims: Vec<Arc<Pod>>,
    /// The number of victims whose eviction violates a budget.
    pub(crate) violations: usize,
}

/// Returns the candidate whose victims are the least important.
pub(crate) fn pick(candidates: Vec<Candidate>) -> Option<Candidate> {
    candidates.into_iter().min_by_key(cost)
}

/// Finds nodes on which the eviction of less important Pods makes room, at least one. The error is the reason for the
/// Event.
pub(crate) fn preempt(
    cluster: &mut Cluster,
    pod: &Pod,
    diagnosis: &Diagnosis,
    nominated: &NominatedPods,
    budgets: &[Budget],
    turn: &mut Turn,
) -> Result<Vec<Candidate>, String> {
    if pod.never_preempts {
        return Err("not eligible due to preemptionPolicy=Never.".into());
    }
    if waits_for_victims(cluster, pod) {
        return Err("not eligible due to a terminating pod on the nominated node.".into());
    }
    let total = cluster.node_count();
    let nodes = &diagnosis.candidates;
    let mut reasons = Diagnosis::default();
    reasons
        .reasons
        .add("Preemption is not helpful for scheduling".into(), total.saturating_sub(nodes.len()));
    let Candidates { percentage, absolute } = cluster.profiles.of(&pod.scheduler_name).candidates;
    let limit = (nodes.len() * percentage / 100).max(absolute);
    let offset = turn.random(nodes.len());
    let mut candidates: Vec<Candidate> = Vec::new();
    for at in 0..nodes.len() {
        let node = nodes[(offset + at) % nodes.len()];
        candidates.extend(victims(cluster, pod, node, nominated, budgets, &mut reasons));
        if candidates.len() >= limit {
            break;
        }
    }
    if candidates.is_empty() {
        return Err(Reasons::message(&reasons.reasons, total));
    }
    Ok(candidates)
}

/// Reports whether the Pod has a nominated node that a less important Pod is already leaving.
fn waits_for_victims(cluster: &Cluster, pod: &Pod) -> bool {
    let node = pod.nominated_node.as_ref().and_then(|name| cluster.find_node(name));
    node.is_some_and(|ix| {
        cluster.pods_on(ix).iter().any(|p| p.terminating && p.priority < pod.priority)
    })
}

/// Finds the smallest set of lower-priority Pods that must leave the node, and restores the cluster.
fn victims(
    cluster: &mut Cluster,
    pod: &Pod,
    node: NodeIx,
    nominated: &NominatedPods,
    budgets: &[Budget],
    reasons: &mut Diagnosis,
) -> Option<Candidate> {
    let mut lower: Vec<_> =
        cluster.pods_on(node).iter().filter(|p| p.priority < pod.priority).cloned().collect();
    if lower.is_empty() {
        reasons.reasons.add("No preemption victims found for incoming pod".into(), 1);
        return None;
    }
    let rivals: Vec<_> = rivals(nominated, pod, node).cloned().collect();
    rivals.iter().for_each(|rival| cluster.place_pod(rival.clone(), node));
    lower.iter().for_each(|p| cluster.unplace_pod(p, node));
    let candidate = check_node(cluster, pod, node, Some(reasons)).then(|| {
        // Reprieve the most important Pods first, and before them those that a budget protects.
        lower.sort_by(|a, b| importance(a).cmp(&importance(b)));
        let (protected, others) = split_by_budget(&lower, budgets);
        let mut spare = |pods: Vec<Arc<Pod>>| {
            let mut gone = Vec::new();
            for p in pods {
                cluster.place_pod(p.clone(), node);
                if !check_node(cluster, pod, node, None) {
                    cluster.unplace_pod(&p, node);
                    gone.push(p);
                }
            }
            gone
        };
        let mut victims = spare(protected);
        let violations = victims.len();
        victims.extend(spare(others));
        victims.sort_by(|a, b| importance(a).cmp(&importance(b)));
        Candidate { node, victims, violations }
    });
    let gone = candidate.as_ref().map_or(&lower, |candidate| &candidate.victims);
    gone.iter().for_each(|p| cluster.place_pod(p.clone(), node));
    rivals.iter().for_each(|rival| cluster.unplace_pod(rival, node));
    candidate
}

/// The sort key of importance: priority first, then the earlier start.
fn importance(pod: &Pod) -> (Reverse<i32>, &str, &str) {
    (Reverse(pod.priority), &pod.started, &pod.id.uid)
}

/// Returns (Pods whose eviction would violate a budget, the others), each in the given order.
fn split_by_budget(pods: &[Arc<Pod>], budgets: &[Budget]) -> (Vec<Arc<Pod>>, Vec<Arc<Pod>>) {
    let mut allowed: Vec<i64> = budgets.iter().map(|b| b.allowed).collect();
    let breaks_budget = |pod: &Arc<Pod>| {
        let mut broken = false;
        for (budget, allowed) in budgets.iter().zip(&mut allowed) {
            if budget.covers(pod) {
                *allowed -= 1;
                broken |= *allowed < 0;
            }
        }
        broken
    };
    pods.iter().cloned().partition(breaks_budget)
}

/// The cost of a candidate. Upstream minimizes the fields in this order.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Cost {
    /// The number of victims whose eviction violates a budget.
    violations: usize,
    highest_priority: i64,
    sum_of_priorities: i64,
    victims: usize,
    /// The earliest start of the most important victims; a later one costs less.
    earliest_start: Reverse<String>,
}

fn cost(candidate: &Candidate) -> Cost {
    let priorities = || candidate.victims.iter().map(|p| i64::from(p.priority));
    let highest_priority = priorities().max().unwrap_or(i64::MIN);
    // Shifted so that many Pods of negative priority cost more than one.
    let sum_of_priorities = priorities().map(|p| p + i64::from(i32::MAX) + 1).sum();
    let top = candidate.victims.iter().filter(|p| i64::from(p.priority) == highest_priority);
    let earliest = top.map(|p| &*p.started).min().unwrap_or_default().to_owned();
    Cost {
        violations: candidate.violations,
        highest_priority,
        sum_of_priorities,
        victims: candidate.victims.len(),
        earliest_start: Reverse(earliest),
    }
}
