//! Writes the kubelet's files.

use api_config::{
    KubeletConfiguration,
    kubeadm::{Arg, NodeRegistration},
    yaml,
};
use bootstrap_core::{Layout, kubelet};

use crate::{Error, FileChange, patches::Patches};

/// Writes config.yaml and instance-config.yaml. Only the machine's copy contains its runtime endpoint, never the
/// cluster's.
pub(crate) fn write_config(
    layout: &Layout,
    configuration: &KubeletConfiguration,
    node: &NodeRegistration,
    patches: &Patches,
) -> Result<Vec<FileChange>, Error> {
    let config = patches
        .apply("kubeletconfiguration", yaml::parse(&kubelet::config(configuration, node)?)?)?;
    let (path, instance) = (layout.kubelet_config(), layout.kubelet_instance_config());
    pki::write_file(&instance, kubelet::instance_config(node)?.as_bytes(), pki::PUBLIC_MODE)?;
    pki::write_file(&path, yaml::to_string(&config)?.as_bytes(), pki::PUBLIC_MODE)?;
    Ok(vec![FileChange::written(instance), FileChange::written(path)])
}

/// Writes kubeadm-flags.env.
pub(crate) fn write_flags(layout: &Layout, flags: &[Arg]) -> Result<FileChange, Error> {
    let path = layout.kubelet_flags();
    pki::write_file(&path, kubelet::flags_env(flags).as_bytes(), pki::PUBLIC_MODE)?;
    Ok(FileChange::written(path))
}
