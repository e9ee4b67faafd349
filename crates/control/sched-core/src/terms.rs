//! Compiled terms of Pod affinity and anti-affinity. `matching.rs` compares them with Pods.

use crate::{
    labels::{Labels, Selector},
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
}
