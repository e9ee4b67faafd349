//! Feature gates.

use std::collections::BTreeMap;

/// The gates that change the kubelet's behaviour, with upstream's defaults.
const GATES: &[(&str, bool)] = &[
    ("ContainerCheckpoint", true),
    ("GracefulNodeShutdown", true),
    ("GracefulNodeShutdownBasedOnPodPriority", true),
    ("KubeletCrashLoopBackOffMax", true),
    ("KubeletServiceAccountTokenForCredentialProviders", true),
    ("MemoryQoS", false),
];

/// The feature gates that are set.
#[derive(Clone, Debug, Default)]
pub struct FeatureGates(BTreeMap<String, bool>);

impl FeatureGates {
    /// Creates the gates. Logs those without effect: the behaviour is that of upstream's default.
    pub(crate) fn new(set: &BTreeMap<String, bool>) -> Self {
        let unknown = set.keys().filter(|name| !GATES.iter().any(|(known, _)| known == name));
        unknown.for_each(|gate| tracing::warn!(gate, "a feature gate has no effect"));
        Self(set.clone())
    }

    /// Reports whether a gate is on.
    pub fn enabled(&self, name: &str) -> bool {
        let default = || GATES.iter().any(|(known, on)| *known == name && *on);
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
