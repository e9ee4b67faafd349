//! Compiled node selectors and node affinity terms. `matching.rs` compares them with nodes.

use crate::{
    labels::Selector,
    sym::Sym,
    view::{ExpressionView, NodeSelectorView, NodeTermView, TextMap},
};

/// A requirement on a label of a node or on its name.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    In(Box<[Sym]>),
    NotIn(Box<[Sym]>),
    Exists,
    Absent,
    Above(i64),
    Below(i64),
    Never,
}

/// A term of a node selector: all its expressions must hold. A term without expressions matches no node.
#[derive(Clone, Debug)]
pub(crate) struct NodeTerm {
    pub(crate) labels: Vec<(Sym, Op)>,
    /// Requirements on `metadata.name`, the only supported node field.
    pub(crate) names: Vec<Op>,
}

impl NodeTerm {
    pub(crate) fn new(view: &NodeTermView) -> Self {
        Self {
            labels: view.match_expressions.iter().map(|e| (Sym::of(&e.key), op(e))).collect(),
            names: view
                .match_fields
                .iter()
                .map(|e| if &*e.key == "metadata.name" { op(e) } else { Op::Never })
                .collect(),
        }
    }

    /// Returns the node names that the term is limited to.
    fn only_names(&self) -> Option<&[Sym]> {
        self.names.iter().find_map(|op| if let Op::In(names) = op { Some(&**names) } else { None })
    }
}

fn op(view: &ExpressionView) -> Op {
    let values = || view.values.iter().map(|v| Sym::of(v)).collect();
    let number = || view.values.first().and_then(|v| v.parse::<i64>().ok());
    match &*view.operator {
        "In" => Op::In(values()),
        "NotIn" => Op::NotIn(values()),
        "Exists" => Op::Exists,
        "DoesNotExist" => Op::Absent,
        "Gt" => number().map_or(Op::Never, Op::Above),
        "Lt" => number().map_or(Op::Never, Op::Below),
        _ => Op::Never,
    }
}

/// The node requirements of a Pod (nodeSelector and required node affinity) or of a volume.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeSelector {
    pub(crate) labels: Selector,
    pub(crate) terms: Option<Vec<NodeTerm>>,
}

impl NodeSelector {
    pub(crate) fn new(labels: &TextMap, terms: Option<&NodeSelectorView>) -> Option<Self> {
        if labels.is_empty() && terms.is_none() {
            return None;
        }
        let terms = terms.map(|view| view.node_selector_terms.iter().map(NodeTerm::new).collect());
        Some(Self { labels: Selector::from_labels(labels), terms })
    }

    /// Returns the only node names that can match, if every term names its nodes, as the terms of DaemonSet Pods do.
    pub(crate) fn only_names(&self) -> Option<Vec<Sym>> {
        let terms = self.terms.as_ref()?;
        let mut out = Vec::new();
        for term in terms {
            out.extend_from_slice(term.only_names()?);
        }
        out.sort_unstable();
        out.dedup();
        Some(out)
    }
}
