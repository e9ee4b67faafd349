//! The phases of `init` that start the kubelet and renew its client certificate.

use std::time::Duration;

use api_config::Kubeconfig;
use bootstrap_core::endpoint;

use super::context::Ctx;
use crate::{
    Error, FileChange, kubelet,
    phase::{Outcome, Phase},
};

/// The time for the kubelet's first certificate renewal.
const PATIENCE: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(50);

pub(super) const START: Phase<Ctx> = Phase {
    name: "kubelet-start",
    about: "Write the kubelet's settings and (re)start it",
    run: |ctx| {
        Box::pin(async {
            let node = &ctx.node;
            if !node.dry_run {
                // A running kubelet would continue with its old settings.
                node.service.stop().await?;
            }
            let registration = &node.config.init.node_registration;
            // A control plane is tainted through the API, so that the taint can be removed again.
            let mut touched = kubelet::write(node, registration, false)?;
            let own = endpoint::local_host_port(&node.config.init.local_api_endpoint);
            touched.extend(node.write_balancer(&own)?);
            touched.extend(node.write_virtual_address()?);
            if let Some(held) =
                node.config.cluster.virtual_address.as_ref().filter(|_| !node.dry_run)
            {
                (node.take_address)(held, &node.config.init.local_api_endpoint).map_err(
                    |source| Error::VirtualAddress { address: held.address.clone(), source },
                )?;
            }
            if !node.dry_run {
                touched.extend(node.service.install(true).await?);
                node.service.start().await?;
            }
            Ok(Outcome::Done(touched))
        })
    },
};

pub(super) const FINALIZE: Phase<Ctx> = Phase {
    name: "kubelet-finalize/enable-client-cert-rotation",
    about: "Point kubelet.conf at the certificate that the kubelet renews by itself",
    run: |ctx| {
        Box::pin(async {
            let node = &ctx.node;
            let current = node.layout.kubelet.join("pki/kubelet-client-current.pem");
            if node.dry_run || !node.config.kubelet.rotate_certificates {
                return Ok(Outcome::skipped("the kubelet is not asked to renew its certificate"));
            }
            if !current.exists() && !node.has_ca_key() {
                return Ok(Outcome::skipped(
                    "the CA's key is not on this machine, so renewals cannot be signed here",
                ));
            }
            // The phase `bootstrap-token` has granted the right to renew; the kubelet retries until it succeeds.
            if !rt::wait_until(PATIENCE, POLL, || current.exists()).await {
                tracing::warn!(
                    "the kubelet has not renewed its certificate yet; run `{} init phase kubelet-finalize all` later",
                    node.program
                );
                return Ok(Outcome::skipped("the kubelet has no rotated certificate yet"));
            }
            let path = node.layout.kubeconfig("kubelet.conf");
            let mut config = Kubeconfig::load(&path)?;
            let file = current.to_string_lossy().into_owned();
            let context = config.current_context.clone();
            let user =
                config.contexts.iter().find(|c| c.name == context).map(|c| c.context.user.clone());
            for named in config.users.iter_mut().filter(|u| Some(&u.name) == user.as_ref()) {
                named.user.client_certificate_data.clear();
                named.user.client_key_data.clear();
                named.user.client_certificate.clone_from(&file);
                named.user.client_key.clone_from(&file);
            }
            config.write(&path)?;
            Ok(Outcome::Done(vec![FileChange { path, written: true }]))
        })
    },
};
