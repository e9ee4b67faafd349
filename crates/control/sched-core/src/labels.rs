//! Label sets and label selectors as symbols.

use crate::{
    sym::Sym,
    view::{ExpressionView, LabelSelectorView, TextMap},
};

/// A label set as sorted symbols.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labels(Box<[(Sym, Sym)]>);

impl Labels {
    /// Builds a label set from pairs in any order; each key must occur once.
    pub fn new<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let mut pairs: Vec<_> = pairs.into_iter().map(|(k, v)| (Sym::of(k), Sym::of(v))).collect();
        pairs.sort_unstable();
        Self(pairs.into())
    }

    pub(crate) fn from_map(map: &TextMap) -> Self {
        Self::new(map.iter().map(|(k, v)| (&**k, &**v)))
    }

    /// Returns the symbol of a label's value.
    pub fn get(&self, key: Sym) -> Option<Sym> {
        self.0.binary_search_by_key(&key, |pair| pair.0).ok().map(|at| self.0[at].1)
    }

    /// Returns the value, or [`Sym::NONE`] without the label.
    pub fn value(&self, key: Sym) -> Sym {
        self.get(key).unwrap_or(Sym::NONE)
    }

    /// Returns `true` if the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Op {
    In(Box<[Sym]>),
    NotIn(Box<[Sym]>),
    Exists,
    Absent,
}

/// A label selector: all requirements must hold. As in the API, an absent selector (`Option<Selector>::None`) matches
/// nothing, and an empty one matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Selector {
    never: bool,
    requirements: Vec<(Sym, Op)>,
}

impl Selector {
    /// Compiles a selector. An unknown operator makes it match nothing.
    pub fn new(view: &LabelSelectorView) -> Self {
        let mut out = Self::from_labels(&view.match_labels);
        for expression in &view.match_expressions {
            out.push_expression(expression);
        }
        out
    }

    pub(crate) fn from_labels(map: &TextMap) -> Self {
        let requirements =
            map.iter().map(|(k, v)| (Sym::of(k), Op::In([Sym::of(v)].into()))).collect();
        Self { never: false, requirements }
    }

    /// An unknown operator matches nothing; the API's validation rejects such selectors.
    fn push_expression(&mut self, view: &ExpressionView) {
        let values = || view.values.iter().map(|v| Sym::of(v)).collect();
        let op = match &*view.operator {
            "In" => Op::In(values()),
            "NotIn" => Op::NotIn(values()),
            "Exists" => Op::Exists,
            "DoesNotExist" => Op::Absent,
            _ => {
                self.never = true;
                return;
            }
        };
        self.requirements.push((Sym::of(&view.key), op));
    }

    pub(crate) fn require(&mut self, key: Sym, value: Sym) {
        self.requirements.push((key, Op::In([value].into())));
    }

    pub(crate) fn exclude(&mut self, key: Sym, value: Sym) {
        self.requirements.push((key, Op::NotIn([value].into())));
    }

    /// Returns the conjunction of both selectors.
    pub(crate) fn and(mut self, other: &Selector) -> Self {
        self.never |= other.never;
        self.requirements.extend(other.requirements.iter().cloned());
        self
    }

    /// Returns `true` if the selector matches everything.
    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty() && !self.never
    }

    /// Reports whether all requirements hold. A missing label satisfies `NotIn`, as in the API.
    pub fn matches(&self, labels: &Labels) -> bool {
        !self.never
            && self.requirements.iter().all(|(key, op)| {
                let value = labels.get(*key);
                match op {
                    Op::In(values) => value.is_some_and(|v| values.contains(&v)),
                    Op::NotIn(values) => value.is_none_or(|v| !values.contains(&v)),
                    Op::Exists => value.is_some(),
                    Op::Absent => value.is_none(),
                }
            })
    }
}
