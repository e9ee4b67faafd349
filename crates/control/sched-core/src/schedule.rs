//! The attempt to schedule a Pod: filters and scores the nodes.

use std::{collections::HashMap, sync::Arc};

use crate::{
    cluster::Cluster,
    explain::Reasons,
    index::NodeIx,
    observe::{Observer, Stage, StageResult, Unobserved},
    plugin::{Cx, Filter, Plan, Verdict},
    plugins::registry,
    pod::Pod,
    prepared::{PreparedPod, prepare},
};

/// The filters of all plugins, prepared for one Pod.
struct Filters<'a> {
    /// The filters, with their positions in the registry.
    checks: Vec<(usize, Box<dyn Filter + 'a>)>,
    /// The only nodes that can pass, and the plugin that limits them.
    only: Option<(usize, Vec<NodeIx>)>,
    rejected: Option<(usize, String)>,
}

impl<'a> Filters<'a> {
    fn new(cx: Cx<'a>) -> Self {
        let mut out = Self { checks: Vec::with_capacity(8), only: None, rejected: None };
        let profile = &cx.prepared.profile;
        for (at, plugin) in registry().iter().enumerate().filter(|(at, _)| profile.filters(*at)) {
            match plugin.plan(cx) {
                Plan::Skip => {}
                Plan::Check(filter) => out.checks.push((at, filter)),
                Plan::Only(nodes, filter) => {
                    out.only = Some((at, nodes));
                    out.checks.push((at, filter));
                }
                Plan::Reject(reason) => {
                    out.rejected = Some((at, reason));
                    break;
                }
            }
        }
        out
    }

    /// Returns the first filter (by its position in `checks`) that rejects the node.
    fn check(&self, node: NodeIx) -> Option<(usize, Verdict)> {
        for (at, (_, filter)) in self.checks.iter().enumerate() {
            let verdict = filter.check(node);
            if !verdict.passes() {
                return Some((at, verdict));
            }
        }
        None
    }

    fn explain(&self, at: usize, verdict: Verdict, nodes: usize, into: &mut Reasons) {
        let mut left = verdict.reasons;
        while left != 0 {
            let number = left.trailing_zeros();
            left &= left - 1;
            into.add(self.checks[at].1.reason(number), nodes);
        }
    }
}

/// The reasons why a Pod fits nowhere.
#[derive(Debug, Default)]
pub(crate) struct Diagnosis {
    pub(crate) reasons: Reasons,
    /// A reason that concerns the Pod itself and no node.
    pub(crate) whole_pod: Option<String>,
    /// `true` if a plugin failed.
    pub(crate) is_error: bool,
    /// The nodes on which preemption might help.
    pub(crate) candidates: Vec<NodeIx>,
    /// The plugins that rejected the Pod, as a bit set by position in the registry.
    pub(crate) plugins: u32,
    /// A ResourceClaim (name and uid) that only this Pod uses and that keeps it from a node.
    pub(crate) blocking_claim: Option<(Box<str>, Box<str>)>,
}

impl Diagnosis {
    /// Returns the message of DynamicResources about the deallocation of claims.
    pub(crate) fn devices(&self, pod: &Pod) -> Option<&'static str> {
        match self.whole_pod {
            Some(_) => None,
            None if self.blocking_claim.is_some() => {
                Some("deallocation of ResourceClaim completed")
            }
            None if pod.device_claims.is_empty() => Some("no new claims to deallocate"),
            None => Some("still not schedulable"),
        }
    }
}

/// The node chosen for a Pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Placement {
    pub(crate) node: NodeIx,
    /// The number of nodes that were checked.
    pub(crate) evaluated: usize,
    /// The number of nodes that passed.
    pub(crate) feasible: usize,
}

/// Pods that wait for their victims to leave, by nominated node.
pub(crate) type NominatedPods = HashMap<NodeIx, Vec<Arc<Pod>>>;

/// State that one attempt leaves for the next: the start index, the random state and buffers.
pub(crate) struct Turn {
    start: usize,
    random: u64,
    rejections: HashMap<(usize, Verdict), usize>,
    feasible: Vec<NodeIx>,
    totals: Vec<i64>,
    scores: Vec<i64>,
    pub(crate) observer: Arc<dyn Observer>,
}

