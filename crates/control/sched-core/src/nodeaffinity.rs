use crate::{
    labels::{Labels, Selector},
    node::Node,
    sym::Sym,
    view::{ExpressionView, NodeSelectorView, NodeTermView, TextMap},
};

#[derive(Clone, Debug)]
enum Op {
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
    labels: Vec<(Sym, Op)>,
    /// Requirements on `metadata.name`, the only supported node field.
    names: Vec<Op>,
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

    pub(crate) fn matches(&self, node: &Node) -> bool {
        !(self.labels.is_empty() && self.names.is_empty())
            && self.labels.iter().all(|(key, op)| {
                let number = || node.number(*key);
                holds(op, node.labels.get(*key), number)
            })
            && self.names.iter().all(|op| holds(op, Some(node.symbol), || None))
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

fn holds(op: &Op, value: Option<Sym>, number: impl Fn() -> Option<i64>) -> bool {
    match op {
        Op::In(values) => value.is_some_and(|v| values.contains(&v)),
        Op::NotIn(values) => value.is_none_or(|v| !values.contains(&v)),
        Op::Exists => value.is_some(),
        Op::Absent => value.is_none(),
        Op::Above(bound) => number().is_some_and(|n| n > *bound),
        Op::Below(bound) => number().is_some_and(|n| n < *bound),
        Op::Never => false,
    }
}

/// The node requirements of a Pod (nodeSelector and required node affinity) or of a volume.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeSelector {
    labels: Selector,
    terms: Option<Vec<NodeTerm>>,
}

impl NodeSelector {
    pub(crate) fn new(labels: &TextMap, terms: Option<&NodeSelectorView>) -> Option<Self> {
        if labels.is_empty() && terms.is_none() {
            return None;
        }
        let terms = terms.map(|view| view.node_selector_terms.iter().map(NodeTerm::new).collect());
        Some(Self { labels: Selector::from_labels(labels), terms })
    }

    pub(crate) fn matches(&self, node: &Node) -> bool {
        self.labels.matches(&node.labels)
            && self.terms.as_ref().is_none_or(|terms| terms.iter().any(|term| term.matches(node)))
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    NoSchedule,
    PreferNoSchedule,
    NoExecute,
}

impl Effect {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        match text {
            "NoSchedule" => Some(Self::NoSchedule),
            "PreferNoSchedule" => Some(Self::PreferNoSchedule),
            "NoExecute" => Some(Self::NoExecute),
            _ => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Taint {
    pub(crate) key: Sym,
    pub(crate) value: Sym,
    pub(crate) number: Option<i64>,
    pub(crate) effect: Effect,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum TolerationOp {
    Equal(Sym),
    Exists,
    Above(i64),
    Below(i64),
    Never,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Toleration {
    key: Option<Sym>,
    op: TolerationOp,
    effect: Option<Effect>,
}

impl Toleration {
    pub(crate) fn new(view: &crate::view::TolerationView) -> Self {
        let value = view.value.as_deref().unwrap_or("");
        let number = || value.parse::<i64>().ok();
        let op = match view.operator.as_deref().unwrap_or("") {
            "" | "Equal" => TolerationOp::Equal(Sym::of(value)),
            "Exists" => TolerationOp::Exists,
            "Gt" => number().map_or(TolerationOp::Never, TolerationOp::Above),
            "Lt" => number().map_or(TolerationOp::Never, TolerationOp::Below),
            _ => TolerationOp::Never,
        };
        Self {
            key: view.key.as_deref().filter(|k| !k.is_empty()).map(Sym::of),
            op,
            effect: view.effect.as_deref().and_then(Effect::parse),
        }
    }

    pub(crate) fn tolerates(&self, taint: &Taint) -> bool {
        self.effect.is_none_or(|effect| effect == taint.effect)
            && self.key.is_none_or(|key| key == taint.key)
            && match self.op {
                TolerationOp::Equal(value) => value == taint.value,
                TolerationOp::Exists => true,
                TolerationOp::Above(bound) => taint.number.is_some_and(|n| n > bound),
                TolerationOp::Below(bound) => taint.number.is_some_and(|n| n < bound),
                TolerationOp::Never => false,
            }
    }

    /// Reports whether the toleration applies to PreferNoSchedule taints, which score nodes.
    pub(crate) fn covers_preferences(&self) -> bool {
        self.effect.is_none_or(|effect| effect == Effect::PreferNoSchedule)
    }
}

/// Returns the first taint that keeps the Pod off the node.
pub(crate) fn untolerated<'a>(
    taints: &'a [Taint],
    tolerations: &[Toleration],
) -> Option<&'a Taint> {
    taints
        .iter()
        .filter(|taint| taint.effect != Effect::PreferNoSchedule)
        .find(|taint| !tolerations.iter().any(|t| t.tolerates(taint)))
}

/// Returns the label values that are integers, for `Gt` and `Lt`.
pub(crate) fn numbers(labels: &TextMap) -> Box<[(Sym, i64)]> {
    labels.iter().filter_map(|(k, v)| Some((Sym::of(k), v.parse().ok()?))).collect()
}

/// Compiles a node's labels and their integer values.
pub(crate) fn node_labels(labels: &TextMap) -> (Labels, Box<[(Sym, i64)]>) {
    (Labels::from_map(labels), numbers(labels))
}
