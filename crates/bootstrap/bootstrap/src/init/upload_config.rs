//! The phases `upload-config` of `init`.

use bootstrap_core::objects;

use super::context::Ctx;
use crate::phase::{Outcome, Phase};

pub(super) const PHASES: [Phase<Ctx>; 2] = [
    Phase {
        name: "upload-config/kubeadm",
        about: "Keep the cluster's configuration in a ConfigMap",
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
        about: "Keep the kubelets' configuration in a ConfigMap",
        run: |ctx| {
            Box::pin(async {
                let config = objects::kubelet_config(
                    &ctx.node.config.kubelet,
                    ctx.node.config.custom_kubelet,
                )?;
                ctx.node.apply_all(config).await?;
                Ok(Outcome::done())
            })
        },
    },
];
