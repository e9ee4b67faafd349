//! The plugin InterPodAffinity: affinity and anti-affinity to the Pods of a topology domain.

use std::borrow::Cow;

use crate::{
    cluster::{Cluster, Column},
    event::Event,
    index::NodeIx,
    plugin::{Cx, Filter, MAX_SCORE, Plan, Plugin, Scorer, Verdict},
    pod::Pod,
    sym::Sym,
    term_index::DomainCounts,
};

/// Pod affinity and anti-affinity, required and preferred, of the Pod and of running Pods.
pub(super) struct InterPodAffinity;

const AFFINITY: u32 = 0;
const ANTI_AFFINITY: u32 = 1;
const EXISTING: u32 = 2;

/// The number of matching Pods in each domain of a topology.
struct ByDomain<'a> {
    column: &'a Column,
    counts: Vec<u32>,
}

impl<'a> ByDomain<'a> {
    fn new(cluster: &'a Cluster, topology: Sym, track: usize) -> Self {
        let column = cluster.column(topology);
        let mut counts = vec![0; column.size()];
        for (domain, count) in column.domain.iter().zip(cluster.tracks.counts(track)) {
            counts[*domain as usize] += count;
        }
        counts[0] = 0;
        Self { column, counts }
    }

    fn has_label(&self, node: NodeIx) -> bool {
        self.column.domain[node as usize] != 0
    }

    fn count(&self, node: NodeIx) -> u32 {
        self.counts[self.column.domain[node as usize] as usize]
    }
}

struct Evaluator<'a> {
    cluster: &'a Cluster,
    near: Vec<ByDomain<'a>>,
    /// `true` if only the Pod itself can satisfy its affinity, as the first Pod of a group.
    first_of_group: bool,
    far: Vec<ByDomain<'a>>,
    /// Topologies and domains that the anti-affinity of running Pods excludes.
    repelled: Vec<(Sym, &'a DomainCounts)>,
}

impl Plugin for InterPodAffinity {
    fn name(&self) -> &'static str {
        "InterPodAffinity"
    }

    fn weight(&self) -> i64 {
        2
    }

    fn plan<'a>(&self, cx: Cx<'a>) -> Plan<'a> {
        let (cluster, pod) = (cx.cluster, cx.pod);
        let repelling = cluster.terms.repelling.iter();
        let repelled: Vec<_> = repelling
            .filter(|(term, _)| term.matches(pod, &cluster.namespaces))
            .map(|(term, counts)| (term.topology, counts))
            .collect();
        let near = cx.prepared.affinity_track.map_or_else(Vec::new, |track| {
            pod.affinity.iter().map(|term| ByDomain::new(cluster, term.topology, track)).collect()
        });
        let anti = pod.anti_affinity.iter().zip(&cx.prepared.anti_tracks);
        let far: Vec<_> =
            anti.map(|(t, track)| ByDomain::new(cluster, t.topology, *track)).collect();
        if repelled.is_empty() && near.is_empty() && far.is_empty() {
            return Plan::Skip;
        }
        let no_match = near.iter().all(|by| by.counts.iter().all(|c| *c == 0));
        let own = pod.affinity.iter().all(|term| term.matches(pod, &cluster.namespaces));
        Plan::Check(Box::new(Evaluator {
            cluster,
            near,
            first_of_group: no_match && own,
            far,
            repelled,
        }))
    }

    fn scorer<'a>(&self, cx: Cx<'a>, _: &[NodeIx]) -> Option<Box<dyn Scorer + 'a>> {
        let (cluster, pod) = (cx.cluster, cx.pod);
        let preferred = pod.preferred_pods.iter().zip(&cx.prepared.preferred_tracks);
        let own_terms: Vec<_> = preferred
            .map(|((weight, term), track)| (*weight, ByDomain::new(cluster, term.topology, *track)))
            .collect();
        let other_terms: Vec<_> = cluster
            .terms
            .attracting
            .iter()
            .filter(|((term, _), _)| term.matches(pod, &cluster.namespaces))
            .map(|((term, weight), counts)| (*weight, term.topology, counts))
            .collect();
        if own_terms.is_empty() && other_terms.is_empty() {
            return None;
        }
        Some(Box::new(Attraction { cluster, own_terms, other_terms }))
    }

    fn wakes(&self, cluster: &Cluster, pod: &Pod, event: &Event<'_>) -> bool {
        let namespaces = &cluster.namespaces;
        match event {
            Event::Node { change, .. } => change.added || change.labels,
            Event::PodPlaced { pod: other } => {
                pod.affinity.iter().any(|t| t.matches(other, namespaces))
            }
            Event::PodGone { pod: other, .. } => {
                pod.anti_affinity.iter().any(|t| t.matches(other, namespaces))
                    || other.anti_affinity.iter().any(|t| t.matches(pod, namespaces))
            }
            Event::Volumes
            | Event::DeviceClaim { .. }
            | Event::Devices
            | Event::PodGroup { .. } => false,
        }
    }
}

impl Filter for Evaluator<'_> {
    fn check(&self, node: NodeIx) -> Verdict {
        let near = self.near.iter().all(|by| by.has_label(node))
            && (self.first_of_group || self.near.iter().all(|by| by.count(node) > 0));
        if !near {
            return Verdict::unresolvable(AFFINITY);
        }
        if self.far.iter().any(|by| by.count(node) > 0) {
            return Verdict::unschedulable(ANTI_AFFINITY);
        }
        let labels = &self.cluster.node(node).labels;
        let unwanted = |(key, counts): &(Sym, &DomainCounts)| {
            labels.get(*key).is_some_and(|v| counts.contains_key(&v))
        };
        if self.repelled.iter().any(unwanted) {
            Verdict::unschedulable(EXISTING)
        } else {
            Verdict::PASS
        }
    }

    fn reason(&self, number: u32) -> Cow<'static, str> {
        match number {
            AFFINITY => "node(s) didn't match pod affinity rules".into(),
            ANTI_AFFINITY => "node(s) didn't match pod anti-affinity rules".into(),
            _ => "node(s) didn't satisfy existing pods anti-affinity rules".into(),
        }
    }
}

struct Attraction<'a> {
    cluster: &'a Cluster,
    own_terms: Vec<(i64, ByDomain<'a>)>,
    other_terms: Vec<(i64, Sym, &'a DomainCounts)>,
}

impl Scorer for Attraction<'_> {
    fn score(&self, node: NodeIx) -> i64 {
        let labels = &self.cluster.node(node).labels;
        let by_own = self.own_terms.iter().map(|(weight, by)| weight * i64::from(by.count(node)));
        let by_others = self.other_terms.iter().map(|(weight, key, counts)| {
            let count = labels.get(*key).and_then(|v| counts.get(&v)).copied().unwrap_or(0);
            weight * i64::from(count)
        });
        by_own.sum::<i64>() + by_others.sum::<i64>()
    }

    fn normalize(&self, _: &[NodeIx], scores: &mut [i64]) {
        let least = scores.iter().copied().min().unwrap_or(0);
        let most = scores.iter().copied().max().unwrap_or(0);
        for score in scores {
            *score = if most == least { 0 } else { MAX_SCORE * (*score - least) / (most - least) };
        }
    }
}