impl Turn {
    /// Creates empty buffers. The same seed breaks ties in the same way.
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            start: 0,
            random: seed | 1,
            rejections: HashMap::new(),
            feasible: Vec::new(),
            totals: Vec::new(),
            scores: Vec::new(),
            observer: Arc::new(Unobserved),
        }
    }

    /// A fast generator: the choice between equal nodes needs no cryptographic randomness.
    pub(crate) fn random(&mut self, below: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random % below.max(1) as u64) as usize
    }
}

/// Returns the number of feasible nodes that suffices: large clusters check a share, as upstream does. A share of 0
/// percent adapts to the number of nodes.
fn nodes_to_find(nodes: usize, percent: u32) -> usize {
    if nodes < 100 {
        return nodes;
    }
    let percent = match percent {
        0 => 50_usize.saturating_sub(nodes / 125).max(5),
        percent => (percent as usize).min(100),
    };
    (nodes * percent / 100).max(100)
}

/// The nodes that a Pod fits on.
pub(crate) struct Feasible {
    pub(crate) nodes: Vec<NodeIx>,
    /// The number of nodes that were checked.
    pub(crate) evaluated: usize,
    /// The reasons of the other nodes.
    pub(crate) diagnosis: Diagnosis,
}

/// Finds a node for the Pod.
pub(crate) fn schedule(
    cluster: &mut Cluster,
    pod: &Pod,
    nominated: &NominatedPods,
    turn: &mut Turn,
) -> Result<Placement, Diagnosis> {
    let prepared = prepare(cluster, pod);
    let Feasible { nodes, evaluated, diagnosis } =
        feasible_nodes(cluster, pod, &prepared, nominated, turn);
    let outcome = if nodes.is_empty() {
        Err(diagnosis)
    } else {
        let node = choose(Cx { cluster, pod, prepared: &prepared }, &nodes, &[], turn);
        Ok(Placement { node, evaluated, feasible: nodes.len() })
    };
    turn.feasible = nodes;
    outcome
}

/// Finds the nodes that the Pod fits on, for extenders to choose from.
pub(crate) fn find_feasible(
    cluster: &mut Cluster,
    pod: &Pod,
    nominated: &NominatedPods,
    turn: &mut Turn,
) -> Feasible {
    let prepared = prepare(cluster, pod);
    feasible_nodes(cluster, pod, &prepared, nominated, turn)
}

/// Chooses among nodes that extenders have accepted and scored, as far as the Pod still fits on them.
pub(crate) fn schedule_among(
    cluster: &mut Cluster,
    pod: &Pod,
    accepted: &[(NodeIx, i64)],
    nominated: &NominatedPods,
    turn: &mut Turn,
) -> Option<Placement> {
    let prepared = prepare(cluster, pod);
    let mut fitting = still_fitting(Cx { cluster, pod, prepared: &prepared }, accepted);
    fitting.retain(|(node, _)| {
        rivals(nominated, pod, *node).next().is_none()
            || fits_beside(cluster, pod, *node, nominated, &mut Diagnosis::default())
    });
    let (nodes, scores): (Vec<_>, Vec<_>) = fitting.into_iter().unzip();
    if nodes.is_empty() {
        return None;
    }
    let node = choose(Cx { cluster, pod, prepared: &prepared }, &nodes, &scores, turn);
    Some(Placement { node, evaluated: accepted.len(), feasible: nodes.len() })
}

/// Returns the nodes that pass the filters.
fn still_fitting(cx: Cx<'_>, accepted: &[(NodeIx, i64)]) -> Vec<(NodeIx, i64)> {
    let filters = Filters::new(cx);
    if filters.rejected.is_some() {
        return Vec::new();
    }
    let passes = |node: NodeIx| {
        let reachable = filters.only.as_ref().is_none_or(|(_, nodes)| nodes.contains(&node));
        reachable && filters.check(node).is_none()
    };
    let fitting = accepted.iter().filter(|(node, _)| passes(*node)).copied().collect();
    let failed = filters.checks.iter().any(|(_, filter)| filter.failure().is_some());
    if failed { Vec::new() } else { fitting }
}

