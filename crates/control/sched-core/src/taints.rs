//! Taints of nodes and tolerations of Pods.

use crate::{sym::Sym, view::TolerationView};

/// The effect of a taint.
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

/// A taint of a node.
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

/// A toleration of a Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Toleration {
    key: Option<Sym>,
    op: TolerationOp,
    effect: Option<Effect>,
}

impl Toleration {
    pub(crate) fn new(view: &TolerationView) -> Self {
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
