//! The two sets of upstream's tests that can run on a cluster.

use super::list::Test;

/// A set of tests with its results and its page of the book.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Set {
    /// The tests that the suite marks as conformance tests.
    Conformance,
    /// The other tests that need no cloud, no alpha feature and no storage server.
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
const EXCLUDED: &[&str] =
    &["[Conformance]", "[Alpha]", "[Disruptive]", "[Flaky]", "PersistentVolumes NFS"];

/// The optional features whose tests are in [`Set::Beyond`].
const FEATURES: &[&str] = &[
    "BoundServiceAccountTokenVolume",
    "EnvFiles",
    "HPA",
    "HPAConfigurableTolerance",
    "HostAccess",
    "Ingress",
    "InPlacePodVerticalScaling",
    "MutatingAdmissionPolicy",
    "NetworkPolicy",
    "NodeAuthorizer",
    "PodLevelResources",
    "PodPriority",
    "RelaxedDNSSearchValidation",
    "RuntimeHandler",
    "ServiceCIDRs",
    "StatefulSet",
    "SupplementalGroupsPolicy",
    "UserNamespacesSupport",
    "VolumeAttributesClass",
];

/// The storage drivers whose tests are in [`Set::Beyond`].
const DRIVERS: &[&str] = &["csi-hostpath", "emptydir", "hostPath", "hostPathSymlink", "local"];

impl Set {
    pub(super) fn has(self, test: &Test) -> bool {
        match self {
            Self::Conformance => test.name.contains("[Conformance]"),
            Self::Beyond => {
                GROUPS.contains(&test.group())
                    && !EXCLUDED.iter().any(|part| test.name.contains(part))
                    && labels(&test.name, "[Feature:").all(|feature| FEATURES.contains(&feature))
                    && labels(&test.name, "[Driver: ").all(|driver| DRIVERS.contains(&driver))
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

/// Returns the labels of a kind in a test's name, such as `HPA` of `[Feature:HPA]` for the kind `[Feature:`.
fn labels<'a>(name: &'a str, kind: &str) -> impl Iterator<Item = &'a str> {
    let parts = name.split(kind).skip(1);
    parts.map(|part| part.split_once(']').map_or(part, |(label, _)| label))
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
            "[sig-storage] Volumes [Driver: local] [LocalVolumeType: tmpfs] mounts",
            "[sig-storage] CSI Mock volume attach",
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
