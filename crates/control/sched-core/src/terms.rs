use std::{collections::HashMap, sync::Arc};

use crate::{
    labels::{Labels, Selector},
    pod::Pod,
    sym::{Sym, SymMap},
    view::PodTermView,
};

/// The namespaces that an affinity term selects.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub(crate) struct NamespaceMatch {
    names: Vec<Sym>,
    selector: Option<Selector>,
}

pub(crate) type Namespaces = SymMap<Labels>;

impl NamespaceMatch {
    pub(crate) fn one(namespace: Sym) -> Self {
        Self { names: vec![namespace], selector: None }
    }

    pub(crate) fn matches(&self, namespace: Sym, all: &Namespaces) -> bool {
        self.names.contains(&namespace)
            || self.selector.as_ref().is_some_and(|selector| {
                selector.is_empty()
                    || all.get(&namespace).is_some_and(|labels| selector.matches(labels))
            })
    }

    /// Reports whether the result depends on the labels of namespaces.
    pub(crate) fn by_labels(&self) -> bool {
        self.selector.as_ref().is_some_and(|s| !s.is_empty())
    }
}

/// A Pod affinity or anti-affinity term.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PodTerm {
    pub(crate) namespaces: NamespaceMatch,
    pub(crate) selector: Option<Selector>,
    pub(crate) topology: Sym,
}

impl PodTerm {
    /// Compiles a term. `labels` are those of the Pod that has the term, for `matchLabelKeys` and `mismatchLabelKeys`.
    pub(crate) fn new(view: &PodTermView, own: Sym, labels: &Labels) -> Self {
        let mut selector = view.label_selector.as_ref().map(Selector::new);
        if let Some(selector) = &mut selector {
            for key in view.match_label_keys.iter().map(|k| Sym::of(k)) {
                labels.get(key).into_iter().for_each(|value| selector.require(key, value));
            }
            for key in view.mismatch_label_keys.iter().map(|k| Sym::of(k)) {
                labels.get(key).into_iter().for_each(|value| selector.exclude(key, value));
            }
        }
        let mut names: Vec<_> = view.namespaces.iter().map(|n| Sym::of(n)).collect();
        let by_label = view.namespace_selector.as_ref().map(Selector::new);
        if names.is_empty() && by_label.is_none() {
            names.push(own);
        }
        Self {
            namespaces: NamespaceMatch { names, selector: by_label },
            selector,
            topology: Sym::of(&view.topology_key),
        }
    }

    pub(crate) fn matches(&self, pod: &Pod, namespaces: &Namespaces) -> bool {
        self.selector.as_ref().is_some_and(|s| s.matches(&pod.labels))
            && self.namespaces.matches(pod.namespace_symbol, namespaces)
    }
}

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