fn feasible_nodes(
    cluster: &mut Cluster,
    pod: &Pod,
    prepared: &PreparedPod,
    nominated: &NominatedPods,
    turn: &mut Turn,
) -> Feasible {
    let mut diagnosis = Diagnosis::default();
    let mut nodes = std::mem::take(&mut turn.feasible);
    nodes.clear();
    let evaluated = find(cluster, pod, prepared, turn, &mut nodes, &mut diagnosis);
    if !nominated.is_empty() {
        nodes.retain(|node| {
            rivals(nominated, pod, *node).next().is_none()
                || fits_beside(cluster, pod, *node, nominated, &mut diagnosis)
        });
    }
    Feasible { nodes, evaluated, diagnosis }
}

/// Returns the best node. `extra` are scores to add to those of the plugins, or empty.
fn choose(cx: Cx<'_>, nodes: &[NodeIx], extra: &[i64], turn: &mut Turn) -> NodeIx {
    turn.observer.begin();
    let node = best(cx, nodes, extra, turn);
    turn.observer.end(Stage::Score, StageResult::Success, &cx.pod.scheduler_name);
    node
}

/// Collects feasible nodes until there are enough; returns the number of checked nodes.
fn find(
    cluster: &Cluster,
    pod: &Pod,
    prepared: &PreparedPod,
    turn: &mut Turn,
    feasible: &mut Vec<NodeIx>,
    diagnosis: &mut Diagnosis,
) -> usize {
    turn.observer.begin();
    let filters = Filters::new(Cx { cluster, pod, prepared });
    if let Some((plugin, reason)) = &filters.rejected {
        turn.observer.end(Stage::PreFilter, StageResult::Unschedulable, &pod.scheduler_name);
        diagnosis.plugins |= 1 << plugin;
        diagnosis.whole_pod = Some(reason.clone());
        return 0;
    }
    turn.observer.end(Stage::PreFilter, StageResult::Success, &pod.scheduler_name);
    turn.observer.begin();
    let evaluated = check_all(cluster, prepared, &filters, turn, feasible, diagnosis);
    let result = match (diagnosis.is_error, feasible.is_empty()) {
        (true, _) => StageResult::Error,
        (false, true) => StageResult::Unschedulable,
        (false, false) => StageResult::Success,
    };
    turn.observer.end(Stage::Filter, result, &pod.scheduler_name);
    evaluated
}

/// Checks nodes until there are enough that passed; returns the number of checked nodes.
fn check_all(
    cluster: &Cluster,
    prepared: &PreparedPod,
    filters: &Filters<'_>,
    turn: &mut Turn,
    feasible: &mut Vec<NodeIx>,
    diagnosis: &mut Diagnosis,
) -> usize {
    let mut evaluated = 0;
    turn.rejections.clear();
    let mut check = |node: NodeIx, diagnosis: &mut Diagnosis| {
        evaluated += 1;
        match filters.check(node) {
            None => feasible.push(node),
            Some((at, verdict)) => {
                *turn.rejections.entry((at, verdict)).or_default() += 1;
                if !verdict.unresolvable {
                    diagnosis.candidates.push(node);
                }
            }
        }
        feasible.len()
    };
    if let Some((plugin, nodes)) = &filters.only {
        for node in nodes {
            check(*node, diagnosis);
        }
        let others = cluster.node_count() - nodes.len();
        let name = registry()[*plugin].name();
        diagnosis.reasons.add(format!("node(s) didn't satisfy plugin(s) [{name}]").into(), others);
        diagnosis.plugins |= 1 << plugin;
    } else {
        let slots = cluster.hot.len();
        let limit =
            nodes_to_find(cluster.node_count(), prepared.profile.percentage_of_nodes_to_score);
        let mut passed = 0;
        let mut at = if slots == 0 { 0 } else { turn.start % slots };
        for _ in 0..slots {
            if cluster.hot[at].live {
                passed = check(at as NodeIx, diagnosis);
            }
            at = if at + 1 == slots { 0 } else { at + 1 };
            if passed >= limit {
                break;
            }
        }
        turn.start = at;
    }
    let mut failures = filters.checks.iter();
    if let Some((at, why)) = failures.find_map(|(at, filter)| Some((at, filter.failure()?))) {
        feasible.clear();
        let name = registry()[*at].name();
        diagnosis.whole_pod = Some(format!("running {name:?} filter plugin: {why}"));
        diagnosis.is_error = true;
        diagnosis.plugins |= 1 << at;
        diagnosis.candidates.clear();
        return evaluated;
    }
    if feasible.is_empty() {
        diagnosis.blocking_claim =
            filters.checks.iter().find_map(|(_, filter)| filter.blocking_claim());
        for ((at, verdict), nodes) in &turn.rejections {
            diagnosis.plugins |= 1 << filters.checks[*at].0;
            filters.explain(*at, *verdict, *nodes, &mut diagnosis.reasons);
        }
    }
    evaluated
}

