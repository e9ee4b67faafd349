//! The phases of `upgrade apply` that write the cluster's configuration and the rights of joining nodes.

use bootstrap_core::objects;

use super::context::Ctx;
use crate::{
    init::{upload_kubeadm_config, upload_kubelet_config},
    phase::{Outcome, Phase},
};

pub(super) const UPLOAD: [Phase<Ctx>; 2] = [
    Phase {
        name: "upload-config/kubeadm",
        about: "Upload the kubeadm ClusterConfiguration to a ConfigMap",
        run: |ctx| Box::pin(upload_kubeadm_config(&mut ctx.node)),
    },
    Phase {
        name: "upload-config/kubelet",
        about: "Upload the kubelet configuration to a ConfigMap",
        run: |ctx| Box::pin(upload_kubelet_config(&mut ctx.node)),
    },
];

pub(super) const BOOTSTRAP_TOKEN: Phase<Ctx> = Phase {
    name: "bootstrap-token",
    about: "Configure the rights of bootstrap tokens and of cluster-info",
    run: |ctx| {
        Box::pin(async {
            ctx.node.apply_all(objects::token_rights()).await?;
            Ok(Outcome::done())
        })
    },
};
