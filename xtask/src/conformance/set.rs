//! The two sets of upstream's tests that can run on a cluster.

use super::list::Test;

/// A set of tests with its results and its page of the book.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Set {
    /// The tests that the suite marks as conformance tests.
    Conformance,
    /// The other tests that need no cloud, no alpha feature and no driver of another project.
    Beyond,
}

/// The groups whose tests are in [`Set::Beyond`].
const GROUPS: &[&str] = &[
    "sig-api-machinery",
    "sig-apps",
    "sig-auth",
    "sig-autoscaling",
    "sig-cli",
    "sig-network",
    "sig-node",
    "sig-scheduling",
    "sig-storage",
];

/// The parts of names whose tests are not in [`Set::Beyond`].
const EXCLUDED: &[&str] = &[
    "[Conformance]",
    "[Alpha]",
    "[Disruptive]",
    "[Flaky]",
    "[Driver: ",
    // They need the sidecars of CSI drivers.
    "CSI Mock",
    "PersistentVolumes NFS",
];

/// The optional features whose tests are in [`Set::Beyond`].
const FEATURES: &[&str] = &[
    "BoundServiceAccountTokenVolume",
    "EnvFiles",
    "HPA",
    "InPlacePodVerticalScaling",
    "NetworkPolicy",
    "NodeAuthorizer",
    "PodLevelResources",
    "PodPriority",
    "RuntimeHandler",
    "StatefulSet",
    "SupplementalGroupsPolicy",
    "UserNamespacesSupport",
];

const FEATURE: &str = "[Feature:";

impl Set {
    pub(super) fn has(self, test: &Test) -> bool {
        match self {
            Self::Conformance => test.name.contains("[Conformance]"),
            Self::Beyond => {
                GROUPS.contains(&test.group())
                    && !EXCLUDED.iter().any(|part| test.name.contains(part))
                    && features(&test.name).all(|feature| FEATURES.contains(&feature))
            }
        }
    }

    /// Returns the name of the file with the results.
    pub(super) fn file(self) -> &'static str {
        match self {
            Self::Conformance => "cluster.json",
            Self::Beyond => "beyond.json",
        }
    }

    /// Returns the path of the page below the workspace's root.
    pub(super) fn page(self) -> &'static str {
        match self {
            Self::Conformance => "docs/conformance.md",
            Self::Beyond => "docs/beyond.md",
        }
    }
}

/// Returns the optional features in a test's name, such as `HPA` of `[Feature:HPA]`.
fn features(name: &str) -> impl Iterator<Item = &str> {
    let parts = name.split(FEATURE).skip(1);
    parts.map(|part| part.split_once(']').map_or(part, |(feature, _)| feature))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beyond_lacks_clouds_drivers_and_other_features() {
        let is_beyond = |name: &str| {
            let test = Test { class: String::new(), name: name.to_owned() };
            assert_eq!(Set::Conformance.has(&test), name.contains("[Conformance]"), "{name}");
            Set::Beyond.has(&test)
        };
        for name in [
            "[sig-apps] Job should run",
            "[sig-autoscaling] [Feature:HPA] [Serial] scales up",
            "[sig-node] [FeatureGate:SidecarContainers] Probing",
        ] {
            assert!(is_beyond(name), "{name}");
        }
        for name in [
            "[sig-apps] Job should run [Conformance]",
            "[sig-cloud-provider-gcp] Nodes [Slow] resizes",
            "[sig-autoscaling] [Feature:HPA] [Feature:Cloud] scales up",
            "[sig-network] LoadBalancers [Feature:LoadBalancer",
            "[sig-storage] Volumes [Driver: nfs] mounts",
            "[sig-node] Pod [Alpha] restarts",
        ] {
            assert!(!is_beyond(name), "{name}");
        }
    }
}
