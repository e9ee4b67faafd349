//! The plugin PodTopologySpread: an even number of Pods in topology domains.

use std::borrow::Cow;

use crate::{
    cluster::{Cluster, Column},
    event::Event,
    index::NodeIx,
    plugin::{Cx, Filter, MAX_SCORE, Plan, Plugin, Scorer, Verdict},
    pod::{Pod, Spread},
    prepared::TrackedSpread,
    taints::untolerated,
};

/// `topologySpreadConstraints`, and the default soft spreading of a Service's or owner's Pods over hosts and zones.
pub(super) struct PodTopologySpread;

const UNEVEN: u32 = 0;
const NO_LABEL: u32 = 1;

/// A hard constraint with its counts by domain.
struct Hard<'a> {
    spread: &'a Spread,
    column: &'a Column,
    counts: Vec<i64>,
    least: i64,
    own: i64,
}

struct HardEvaluator<'a>(Vec<Hard<'a>>);

impl Plugin for PodTopologySpread {
    fn name(&self) -> &'static str {
        "PodTopologySpread"
    }

    fn weight(&self) -> i64 {
        2
    }

    fn plan<'a>(&self, cx: Cx<'a>) -> Plan<'a> {
        let tracked = &cx.prepared.hard_spread;
        if tracked.is_empty() {
            return Plan::Skip;
        }
        Plan::Check(Box::new(HardEvaluator(tracked.iter().map(|t| hard(cx, tracked, t)).collect())))
    }

    fn scorer<'a>(&self, cx: Cx<'a>, feasible: &[NodeIx]) -> Option<Box<dyn Scorer + 'a>> {
        let tracked = &cx.prepared.soft_spread;
        (!tracked.is_empty()).then(|| Box::new(soft(cx, tracked, feasible)) as _)
    }

    fn wakes(&self, cluster: &Cluster, pod: &Pod, event: &Event<'_>) -> bool {
        // The selector of default constraints changes with the Services and owners of the Pod.
        let defaulted = |pod: &Pod| {
            let profile = cluster.profiles.of(&pod.scheduler_name);
            pod.spread.is_empty() && profile.default_spread().is_some()
        };
        match event {
            Event::Node { change, .. } => change.added || change.labels || change.taints,
            Event::PodPlaced { pod: other } | Event::PodGone { pod: other, .. } => {
                other.namespace_symbol == pod.namespace_symbol
                    && (defaulted(pod)
                        || pod.spread.iter().any(|s| s.hard && s.selector.matches(&other.labels)))
            }
            Event::Volumes
            | Event::DeviceClaim { .. }
            | Event::Devices
            | Event::PodGroup { .. } => false,
        }
    }
}

/// Reports whether a constraint counts a node: it has all topology keys and passes the constraint's own policies.
fn counted(cx: Cx<'_>, all: &[TrackedSpread], this: &Spread, ix: NodeIx) -> bool {
    let node = cx.cluster.node(ix);
    all.iter().all(|t| cx.cluster.column(t.spread.topology).domain[ix as usize] != 0)
        && (!this.honor_affinity || cx.pod.node_selector.as_ref().is_none_or(|s| s.matches(node)))
        && (!this.honor_taints || untolerated(&node.taints, &cx.pod.tolerations).is_none())
}

fn hard<'a>(cx: Cx<'a>, all: &[TrackedSpread], tracked: &'a TrackedSpread) -> Hard<'a> {
    let (spread, cluster) = (&tracked.spread, cx.cluster);
    let column = cluster.column(spread.topology);
    let per_node = cluster.tracks.counts(tracked.track);
    // Domains without a counted node stay at -1 and do not affect the minimum.
    let mut counts = vec![-1_i64; column.size()];
    for ix in cluster.live_nodes().filter(|ix| counted(cx, all, spread, *ix)) {
        let count = &mut counts[column.domain[ix as usize] as usize];
        *count = (*count).max(0) + i64::from(per_node[ix as usize]);
    }
    let domains = counts.iter().filter(|c| **c >= 0).count() as i64;
    let least = counts.iter().copied().filter(|c| *c >= 0).min().unwrap_or(0);
    Hard {
        spread,
        column,
        counts,
        least: if domains < spread.min_domains { 0 } else { least },
        own: i64::from(spread.selector.matches(&cx.pod.labels)),
    }
}

