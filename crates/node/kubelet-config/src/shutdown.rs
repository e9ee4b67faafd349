//! Settings of a graceful shutdown of the node.

use std::time::Duration;

use api_config::{FeatureGates, GoDuration, kubelet::PriorityGracePeriod};
use pod_core::admit::CRITICAL;
use serde::Deserialize;

use crate::error::ConfigError;

/// The shutdown fields of the configuration file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ShutdownConfiguration {
    shutdown_grace_period: GoDuration,
    shutdown_grace_period_critical_pods: GoDuration,
    shutdown_grace_period_by_pod_priority: Vec<PriorityGracePeriod>,
}

/// The time that the Pods of a range of priorities have to end when the node shuts down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShutdownPeriod {
    /// The lowest priority of the range. It ends below the next period's priority.
    pub priority: i32,
    /// The time that the Pods have to end.
    pub grace: Duration,
}

/// Returns the periods by rising priority. Without any, the node does not wait for Pods when it shuts down.
pub(crate) fn periods(
    config: &ShutdownConfiguration,
    gates: &FeatureGates,
) -> Result<Vec<ShutdownPeriod>, ConfigError> {
    let invalid = |field, message: String| Err(ConfigError::Invalid { field, message });
    let (all, critical) =
        (config.shutdown_grace_period, config.shutdown_grace_period_critical_pods);
    let by_priority = &config.shutdown_grace_period_by_pod_priority;
    for (field, period) in
        [("shutdownGracePeriod", all), ("shutdownGracePeriodCriticalPods", critical)]
    {
        if period.nanos() < 0 || (1..1_000_000_000).contains(&period.nanos()) {
            return invalid(field, format!("{period} must be either zero or otherwise >= 1 sec"));
        }
    }
    if critical > all {
        let message = format!("{critical} must be <= shutdownGracePeriod {all}");
        return invalid("shutdownGracePeriodCriticalPods", message);
    }
    if !by_priority.is_empty() && (!all.is_zero() || !critical.is_zero()) {
        let message = "cannot be specified together with shutdownGracePeriod and \
                       shutdownGracePeriodCriticalPods"
            .to_owned();
        return invalid("shutdownGracePeriodByPodPriority", message);
    }
    if by_priority.iter().any(|period| period.shutdown_grace_period_seconds < 0) {
        let message = "shutdownGracePeriodSeconds must not be negative".to_owned();
        return invalid("shutdownGracePeriodByPodPriority", message);
    }
    if !gates.is_enabled("GracefulNodeShutdown") {
        return Ok(Vec::new());
    }
    let seconds = |seconds: i64| Duration::from_secs(seconds.max(0).unsigned_abs());
    let mut periods: Vec<ShutdownPeriod> = by_priority
        .iter()
        .filter(|_| gates.is_enabled("GracefulNodeShutdownBasedOnPodPriority"))
        .map(|period| ShutdownPeriod {
            priority: period.priority,
            grace: seconds(period.shutdown_grace_period_seconds),
        })
        .collect();
    if periods.is_empty() && !all.is_zero() {
        periods = vec![
            ShutdownPeriod { priority: 0, grace: all.to_std().saturating_sub(critical.to_std()) },
            ShutdownPeriod { priority: CRITICAL, grace: critical.to_std() },
        ];
    }
    periods.sort_by_key(|period| period.priority);
    Ok(periods)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<(i32, u64)>, String> {
        let config = crate::load::parse(text).unwrap();
        let gates = config.gates().unwrap();
        let read = periods(&config.shutdown, &gates).map_err(|error| error.to_string())?;
        Ok(read.iter().map(|period| (period.priority, period.grace.as_secs())).collect())
    }

    #[test]
    fn splits_the_period_between_ordinary_and_critical_pods() {
        assert_eq!(read("{}"), Ok(vec![]));
        let both = "shutdownGracePeriod: 30s\nshutdownGracePeriodCriticalPods: 10s";
        assert_eq!(read(both), Ok(vec![(0, 20), (2_000_000_000, 10)]));
        assert_eq!(
            read(&format!("{both}\nfeatureGates: {{GracefulNodeShutdown: false}}")),
            Ok(vec![])
        );
        let list = "shutdownGracePeriodByPodPriority: [{priority: 1000, shutdownGracePeriodSeconds: 60}, \
                    {priority: 0, shutdownGracePeriodSeconds: 5}]";
        assert_eq!(read(list), Ok(vec![(0, 5), (1000, 60)]));
    }

    #[test]
    fn rejects_periods_that_contradict() {
        for (text, cause) in [
            ("shutdownGracePeriod: 10s\nshutdownGracePeriodCriticalPods: 20s", "must be <= "),
            ("shutdownGracePeriod: 500ms", "either zero or otherwise >= 1 sec"),
            ("shutdownGracePeriod: -1s", "either zero or otherwise >= 1 sec"),
            (
                "shutdownGracePeriod: 1s\nshutdownGracePeriodByPodPriority: [{priority: 1}]",
                "cannot be specified together",
            ),
            (
                "shutdownGracePeriodByPodPriority: [{priority: 1, shutdownGracePeriodSeconds: -1}]",
                "must not be negative",
            ),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(cause), "{text}: {error}");
        }
    }
}