/// Returns the nominated Pods of a node that the Pod may not displace.
pub(crate) fn rivals<'a>(
    nominated: &'a NominatedPods,
    pod: &Pod,
    node: NodeIx,
) -> impl Iterator<Item = &'a Arc<Pod>> {
    let (priority, uid) = (pod.priority, pod.id.uid.clone());
    let pods = nominated.get(&node).into_iter().flatten();
    pods.filter(move |p| p.priority >= priority && p.id.uid != uid)
}

/// Reports whether the Pod fits together with the Pods nominated to the node before it.
fn fits_beside(
    cluster: &mut Cluster,
    pod: &Pod,
    node: NodeIx,
    nominated: &NominatedPods,
    diagnosis: &mut Diagnosis,
) -> bool {
    let rivals: Vec<_> = rivals(nominated, pod, node).cloned().collect();
    rivals.iter().for_each(|rival| cluster.place_pod(rival.clone(), node));
    let fits = check_node(cluster, pod, node, Some(diagnosis));
    rivals.iter().for_each(|rival| cluster.unplace_pod(rival, node));
    fits
}

/// Checks one node in the current cluster. Reasons are added to `diagnosis`, if given.
pub(crate) fn check_node(
    cluster: &mut Cluster,
    pod: &Pod,
    node: NodeIx,
    diagnosis: Option<&mut Diagnosis>,
) -> bool {
    let prepared = prepare(cluster, pod);
    let filters = Filters::new(Cx { cluster, pod, prepared: &prepared });
    if filters.rejected.is_some()
        || filters.only.as_ref().is_some_and(|(_, nodes)| !nodes.contains(&node))
    {
        return false;
    }
    let Some((at, verdict)) = filters.check(node) else { return true };
    if let Some(diagnosis) = diagnosis {
        diagnosis.plugins |= 1 << filters.checks[at].0;
        filters.explain(at, verdict, 1, &mut diagnosis.reasons);
        if !verdict.unresolvable {
            diagnosis.candidates.push(node);
        }
    }
    false
}

/// Returns the node with the highest score; ties are broken at random.
fn best(cx: Cx<'_>, feasible: &[NodeIx], extra: &[i64], turn: &mut Turn) -> NodeIx {
    if let [only] = feasible {
        return *only;
    }
    turn.totals.clear();
    turn.totals.extend_from_slice(extra);
    turn.totals.resize(feasible.len(), 0);
    for (at, plugin) in registry().iter().enumerate() {
        let weight = cx.prepared.profile.weight(at);
        let Some(scorer) = (weight != 0).then(|| plugin.scorer(cx, feasible)).flatten() else {
            continue;
        };
        turn.scores.clear();
        turn.scores.extend(feasible.iter().map(|node| scorer.score(*node)));
        scorer.normalize(feasible, &mut turn.scores);
        for (total, score) in turn.totals.iter_mut().zip(&turn.scores) {
            *total = total.saturating_add(weight * score);
        }
    }
    let most = turn.totals.iter().copied().max().unwrap_or(0);
    let equals = turn.totals.iter().filter(|total| **total == most).count();
    let pick = turn.random(equals);
    let at = turn.totals.iter().enumerate().filter(|(_, total)| **total == most).nth(pick);
    feasible[at.map_or(0, |(at, _)| at)]
}
