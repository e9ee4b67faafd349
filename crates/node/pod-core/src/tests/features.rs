//! Tests of optional features: unsupported ones are refused.

use k8s_openapi::api::core::v1::VolumeMount;
use serde_json::json;

use super::steps::pod;
use crate::features::{Features, check_groups, needs_features, recursive_read_only};

const ALL: Features = Features {
    supplemental_groups_policy: true,
    recursive_read_only_mounts: true,
    user_namespaces: true,
};

#[test]
fn rejects_recursive_read_only_mount_without_support() {
    let none = Features::default();
    let unsupported = "failed to resolve recursive read-only mode: volume \"v\" requested recursive read-only mode, but it is not supported by the runtime";
    let writable = "failed to resolve recursive read-only mode: volume \"v\" requested recursive read-only mode, but it is not read-only";
    let shared = "failed to resolve recursive read-only mode: volume \"v\" requested recursive read-only mode, but it is not compatible with propagation \"HostToContainer\"";
    for (mode, read_only, propagation, features, expected) in [
        (None, true, None, ALL, Ok(false)),
        (Some("Disabled"), true, None, ALL, Ok(false)),
        (Some("IfPossible"), true, None, ALL, Ok(true)),
        (Some("IfPossible"), true, None, none, Ok(false)),
        (Some("Enabled"), true, None, ALL, Ok(true)),
        (Some("Enabled"), true, Some("None"), ALL, Ok(true)),
        (Some("Enabled"), true, None, none, Err(unsupported)),
        (Some("Enabled"), false, None, ALL, Err(writable)),
        (Some("IfPossible"), false, None, ALL, Err(writable)),
        (Some("Enabled"), true, Some("HostToContainer"), ALL, Err(shared)),
        (
            Some("Always"),
            true,
            None,
            ALL,
            Err(
                "failed to resolve recursive read-only mode: unknown recursive read-only mode \"Always\"",
            ),
        ),
    ] {
        let mount: VolumeMount = serde_json::from_value(json!({
            "name": "v", "mountPath": "/v", "readOnly": read_only,
            "recursiveReadOnly": mode, "mountPropagation": propagation,
        }))
        .unwrap();
        let resolved = recursive_read_only(&mount, features).map_err(|error| error.to_string());
        assert_eq!(
            resolved,
            expected.map_err(str::to_owned),
            "{mode:?} {read_only} {propagation:?}"
        );
    }
}

#[test]
fn rejects_strict_groups_without_support() {
    let with = |policy: &str| {
        pod(json!({ "containers": [{ "name": "c" }],
            "securityContext": { "supplementalGroupsPolicy": policy } }))
    };
    let refusal = check_groups(&with("Strict"), Features::default()).unwrap_err();
    assert_eq!(refusal.reason, "SupplementalGroupsPolicyNotSupported");
    assert_eq!(refusal.message, "SupplementalGroupsPolicy=Strict is not supported in this node");
    assert_eq!(check_groups(&with("Strict"), ALL), Ok(()));
    assert_eq!(check_groups(&with("Merge"), Features::default()), Ok(()));
    let container =
        |pod: &k8s_openapi::api::core::v1::Pod| pod.spec.as_ref().unwrap().containers[0].clone();
    let strict = with("Strict");
    assert!(needs_features(&strict, &container(&strict)));
    let merge = with("Merge");
    assert!(!needs_features(&merge, &container(&merge)), "other Pods cost no call");
}
