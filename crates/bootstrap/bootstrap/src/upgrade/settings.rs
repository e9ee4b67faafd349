//! The phases of `upgrade apply` that write the cluster's configuration and the rights of joining nodes.

use bootstrap_core::objects;

use super::context::Ctx;
use crate::phase::{Outcome, Phase};

pub(super) const UPLOAD: [Phase<Ctx>; 2] = [
    Phase {
        name: "upload-config/kubeadm",
        about: "Upload the kubeadm ClusterConfiguration to a ConfigMap",
        run: |ctx| {
            Box::pin(async {
                let config = objects::kubeadm_config(&ctx.node.config.cluster)?;
                ctx.node.apply_all(config).await?;
                Ok(Outcome::done())
            })
        },
    },
    Phase {
        name: "upload-config/kubelet",
        about: "Upload the kubelet configuration to a ConfigMap",
        run: |ctx| {
            Box::pin(async {
                let config = &ctx.node.config;
                let config = objects::kubelet_config(&config.kubelet, config.custom_kubelet)?;
                ctx.node.apply_all(config).await?;
                Ok(Outcome::done())
            })
        },
    },
];

pub(super) const BOOTSTRAP_TOKEN: Phase<Ctx> = Phase {
    name: "bootstrap-token",
    about: "Configure the rights of bootstrap tokens and of cluster-info",
    run: |ctx| {
        Box::pin(async {
            let mut all = vec![objects::api_server_kubelet_client()];
            all.extend(objects::node_bootstrap());
            all.extend(objects::cluster_info_access());
            ctx.node.apply_all(all).await?;
            Ok(Outcome::done())
        })
    },
};
