//! Rules of ResourcePoolStatusRequests.

use api_meta::{ErrorList, FieldError, Path, Tree as _, validation};
use serde_json::Value;

use super::resource::pool_name;
use crate::{
    conditions::validate_conditions,
    fields::Rule::{Named, Text, Within},
    meta::{check_immutable, check_not_negative},
    strategy::Strategy,
};

const MAX_CONDITIONS: usize = 10;
/// The maximum number of pools in an answer.
const MAX_POOLS: usize = 1000;
/// The longest text of a pool's error, in bytes.
const MAX_ERROR: usize = 256;
const COUNTS: [&str; 5] = [
    "allocatedDevices",
    "availableDevices",
    "resourceSliceCount",
    "totalDevices",
    "unavailableDevices",
];

pub(crate) static STATUS_REQUEST: Strategy = Strategy {
    status: Some(|| Value::Null),
    check: |request, errors| {
        let path = Path::new("spec").child("limit");
        match request.opt_int("spec.limit") {
            Some(limit @ ..1) => {
                let detail = "must be greater than or equal to 1";
                errors.push(FieldError::invalid(&path, limit, detail));
            }
            Some(limit @ 1001..) => {
                let detail = "must be less than or equal to 1000";
                errors.push(FieldError::invalid(&path, limit, detail));
            }
            _ => {}
        }
    },
    check_update: |new, old, errors| check_immutable(new, old, "spec", errors),
    check_status: |new, old, _, errors| {
        if old.has("status") {
            check_immutable(new, old, "status", errors);
        } else if new.has("status") {
            check_answer(new.at("status"), errors);
        }
    },
    fields: &[
        ("spec.driver", Named(validation::dns1123_subdomain)),
        ("spec.poolName", Text(pool_name)),
    ],
    ..Strategy::PLAIN
};

fn check_answer(status: &Value, errors: &mut ErrorList) {
    let path = Path::new("status");
    if !status.has("poolCount") {
        errors.push(FieldError::required(&path.child("poolCount"), ""));
    }
    check_not_negative(status, "poolCount", &path, errors);
    let (pools, at) = (status.items("pools"), path.child("pools"));
    if pools.len() > MAX_POOLS {
        errors.push(FieldError::too_many(&at, pools.len(), MAX_POOLS));
        return;
    }
    for (i, pool) in pools.iter().enumerate() {
        let at = at.index(i);
        crate::fields::check(pool, POOL, &at, errors);
        COUNTS.iter().for_each(|count| check_not_negative(pool, count, &at, errors));
        if pool.text("validationError").len() > MAX_ERROR {
            errors.push(FieldError::too_long(&at.child("validationError"), MAX_ERROR));
        }
    }
    let (conditions, at) = (status.items("conditions"), path.child("conditions"));
    validate_conditions(conditions, &at, errors);
    if conditions.len() > MAX_CONDITIONS {
        errors.push(FieldError::too_many(&at, conditions.len(), MAX_CONDITIONS));
    }
}

const POOL: &[crate::fields::FieldRule] = &[
    ("driver", Named(validation::dns1123_subdomain)),
    ("poolName", Named(pool_name)),
    ("generation", Within(0, i64::MAX, "must be greater than or equal to 0")),
    ("nodeName", Text(validation::dns1123_subdomain)),
];

#[cfg(test)]
mod tests {
    use api_meta::field::aggregate;
    use serde_json::json;

    use super::*;
    use crate::kinds::tests::{errors, made, updated};

    const GROUP: &str = "resource.k8s.io";
    const PLURAL: &str = "resourcepoolstatusrequests";

    #[test]
    fn validates_spec_and_keeps_it() {
        let told = |spec: Value| errors(GROUP, PLURAL, json!({ "spec": spec }));
        assert_eq!(
            told(json!({"driver": "d.example.com", "poolName": "a/b", "limit": 1000})),
            "[]"
        );
        for (spec, expected) in [
            (json!({}), "spec.driver: Required value"),
            (
                json!({"driver": "d", "limit": 0}),
                "spec.limit: Invalid value: 0: must be greater than or equal to 1",
            ),
            (
                json!({"driver": "d", "limit": 1001}),
                "spec.limit: Invalid value: 1001: must be less than or equal to 1000",
            ),
        ] {
            assert_eq!(told(spec), expected);
        }
        assert!(told(json!({"driver": "D"})).starts_with("spec.driver: Invalid value"));
        assert!(told(json!({"driver": "d", "poolName": "a//b"})).starts_with("spec.poolName"));
        let request = json!({"spec": {"driver": "d"}, "status": {"poolCount": 1}});
        let request = made(GROUP, PLURAL, request);
        assert_eq!(request["spec"]["limit"], 100);
        assert!(request["status"].is_null(), "users cannot answer themselves");
        let (_, errors) =
            updated(&STATUS_REQUEST, &request, |request| request["spec"]["driver"] = json!("e"));
        assert!(errors.contains("field is immutable"), "{errors}");
    }

    #[test]
    fn accepts_one_valid_answer() {
        let told = |new: Value, old: Value| {
            let mut errors = ErrorList::new();
            let (new, old) = (json!({ "status": new }), json!({ "status": old }));
            (STATUS_REQUEST.check_status)(&new, &old, "", &mut errors);
            aggregate(&errors)
        };
        let pool = json!({"driver": "d", "poolName": "p", "generation": 1, "totalDevices": 0});
        let answer = json!({"poolCount": 1, "pools": [pool]});
        assert_eq!(told(answer.clone(), Value::Null), "[]");
        assert_eq!(told(answer.clone(), answer.clone()), "[]");
        assert!(told(json!({"poolCount": 2}), answer).contains("field is immutable"));
        assert_eq!(told(json!({"pools": []}), Value::Null), "status.poolCount: Required value");
        let many = json!({"poolCount": 1, "pools": vec![json!({}); 1001]});
        assert_eq!(
            told(many, Value::Null),
            "status.pools: Too many: 1001: must have at most 1000 items"
        );
        let hostile = json!({"poolCount": -1, "pools": [{"driver": "d", "poolName": "p",
            "generation": 1, "availableDevices": -1, "validationError": "x".repeat(257)}]});
        let told = told(hostile, Value::Null);
        for field in ["status.poolCount", "availableDevices", "validationError"] {
            assert!(told.contains(field), "{told}");
        }
    }
}
