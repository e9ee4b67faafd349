//! Limits how fast a target grows and shrinks: stabilization windows and scaling policies.
//!
//! The history is kept only in memory, as upstream does. After a restart the target's current size counts as the first
//! recommendation, so that the target does not shrink at once.

use std::time::Duration;

use api_meta::Timestamp;

use super::object::{Behavior, Rules};

/// Without a behavior, a target may double or grow to this many replicas in one step.
const FREE_GROWTH: i32 = 4;

/// The earlier recommendations and scaling steps of an autoscaler, newest last.
#[derive(Debug, Default)]
pub(super) struct History {
    recommendations: Vec<(Timestamp, i32)>,
    /// Scaling steps; positive for growth.
    steps: Vec<(Timestamp, i32)>,
}

/// The current size of a target and its configured bounds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) min: i32,
    pub(super) max: i32,
    pub(super) current: i32,
}

/// A size, with the reasons and messages of the two conditions that describe it.
#[derive(Debug, PartialEq)]
pub(super) struct LimitedSize {
    pub(super) replicas: i32,
    pub(super) able: (&'static str, &'static str),
    /// The status, reason and message of the `ScalingLimited` condition.
    pub(super) limited: (bool, &'static str, &'static str),
}

const LOWER: &str =
    "recent recommendations were lower than current one, applying the lowest recent recommendation";
const HIGHER: &str = "recent recommendations were higher than current one, applying the highest recent recommendation";
const READY: (&str, &str) = ("ReadyForNewScale", "recommended size matches current size");
const WITHIN: (&str, &str) =
    ("DesiredWithinRange", "the desired count is within the acceptable range");
const TOO_MANY: (&str, &str) =
    ("TooManyReplicas", "the desired replica count is more than the maximum replica count");
const TOO_FEW: (&str, &str) =
    ("TooFewReplicas", "the desired replica count is less than the minimum replica count");
const UP_LIMIT: (&str, &str) =
    ("ScaleUpLimit", "the desired replica count is increasing faster than the maximum scale rate");
const DOWN_LIMIT: (&str, &str) = (
    "ScaleDownLimit",
    "the desired replica count is decreasing faster than the maximum scale rate",
);

impl History {
    /// Records the target's current size as the first recommendation.
    pub(super) fn record_current(&mut self, current: i32, now: Timestamp) {
        if self.recommendations.is_empty() {
            self.recommendations.push((now, current));
        }
    }

    /// Limits the size `proposed`. `window` is the downscale stabilization window unless the behavior sets one.
    pub(super) fn limit(
        &mut self,
        sizes: Sizes,
        proposed: i32,
        behavior: Option<&Behavior>,
        window: Duration,
        now: Timestamp,
    ) -> LimitedSize {
        let none = Rules::default();
        let up = behavior.and_then(|b| b.scale_up.as_ref()).unwrap_or(&none);
        let down = behavior.and_then(|b| b.scale_down.as_ref()).unwrap_or(&none);
        let up_window = seconds(up.stabilization_window_seconds.unwrap_or(0));
        let down_window = down.stabilization_window_seconds.map_or(window, seconds);
        let stable = match behavior {
            Some(_) => self.stable(sizes.current, proposed, up_window, down_window, now),
            None => self.highest(proposed, down_window, now),
        };
        self.recommendations.retain(|(at, _)| now.since(*at) <= up_window.max(down_window));
        self.recommendations.push((now, proposed));
        let able = if stable == proposed {
            READY
        } else if behavior.is_some() && proposed >= sizes.current {
            ("ScaleUpStabilized", LOWER)
        } else {
            ("ScaleDownStabilized", HIGHER)
        };
        let (replicas, (reason, message)) = match behavior {
            Some(_) => self.within_policies(sizes, stable, up, down, now),
            None => within_bounds(sizes, stable),
        };
        LimitedSize { replicas, able, limited: (replicas != stable, reason, message) }
    }

    /// Records a scaling step, for as long as the longest policy period.
    pub(super) fn record_step(&mut self, change: i32, behavior: Option<&Behavior>, now: Timestamp) {
        let Some(behavior) = behavior else { return };
        let rules = [&behavior.scale_up, &behavior.scale_down];
        let longest = rules.into_iter().flatten().flat_map(|rules| &rules.policies);
        let longest = seconds(longest.map(|policy| policy.period_seconds).max().unwrap_or(0));
        self.steps.retain(|(at, _)| now.since(*at) <= longest);
        self.steps.push((now, change));
    }

