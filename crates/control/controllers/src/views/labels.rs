//! Labels and label selectors.

use std::collections::BTreeMap;

use api_meta::{LabelSelector, Selector};

pub(crate) type Labels = BTreeMap<String, String>;

/// Converts a selector. An invalid or empty one selects nothing, because selecting all Pods would do more harm.
pub(crate) fn selector(of: Option<&LabelSelector>) -> Selector {
    let selector = of.filter(|s| !s.is_empty()).map(LabelSelector::to_selector);
    selector.and_then(Result::ok).unwrap_or_else(Selector::nothing)
}
