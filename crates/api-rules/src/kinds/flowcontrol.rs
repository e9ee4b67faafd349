//! API priority and fairness.

use api_meta::{FieldError, Path};
use serde_json::json;

use crate::{
    look::{Look, default},
    pod::one_of,
    strategy::Strategy,
};

pub(crate) static FLOW_SCHEMA: Strategy = Strategy {
    status: Some(|| json!({})),
    generation: true,
    check: |schema, errors| {
        let (spec, path) = (schema.at("spec"), Path::new("spec"));
        let precedence = spec.int("matchingPrecedence");
        let path_precedence = path.child("matchingPrecedence");
        if precedence < 1 {
            let detail = "must be a positive value";
            errors.push(FieldError::invalid(&path_precedence, precedence, detail));
        } else if precedence > 10_000 {
            let detail = "must not be greater than 10000";
            errors.push(FieldError::invalid(&path_precedence, precedence, detail));
        }
        if spec.blank("priorityLevelConfiguration.name") {
            let path = path.child("priorityLevelConfiguration").child("name");
            errors.push(FieldError::required(&path, "must reference a priority level"));
        }
    },
    ..Strategy::PLAIN
};

pub(crate) static PRIORITY_LEVEL: Strategy = Strategy {
    status: Some(|| json!({})),
    generation: true,
    own_defaults: |level| match level.text("spec.type") {
        "Exempt" => {
            default(level, "spec.exempt.nominalConcurrencyShares", 0);
            default(level, "spec.exempt.lendablePercent", 0);
        }
        "Limited" => {
            default(level, "spec.limited.nominalConcurrencyShares", 30);
            default(level, "spec.limited.lendablePercent", 0);
            if level.text("spec.limited.limitResponse.type") == "Queue" {
                default(level, "spec.limited.limitResponse.queuing.queues", 64);
                default(level, "spec.limited.limitResponse.queuing.handSize", 8);
                default(level, "spec.limited.limitResponse.queuing.queueLengthLimit", 50);
            }
        }
        _ => {}
    },
    check: |level, errors| {
        one_of(level.at("spec"), "type", &["Exempt", "Limited"], &Path::new("spec"), errors);
    },
    ..Strategy::PLAIN
};