    fn recent(&self, window: Duration, now: Timestamp) -> impl Iterator<Item = i32> {
        self.recommendations.iter().filter(move |(at, _)| now.since(*at) < window).map(|r| r.1)
    }

    fn highest(&self, proposed: i32, window: Duration, now: Timestamp) -> i32 {
        self.recent(window, now).fold(proposed, i32::max)
    }

    /// Returns the size closest to the current one that all recommendations of both windows allow.
    fn stable(
        &self,
        current: i32,
        proposed: i32,
        up: Duration,
        down: Duration,
        now: Timestamp,
    ) -> i32 {
        let lowest = self.recent(up, now).fold(proposed, i32::min);
        current.max(lowest).min(self.highest(proposed, down, now))
    }

    fn within_policies(
        &self,
        sizes: Sizes,
        proposed: i32,
        up: &Rules,
        down: &Rules,
        now: Timestamp,
    ) -> (i32, (&'static str, &'static str)) {
        let Sizes { min, max, current } = sizes;
        if proposed > current {
            let limit = self.policy_limit(current, up, true, now).max(current);
            let (most, why) = if max > limit { (limit, UP_LIMIT) } else { (max, TOO_MANY) };
            if proposed > most {
                return (most, why);
            }
        } else if proposed < current {
            let limit = self.policy_limit(current, down, false, now).min(current);
            let (least, why) = if min < limit { (limit, DOWN_LIMIT) } else { (min, TOO_FEW) };
            if proposed < least {
                return (least, why);
            }
        }
        (proposed, WITHIN)
    }

    /// The largest or smallest size that the policies allow, given the size at the start of each period.
    fn policy_limit(&self, current: i32, rules: &Rules, up: bool, now: Timestamp) -> i32 {
        let select = rules.select_policy.as_deref().unwrap_or("Max");
        if select == "Disabled" {
            return current;
        }
        let limits = rules.policies.iter().map(|policy| {
            let period = seconds(policy.period_seconds);
            let steps = self.steps.iter().filter(|(at, _)| now.since(*at) < period);
            let began = i64::from(current) - steps.map(|(_, by)| i64::from(*by)).sum::<i64>();
            let by = i64::from(policy.value);
            let limit = match (policy.r#type.as_str(), up) {
                ("Percent", true) => (began as f64 * (1.0 + by as f64 / 100.0)).ceil() as i64,
                ("Percent", false) => (began as f64 * (1.0 - by as f64 / 100.0)) as i64,
                (_, true) => began + by,
                (_, false) => began - by,
            };
            limit.clamp(i32::MIN.into(), i32::MAX.into()) as i32
        });
        // The largest change is the highest limit upwards and the lowest downwards.
        let limit = if (select == "Min") == up { limits.min() } else { limits.max() };
        limit.unwrap_or(if up { i32::MAX } else { 0 })
    }
}

/// Applies the bounds of an autoscaler without a behavior.
fn within_bounds(sizes: Sizes, proposed: i32) -> (i32, (&'static str, &'static str)) {
    let limit = sizes.current.saturating_mul(2).max(FREE_GROWTH);
    let (most, why) = if sizes.max > limit { (limit, UP_LIMIT) } else { (sizes.max, TOO_MANY) };
    if proposed < sizes.min {
        (sizes.min, TOO_FEW)
    } else if proposed > most {
        (most, why)
    } else {
        (proposed, WITHIN)
    }
}

