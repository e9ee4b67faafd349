//! Feature gates.

use std::collections::BTreeMap;

/// The gates that change the kubelet's behaviour.
const GATES: &[&str] = &[
    "ContainerCheckpoint",
    "GracefulNodeShutdown",
    "GracefulNodeShutdownBasedOnPodPriority",
    "KubeletCrashLoopBackOffMax",
    "MemoryQoS",
];

/// The feature gates that are set.
#[derive(Clone, Debug, Default)]
pub(crate) struct FeatureGates(BTreeMap<String, bool>);

impl FeatureGates {
    /// Creates the gates. Logs those without effect: the behaviour is that of upstream's default.
    pub(crate) fn new(set: &BTreeMap<String, bool>) -> Self {
        let unknown = set.keys().filter(|name| !GATES.contains(&name.as_str()));
        unknown.for_each(|gate| tracing::warn!(gate, "a feature gate has no effect"));
        Self(set.clone())
    }

    /// Reports whether a gate is on: as it is set, or else as upstream's default.
    pub(crate) fn enabled(&self, name: &str) -> bool {
        let default = || api_config::FeatureGates::default().is_enabled(name);
        self.0.get(name).copied().unwrap_or_else(default)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses_upstream_default_unless_gate_is_set() {
        let gates = FeatureGates::new(&[("GracefulNodeShutdown".to_owned(), false)].into());
        assert!(!gates.enabled("GracefulNodeShutdown") && !gates.enabled("MemoryQoS"));
        assert!(gates.enabled("ContainerCheckpoint"));
    }
}
