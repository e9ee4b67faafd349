//! Writes the kubelet's files.

use std::path::PathBuf;

use api_config::{kubeadm::NodeRegistration, yaml};
use bootstrap_core::kubelet;

use crate::{Error, FileChange, node::Node};

/// Writes kubeadm-flags.env, config.yaml and instance-config.yaml. Only the machine's copy contains its runtime
/// endpoint, never the cluster's. With `taint`, the kubelet registers the taints itself.
pub(crate) fn write(
    node: &Node,
    registration: &NodeRegistration,
    taint: bool,
) -> Result<Vec<FileChange>, Error> {
    let flags = kubelet::flags(registration, &rt::node_name(), taint);
    let files = [
        (node.layout.kubelet_flags(), kubelet::flags_env(&flags)),
        (node.layout.kubelet_instance_config(), kubelet::instance_config(registration)?),
        (node.layout.kubelet_config(), config_text(node, registration)?),
    ];
    let write = |(path, text): (PathBuf, String)| {
        pki::write_file(&path, text.as_bytes(), pki::PUBLIC_MODE)?;
        Ok(FileChange::written(path))
    };
    files.into_iter().map(write).collect()
}

/// Returns the text of config.yaml with patches applied.
pub(crate) fn config_text(node: &Node, registration: &NodeRegistration) -> Result<String, Error> {
    let config = yaml::parse(&kubelet::config(&node.config.kubelet, registration)?)?;
    Ok(yaml::to_string(&node.patches.apply("kubeletconfiguration", config)?)?)
}
