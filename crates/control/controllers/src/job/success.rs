//! Evaluates the success policy of an indexed Job.

use std::collections::BTreeSet;

use super::indexes;
use crate::views::Job;

/// Returns a message that names the rule that is met, if any.
pub(super) fn met(job: &Job, succeeded: &BTreeSet<i64>) -> Option<String> {
    let limit = job.spec.completions.unwrap_or(0);
    let policy = job.spec.success_policy.as_ref().filter(|_| job.is_indexed())?;
    let rule = policy.rules.iter().position(|rule| {
        let named = rule.succeeded_indexes.as_deref().map(|text| indexes::parse(text, limit));
        match (named, rule.succeeded_count) {
            (Some(named), Some(count)) => named.intersection(succeeded).count() as i64 >= count,
            (Some(named), None) => named.is_subset(succeeded),
            (None, Some(count)) => succeeded.len() as i64 >= count,
            (None, None) => false,
        }
    })?;
    Some(format!("Matched rules at index {rule}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn matches_rules_by_indexes_and_counts() {
        let cases = [
            (json!({"succeededIndexes": "0,2-3"}), "0,2", None),
            (json!({"succeededIndexes": "0,2-3"}), "0,2-4", Some(1)),
            (json!({"succeededCount": 2}), "4", None),
            (json!({"succeededCount": 2}), "1,4", Some(1)),
            (json!({"succeededIndexes": "0-2", "succeededCount": 2}), "0,3,4", None),
            (json!({"succeededIndexes": "0-2", "succeededCount": 2}), "0,2", Some(1)),
        ];
        for (rule, succeeded, wanted) in cases {
            let never = json!({"succeededCount": 100});
            let job: Job = serde_json::from_value(json!({"spec": {
                "completions": 5, "completionMode": "Indexed",
                "successPolicy": {"rules": [never, rule]}}}))
            .unwrap();
            let expected = wanted.map(|at| format!("Matched rules at index {at}"));
            assert_eq!(met(&job, &indexes::parse(succeeded, 5)), expected, "{rule} {succeeded}");
        }
    }
}
