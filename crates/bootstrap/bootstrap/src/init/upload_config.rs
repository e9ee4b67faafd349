//! The phases `upload-config` of `init`.

use bootstrap_core::objects;

use super::context::Ctx;
use crate::{
    Error,
    node::Node,
    phase::{Outcome, Phase},
};

pub(super) const PHASES: [Phase<Ctx>; 2] = [
    Phase {
        name: "upload-config/kubeadm",
        about: "Keep the cluster's configuration in a ConfigMap",
        run: |ctx| Box::pin(upload_kubeadm_config(&mut ctx.node)),
    },
    Phase {
        name: "upload-config/kubelet",
        about: "Keep the kubelets' configuration in a ConfigMap",
        run: |ctx| Box::pin(upload_kubelet_config(&mut ctx.node)),
    },
];

/// Writes the ConfigMap kubeadm-config and the access to it.
pub(crate) async fn upload_kubeadm_config(node: &mut Node) -> Result<Outcome, Error> {
    let objects = objects::kubeadm_config(&node.config.cluster)?;
    node.apply_all(objects).await?;
    Ok(Outcome::done())
}

/// Writes the ConfigMap kubelet-config and the access to it.
pub(crate) async fn upload_kubelet_config(node: &mut Node) -> Result<Outcome, Error> {
    let objects = objects::kubelet_config(&node.config.kubelet, node.config.custom_kubelet)?;
    node.apply_all(objects).await?;
    Ok(Outcome::done())
}
