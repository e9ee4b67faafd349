//! The priorities of groups and versions in the APIServices of this server's own APIs.

/// Upstream's priorities of groups; the highest comes first.
const GROUPS: &[(&str, i64)] = &[
    ("", 18_000),
    ("admissionregistration.k8s.io", 16_700),
    ("apiextensions.k8s.io", 16_700),
    ("apps", 17_800),
    ("authentication.k8s.io", 17_700),
    ("authorization.k8s.io", 17_600),
    ("autoscaling", 17_500),
    ("batch", 17_400),
    ("certificates.k8s.io", 17_300),
    ("coordination.k8s.io", 16_500),
    ("discovery.k8s.io", 16_200),
    ("events.k8s.io", 17_750),
    ("flowcontrol.apiserver.k8s.io", 16_100),
    ("internal.apiserver.k8s.io", 16_000),
    ("networking.k8s.io", 17_200),
    ("node.k8s.io", 16_300),
    ("policy", 17_100),
    ("rbac.authorization.k8s.io", 17_000),
    ("resource.k8s.io", 16_200),
    ("scheduling.k8s.io", 16_600),
    ("storage.k8s.io", 16_800),
    ("storagemigration.k8s.io", 15_800),
];
/// Upstream's priorities of versions that differ from the default.
const VERSIONS: &[(&str, i64)] = &[
    ("v1.", 1),
    ("v1.flowcontrol.apiserver.k8s.io", 21),
    ("v1.resource.k8s.io", 21),
    ("v1alpha1.admissionregistration.k8s.io", 9),
    ("v1alpha1.certificates.k8s.io", 9),
    ("v1alpha1.internal.apiserver.k8s.io", 9),
    ("v1alpha2.coordination.k8s.io", 12),
    ("v1alpha2.scheduling.k8s.io", 2),
    ("v1beta1.admissionregistration.k8s.io", 12),
    ("v1beta1.coordination.k8s.io", 13),
    ("v1beta1.discovery.k8s.io", 12),
    ("v1beta1.events.k8s.io", 5),
    ("v1beta2.resource.k8s.io", 15),
    ("v2.autoscaling", 30),
];
/// The priority of all custom kinds.
const CUSTOM: (i64, i64) = (1000, 100);

/// Returns the priorities of a group and of one of its versions.
pub(crate) fn of(group: &str, version: &str) -> (i64, i64) {
    let found = |all: &[(&str, i64)], name: &str| {
        all.iter().find(|(known, _)| *known == name).map(|(_, priority)| *priority)
    };
    let Some(of_group) = found(GROUPS, group) else { return CUSTOM };
    let usual = match version {
        version if version.contains("alpha") => 1,
        version if version.contains("beta") => 9,
        _ => 15,
    };
    (of_group, found(VERSIONS, &format!("{version}.{group}")).unwrap_or(usual))
}
