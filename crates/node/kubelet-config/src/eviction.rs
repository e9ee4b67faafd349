//! Eviction settings: the thresholds and the reaction to them.

use std::{collections::BTreeMap, time::Duration};

use api_config::GoDuration;
use pod_core::evict::{Amount, Signal, Threshold};
use serde::Deserialize;

use crate::{
    defaults::duration_or,
    error::{ConfigError, invalid},
};

type Amounts = BTreeMap<String, String>;

/// The eviction fields of the configuration file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct EvictionConfiguration {
    eviction_hard: Option<Amounts>,
    eviction_soft: Amounts,
    eviction_soft_grace_period: BTreeMap<String, GoDuration>,
    eviction_pressure_transition_period: GoDuration,
    eviction_max_pod_grace_period: u64,
    eviction_minimum_reclaim: Amounts,
    merge_default_eviction_settings: bool,
}

/// The checked eviction settings.
#[derive(Clone, Debug, Default)]
pub struct EvictionSettings {
    /// The hard and soft thresholds.
    pub thresholds: Vec<Threshold>,
    /// The time that a pressure condition stays on the Node after the last shortage.
    pub transition: Duration,
    /// The longest termination grace period of a Pod evicted by a soft threshold.
    pub grace: Duration,
}

/// The hard thresholds used if the configuration has none.
const HARD: [(&str, &str); 5] = [
    ("memory.available", "100Mi"),
    ("nodefs.available", "10%"),
    ("nodefs.inodesFree", "5%"),
    ("imagefs.available", "15%"),
    ("imagefs.inodesFree", "5%"),
];

impl EvictionSettings {
    /// Returns the amount of a resource that the hard thresholds keep free.
    pub fn hard_minimum(&self, signal: Signal, capacity: u64) -> u64 {
        let hard = self.thresholds.iter().filter(|t| t.grace.is_none() && t.signal == signal);
        hard.map(|t| t.amount.of(capacity)).max().unwrap_or(0)
    }

    pub(crate) fn new(config: &EvictionConfiguration) -> Result<Self, ConfigError> {
        let defaults = HARD.map(|(signal, amount)| (signal.to_owned(), amount.to_owned())).into();
        let hard = match &config.eviction_hard {
            None => defaults,
            Some(configured) if config.merge_default_eviction_settings => {
                let mut merged: Amounts = defaults;
                merged.extend(configured.clone());
                merged
            }
            Some(configured) => configured.clone(),
        };
        let mut thresholds = Vec::new();
        for (name, text) in &hard {
            thresholds.extend(threshold("evictionHard", name, text, config)?);
        }
        for (name, text) in &config.eviction_soft {
            let Some(grace) = config.eviction_soft_grace_period.get(name) else {
                let message =
                    format!("{name}: evictionSoftGracePeriod must say how long it may last");
                return Err(invalid("evictionSoft", message));
            };
            let soft = threshold("evictionSoft", name, text, config)?;
            thresholds.extend(soft.map(|t| Threshold { grace: Some(grace.to_std()), ..t }));
        }
        Ok(Self {
            thresholds,
            transition: duration_or(config.eviction_pressure_transition_period, 300),
            grace: Duration::from_secs(config.eviction_max_pod_grace_period),
        })
    }
}

/// Parses a threshold. Returns `None` if the amount disables the threshold.
fn threshold(
    field: &'static str,
    name: &str,
    text: &str,
    config: &EvictionConfiguration,
) -> Result<Option<Threshold>, ConfigError> {
    let signal =
        Signal::ALL.into_iter().find(|signal| signal.as_str() == name).ok_or_else(|| {
            let signals = Signal::ALL.map(Signal::as_str).join(", ");
            invalid(field, format!("{name:?} is not measured; what is: {signals}"))
        })?;
    let amount = |field, text: &str| {
        let wrong = || {
            invalid(
                field,
                format!("{name}: {text:?} is neither a quantity nor a share of 0% to 100%"),
            )
        };
        Amount::parse(text).ok_or_else(wrong)
    };
    let least = amount(field, text)?;
    let off = matches!(least, Amount::Count(0)) || text.trim() == "0%" || text.trim() == "100%";
    let reclaim = config.eviction_minimum_reclaim.get(name);
    let reclaim = reclaim.map(|text| amount("evictionMinimumReclaim", text)).transpose()?;
    Ok((!off).then_some(Threshold { signal, amount: least, grace: None, reclaim }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(text: &str) -> Result<EvictionSettings, ConfigError> {
        let config = crate::load::parse(text).unwrap();
        EvictionSettings::new(&config.eviction)
    }

    #[test]
    fn uses_upstream_thresholds_unless_some_are_set() {
        assert_eq!(settings("{}").unwrap().thresholds.len(), HARD.len());
        let own = settings("evictionHard: {memory.available: 5%, nodefs.available: 0%}").unwrap();
        assert_eq!(own.thresholds.len(), 1, "nothing is added, and 0% is off");
        let merged = "evictionHard: {memory.available: 5%}\nmergeDefaultEvictionSettings: true";
        assert_eq!(settings(merged).unwrap().thresholds.len(), HARD.len());
        let soft = "evictionHard: {}\nevictionSoft: {memory.available: 1Gi}\nevictionSoftGracePeriod: {memory.available: 90s}\nevictionMinimumReclaim: {memory.available: 10Mi}";
        let soft = settings(soft).unwrap().thresholds.remove(0);
        assert_eq!(soft.grace, Some(Duration::from_secs(90)));
        assert_eq!(soft.reclaim, Some(Amount::Count(10 << 20)));
    }

    #[test]
    fn rejects_invalid_thresholds() {
        for (text, cause) in [
            ("evictionHard: {disk.available: 1Gi}", "disk.available"),
            ("evictionHard: {memory.available: much}", "much"),
            ("evictionSoft: {memory.available: 1Gi}", "evictionSoftGracePeriod"),
        ] {
            let error = settings(text).unwrap_err().to_string();
            assert!(error.contains(cause), "{error}");
        }
    }
}