impl Filter for HardEvaluator<'_> {
    fn check(&self, node: NodeIx) -> Verdict {
        for hard in &self.0 {
            let domain = hard.column.domain[node as usize];
            if domain == 0 {
                return Verdict::unresolvable(NO_LABEL);
            }
            let matching = hard.counts[domain as usize].max(0);
            if matching + hard.own - hard.least > hard.spread.max_skew {
                return Verdict::unschedulable(UNEVEN);
            }
        }
        Verdict::PASS
    }

    fn reason(&self, number: u32) -> Cow<'static, str> {
        match number {
            NO_LABEL => {
                "node(s) didn't match pod topology spread constraints (missing required label)"
                    .into()
            }
            _ => "node(s) didn't match pod topology spread constraints".into(),
        }
    }
}

/// A soft constraint with its counts.
struct Soft<'a> {
    column: &'a Column,
    /// Matching Pods by domain; `None` for host names, whose counts are those per node.
    counts: Option<Vec<i64>>,
    per_node: &'a [u32],
    /// A weight that grows with the number of domains; without it, counts per zone would outweigh counts per host.
    weight: f64,
    max_skew: i64,
}

struct SoftEvaluator<'a> {
    parts: Vec<Soft<'a>>,
    /// `true` for constraints of the Pod or profile, which ignore nodes without the label; default ones accept such
    /// nodes.
    explicit: bool,
}

fn soft<'a>(cx: Cx<'a>, all: &'a [TrackedSpread], feasible: &[NodeIx]) -> SoftEvaluator<'a> {
    let explicit = !cx.prepared.default_spread;
    let cluster = cx.cluster;
    let ignored = |ix: NodeIx| {
        explicit && all.iter().any(|t| cluster.column(t.spread.topology).domain[ix as usize] == 0)
    };
    let parts = all.iter().map(|tracked| {
        let spread = &tracked.spread;
        let column = cluster.column(spread.topology);
        let per_node = cluster.tracks.counts(tracked.track);
        if tracked.by_host {
            let nodes = feasible.iter().filter(|ix| !ignored(**ix)).count();
            let weight = (nodes as f64 + 2.0).ln();
            return Soft { column, counts: None, per_node, weight, max_skew: spread.max_skew };
        }
        let mut has_nodes = vec![false; column.size()];
        for ix in feasible.iter().filter(|ix| !ignored(**ix)) {
            has_nodes[column.domain[*ix as usize] as usize] = true;
        }
        has_nodes[0] = false;
        let mut counts = vec![0; column.size()];
        let needs_look =
            (spread.honor_affinity && cx.pod.node_selector.is_some()) || spread.honor_taints;
        let required = if explicit { all } else { &[] };
        for (ix, (domain, count)) in column.domain.iter().zip(per_node).enumerate() {
            if *count > 0 && has_nodes[*domain as usize] {
                let look = explicit || needs_look;
                if !look || counted(cx, required, spread, ix as NodeIx) {
                    counts[*domain as usize] += i64::from(*count);
                }
            }
        }
        let domains = has_nodes.iter().filter(|s| **s).count();
        let weight = (domains as f64 + 2.0).ln();
        Soft { column, counts: Some(counts), per_node, weight, max_skew: spread.max_skew }
    });
    SoftEvaluator { parts: parts.collect(), explicit }
}

impl SoftEvaluator<'_> {
    fn ignores(&self, node: NodeIx) -> bool {
        self.explicit && self.parts.iter().any(|p| p.column.domain[node as usize] == 0)
    }
}

impl Scorer for SoftEvaluator<'_> {
    fn score(&self, node: NodeIx) -> i64 {
        if self.ignores(node) {
            return 0;
        }
        let mut sum = 0.0;
        for part in &self.parts {
            let domain = part.column.domain[node as usize] as usize;
            if domain != 0 {
                let count = match &part.counts {
                    Some(counts) => counts[domain],
                    None => i64::from(part.per_node[node as usize]),
                };
                sum += count as f64 * part.weight + (part.max_skew - 1) as f64;
            }
        }
        sum.round() as i64
    }

    fn normalize(&self, nodes: &[NodeIx], scores: &mut [i64]) {
        let counted_scores =
            || nodes.iter().zip(scores.iter()).filter(|(n, _)| !self.ignores(**n)).map(|(_, s)| *s);
        let (least, most) =
            (counted_scores().min().unwrap_or(0), counted_scores().max().unwrap_or(0));
        for (node, score) in nodes.iter().zip(scores.iter_mut()) {
            *score = match () {
                () if self.ignores(*node) => 0,
                () if most == 0 => MAX_SCORE,
                () => MAX_SCORE * (most + least - *score) / most,
            };
        }
    }
}
