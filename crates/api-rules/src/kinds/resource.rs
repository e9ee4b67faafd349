//! Dynamic resource allocation.

use serde_json::json;

use crate::{look::Look, meta::check_immutable, strategy::Strategy};

pub(crate) static DEVICE_CLASS: Strategy = Strategy { generation: true, ..Strategy::PLAIN };

pub(crate) static CLAIM: Strategy = Strategy {
    status: Some(|| json!({})),
    check_update: |new, old, errors| check_immutable(new, old, "spec", errors),
    ..Strategy::PLAIN
};

pub(crate) static CLAIM_TEMPLATE: Strategy = Strategy {
    check_update: |new, old, errors| check_immutable(new, old, "spec", errors),
    ..Strategy::PLAIN
};

pub(crate) static SLICE: Strategy = Strategy {
    generation: true,
    check_update: |new, old, errors| {
        for field in ["spec.nodeName", "spec.driver", "spec.pool.name"] {
            check_immutable(new, old, field, errors);
        }
    },
    selectable: &[
        ("spec.nodeName", |slice| slice.text("spec.nodeName").to_owned()),
        ("spec.driver", |slice| slice.text("spec.driver").to_owned()),
    ],
    ..Strategy::PLAIN
};
