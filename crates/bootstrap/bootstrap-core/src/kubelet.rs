//! The kubelet's files: config.yaml, instance-config.yaml and kubeadm-flags.env.

use api_config::{
    KubeletConfiguration, Taint,
    kubeadm::{Arg, NodeRegistration},
    yaml,
};
use serde_json::json;

use crate::{Error, constants::CONTROL_PLANE_LABEL};

/// Returns the taint that keeps ordinary Pods off control planes.
pub fn control_plane_taint() -> Taint {
    Taint {
        key: CONTROL_PLANE_LABEL.to_owned(),
        value: String::new(),
        effect: "NoSchedule".to_owned(),
    }
}

/// Returns config.yaml of this machine: the cluster's configuration with the machine's runtime endpoint.
pub fn config(
    configuration: &KubeletConfiguration,
    node: &NodeRegistration,
) -> Result<String, Error> {
    let own = KubeletConfiguration {
        container_runtime_endpoint: node.cri_socket.clone(),
        ..configuration.clone()
    };
    Ok(yaml::to_string(&own.to_value()?)?)
}

/// Returns instance-config.yaml, which has the settings of this machine.
pub fn instance_config(node: &NodeRegistration) -> Result<String, Error> {
    Ok(yaml::to_string(&json!({ "containerRuntimeEndpoint": node.cri_socket }))?)
}

/// Returns the flags that no configuration file can set. `hostname` is the kubelet's default node name.
/// `register_taints` is `true` for workers; control planes are tainted through the API, so that the taint can change.
pub fn flags(node: &NodeRegistration, hostname: &str, register_taints: bool) -> Vec<Arg> {
    let mut flags = Vec::new();
    if node.name != hostname {
        flags.push(Arg::new("hostname-override", node.name.as_str()));
    }
    let taints = node.taints.as_deref().unwrap_or_default();
    if register_taints && !taints.is_empty() {
        let written: Vec<String> = taints
            .iter()
            .map(|t| {
                if t.value.is_empty() {
                    format!("{}:{}", t.key, t.effect)
                } else {
                    format!("{}={}:{}", t.key, t.value, t.effect)
                }
            })
            .collect();
        flags.push(Arg::new("register-with-taints", written.join(",")));
    }
    flags.retain(|flag| !node.kubelet_extra_args.iter().any(|extra| extra.name == flag.name));
    flags.extend(node.kubelet_extra_args.iter().cloned());
    flags
}

/// Returns kubeadm-flags.env, which the kubelet's unit reads.
pub fn flags_env(flags: &[Arg]) -> String {
    let flags: Vec<String> = flags.iter().map(|f| format!("--{}={}", f.name, f.value)).collect();
    format!("KUBELET_KUBEADM_ARGS=\"{}\"\n", flags.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returns_only_flags_that_differ_from_defaults() {
        let mut node = NodeRegistration {
            name: "alpha".into(),
            cri_socket: "unix:///run/c.sock".into(),
            ..Default::default()
        };
        assert_eq!(flags_env(&flags(&node, "alpha", true)), "KUBELET_KUBEADM_ARGS=\"\"\n");
        node.taints = Some(vec![
            control_plane_taint(),
            Taint { key: "a".into(), value: "b".into(), effect: "NoExecute".into() },
        ]);
        node.kubelet_extra_args = vec![Arg::new("node-ip", "10.0.0.1")];
        assert_eq!(
            flags_env(&flags(&node, "other", true)),
            "KUBELET_KUBEADM_ARGS=\"--hostname-override=alpha \
             --register-with-taints=node-role.kubernetes.io/control-plane:NoSchedule,a=b:NoExecute --node-ip=10.0.0.1\"\n"
        );
        assert_eq!(flags(&node, "alpha", false), [Arg::new("node-ip", "10.0.0.1")]);
        assert_eq!(
            instance_config(&node).unwrap(),
            "containerRuntimeEndpoint: unix:///run/c.sock\n"
        );
    }
}
