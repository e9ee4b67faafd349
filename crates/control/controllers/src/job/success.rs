//! Evaluates the success policy of an indexed Job.

use std::collections::BTreeSet;

use super::indexes;
use crate::views::Job;

/// Returns a message that names the rule that is met, if any.
pub(super) fn met(job: &Job, succeeded: &BTreeSet<i64>) -> Option<String> {
    let limit = job.spec.completions.unwrap_or(0);
    let policy = job.spec.success_policy.as_ref().filter(|_| job.is_indexed())?;
    let rule = policy.rules.iter().position(|rule| {
        let Some(text) = &rule.succeeded_indexes else {
            return rule.succeeded_count.is_some_and(|count| succeeded.len() as i64 >= count);
        };
        // A few bytes can name two billion indexes, so count those that succeeded. The ranges do not overlap.
        let (mut named, mut matching) = (0, 0);
        for range in indexes::ranges(text, limit) {
            named += range.end() - range.start() + 1;
            matching += succeeded.range(range).count() as i64;
        }
        matching >= rule.succeeded_count.unwrap_or(named)
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

    #[test]
    fn large_ranges_take_no_time_or_memory() {
        let rule = json!({"succeededIndexes": "0-2147483645"});
        let job: Job = serde_json::from_value(json!({"spec": {
            "completions": i32::MAX, "completionMode": "Indexed",
            "successPolicy": {"rules": vec![rule; 20]}}}))
        .unwrap();
        for _ in 0..1000 {
            assert_eq!(met(&job, &BTreeSet::from([1, 3])), None);
        }
    }
}
