//! The affinity terms of running Pods, with the number of Pods per topology domain.

use std::{collections::HashMap, sync::Arc};

use crate::{
    labels::Labels,
    pod::Pod,
    sym::{Sym, SymMap},
    terms::PodTerm,
};

/// The number of Pods with a given term in each domain of the term's topology.
pub(crate) type DomainCounts = SymMap<u32>;

/// The affinity terms of running Pods, without duplicates: a new Pod is compared with each term once.
#[derive(Default)]
pub(crate) struct TermIndex {
    /// Required anti-affinity terms, which exclude other Pods.
    pub(crate) repelling: HashMap<Arc<PodTerm>, DomainCounts>,
    /// Preferred terms with their signed weights, and required affinity terms with weight one.
    pub(crate) attracting: HashMap<(Arc<PodTerm>, i64), DomainCounts>,
}

/// The score of a running Pod's required affinity for a Pod that matches it.
const HARD_AFFINITY_WEIGHT: i64 = 1;

impl TermIndex {
    pub(crate) fn add(&mut self, pod: &Pod, node: &Labels) {
        for term in &pod.anti_affinity {
            if let Some(domain) = node.get(term.topology) {
                *self.repelling.entry(term.clone()).or_default().entry(domain).or_default() += 1;
            }
        }
        for (term, weight) in attractions(pod) {
            if let Some(domain) = node.get(term.topology) {
                let counts = self.attracting.entry((term.clone(), weight)).or_default();
                *counts.entry(domain).or_default() += 1;
            }
        }
    }

    pub(crate) fn remove(&mut self, pod: &Pod, node: &Labels) {
        for term in &pod.anti_affinity {
            if let Some(domain) = node.get(term.topology) {
                take(&mut self.repelling, term, domain);
            }
        }
        for (term, weight) in attractions(pod) {
            if let Some(domain) = node.get(term.topology) {
                take(&mut self.attracting, &(term.clone(), weight), domain);
            }
        }
    }
}

fn attractions(pod: &Pod) -> impl Iterator<Item = (&Arc<PodTerm>, i64)> {
    let required = pod.affinity.iter().map(|term| (term, HARD_AFFINITY_WEIGHT));
    required.chain(pod.preferred_pods.iter().map(|(weight, term)| (term, *weight)))
}

fn take<K: std::hash::Hash + Eq>(index: &mut HashMap<K, DomainCounts>, key: &K, domain: Sym) {
    let Some(counts) = index.get_mut(key) else { return };
    if let Some(count) = counts.get_mut(&domain) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&domain);
        }
    }
    if counts.is_empty() {
        index.remove(key);
    }
}