fn seconds(number: u32) -> Duration {
    Duration::from_secs(number.into())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const WINDOW: Duration = Duration::from_secs(300);

    fn at(second: i64) -> Timestamp {
        Timestamp::from_unix(1_800_000_000 + second, 0)
    }

    fn behavior(value: Value) -> Behavior {
        serde_json::from_value(value).unwrap()
    }

    fn sizes(current: i32) -> Sizes {
        Sizes { min: 1, max: 100, current }
    }

    #[test]
    fn shrinks_to_highest_recommendation_in_window() {
        let mut history = History::default();
        history.record_current(10, at(0));
        let size = history.limit(sizes(10), 3, None, WINDOW, at(15));
        assert_eq!((size.replicas, size.able.0), (10, "ScaleDownStabilized"));
        let size = history.limit(sizes(10), 4, None, WINDOW, at(301));
        assert_eq!(
            (size.replicas, size.able.0, size.limited.1),
            (4, "ReadyForNewScale", "DesiredWithinRange")
        );
        assert_eq!(history.limit(sizes(10), 3, None, WINDOW, at(310)).replicas, 4);
    }

    #[test]
    fn grows_to_double_or_four_without_behavior() {
        for (current, wanted, got, why) in [
            (1, 50, 4, "ScaleUpLimit"),
            (10, 50, 20, "ScaleUpLimit"),
            (60, 500, 100, "TooManyReplicas"),
            (10, 15, 15, "DesiredWithinRange"),
            (10, 0, 1, "TooFewReplicas"),
        ] {
            let size = History::default().limit(sizes(current), wanted, None, WINDOW, at(0));
            assert_eq!((size.replicas, size.limited.1), (got, why), "{current} to {wanted}");
        }
    }

    #[test]
    fn policies_limit_change_per_period() {
        let rules = behavior(json!({
            "scaleUp": {"stabilizationWindowSeconds": 0, "selectPolicy": "Max", "policies": [
                {"type": "Pods", "value": 4, "periodSeconds": 60}, {"type": "Percent", "value": 100, "periodSeconds": 60}]},
            "scaleDown": {"stabilizationWindowSeconds": 0, "policies": [{"type": "Percent", "value": 10, "periodSeconds": 60}]},
        }));
        let mut history = History::default();
        let mut step = |from: i32, wanted: i32, second: i64| {
            let size = history.limit(sizes(from), wanted, Some(&rules), WINDOW, at(second));
            if size.replicas != from {
                history.record_step(size.replicas - from, Some(&rules), at(second));
            }
            (size.replicas, size.limited.1)
        };
        assert_eq!(step(10, 90, 0), (20, "ScaleUpLimit"));
        assert_eq!(step(20, 90, 30), (20, "ScaleUpLimit"));
        assert_eq!(step(20, 90, 61), (40, "ScaleUpLimit"));
        assert_eq!(step(40, 5, 130), (36, "ScaleDownLimit"));
        assert_eq!(step(36, 5, 131), (36, "ScaleDownLimit"));
    }

    #[test]
    fn select_policy_min_and_disabled_limit_change() {
        for (select, got) in [("Max", 20), ("Min", 14), ("Disabled", 10)] {
            let rules = behavior(json!({"scaleUp": {"selectPolicy": select, "policies": [
                {"type": "Pods", "value": 4, "periodSeconds": 60}, {"type": "Percent", "value": 100, "periodSeconds": 60}]}}));
            let size = History::default().limit(sizes(10), 90, Some(&rules), WINDOW, at(0));
            assert_eq!(size.replicas, got, "{select}");
        }
        let rules = behavior(
            json!({"scaleDown": {"selectPolicy": "Disabled", "stabilizationWindowSeconds": 0}}),
        );
        assert_eq!(
            History::default().limit(sizes(10), 2, Some(&rules), WINDOW, at(0)).replicas,
            10
        );
    }

    #[test]
    fn scale_up_window_takes_lowest_recommendation() {
        let rules = behavior(json!({"scaleUp": {"stabilizationWindowSeconds": 60,
            "policies": [{"type": "Percent", "value": 900, "periodSeconds": 15}]}}));
        let mut history = History::default();
        history.record_current(10, at(0));
        let size = history.limit(sizes(10), 30, Some(&rules), WINDOW, at(15));
        assert_eq!((size.replicas, size.able.0), (10, "ScaleUpStabilized"));
        assert_eq!(history.limit(sizes(10), 40, Some(&rules), WINDOW, at(70)).replicas, 30);
    }

    #[test]
    fn history_drops_old_entries() {
        let rules = behavior(
            json!({"scaleUp": {"policies": [{"type": "Pods", "value": 1, "periodSeconds": 30}]}}),
        );
        let mut history = History::default();
        for second in 0..10_000 {
            history.limit(sizes(5), 6, Some(&rules), WINDOW, at(second));
            history.record_step(1, Some(&rules), at(second));
        }
        assert!(history.recommendations.len() <= 302 && history.steps.len() <= 32);
    }
}
