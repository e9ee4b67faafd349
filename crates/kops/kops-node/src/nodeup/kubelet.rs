//! The kubelet's settings that a spec can change.

use api_config::kubelet::KubeletConfiguration;
use serde_json::Value;

use crate::error::Error;

/// The fields of a spec's `kubelet` that act. The kubelet's own configuration has the same names and values. Its other
/// fields follow from the machine, whose disk, cgroups and files are set up by nodeup.
pub const KUBELET_FIELDS: [&str; 18] = [
    "allowedUnsafeSysctls",
    "containerLogMaxFiles",
    "containerLogMaxSize",
    "cpuCFSQuota",
    "cpuManagerPolicy",
    "imageMinimumGCAge",
    "kubeReserved",
    "maxPods",
    "nodeLeaseDurationSeconds",
    "nodeStatusUpdateFrequency",
    "podPidsLimit",
    "runtimeRequestTimeout",
    "seccompDefault",
    "serializeImagePulls",
    "streamingConnectionIdleTimeout",
    "systemReserved",
    "tlsCipherSuites",
    "tlsMinVersion",
];

/// Sets the fields of a node configuration's `KubeletConfig` that act.
pub(super) fn set_fields(config: &mut KubeletConfiguration, kubelet: &Value) -> Result<(), Error> {
    let mut tree = config.to_value()?;
    let Some(members) = tree.as_object_mut() else { return Ok(()) };
    for name in KUBELET_FIELDS {
        if let Some(value) = kubelet.get(name).filter(|value| !value.is_null()) {
            members.insert(name.to_owned(), value.clone());
        }
    }
    *config = KubeletConfiguration::from_value(tree)?.value;
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn sets_only_fields_that_act() {
        let mut config = KubeletConfiguration::new();
        config.cgroup_root = "/own".to_owned();
        let kubelet = json!({
            "maxPods": 5, "cgroupRoot": "/", "systemReserved": {"cpu": "100m"}, "seccompDefault": true,
            "nodeStatusUpdateFrequency": "20s", "containerLogMaxSize": "1Mi", "podPidsLimit": null,
        });
        set_fields(&mut config, &kubelet).unwrap();
        assert_eq!((config.max_pods, config.seccomp_default), (5, Some(true)));
        assert_eq!((config.cgroup_root.as_str(), config.pod_pids_limit), ("/own", None));
        assert_eq!(config.node_status_update_frequency.to_string(), "20s");
        let reserved = config.system_reserved.clone().unwrap_or_default();
        assert_eq!(reserved.get("cpu").map(String::as_str), Some("100m"));
        assert!(set_fields(&mut config, &json!({"maxPods": "many"})).is_err());
    }

    /// Each field is one that the kubelet's configuration has, with the type of the spec's field.
    #[test]
    fn every_field_reaches_the_configuration() {
        let value = |name: &str| match name {
            "allowedUnsafeSysctls" | "tlsCipherSuites" => json!(["a"]),
            "containerLogMaxSize" | "cpuManagerPolicy" | "tlsMinVersion" => json!("a"),
            "cpuCFSQuota" | "seccompDefault" | "serializeImagePulls" => json!(false),
            "kubeReserved" | "systemReserved" => json!({"cpu": "1"}),
            name if name.ends_with("Age")
                || name.ends_with("Frequency")
                || name.ends_with("Timeout") =>
            {
                json!("7s")
            }
            _ => json!(7),
        };
        for name in KUBELET_FIELDS {
            let mut config = KubeletConfiguration::new();
            set_fields(&mut config, &json!({ name: value(name) })).unwrap();
            assert_ne!(config, KubeletConfiguration::new(), "{name}");
        }
    }
}
