//! The phases of `join` that start the kubelet and wait for its certificate.

use std::{fs, path::Path, time::Duration};

use bootstrap_core::endpoint;
use client::Resource;
use tokio::time::{Instant, sleep};

use super::{context::Ctx, request};
use crate::{
    Error, FileChange, JoinError,
    cluster::{get, is_ready},
    error::io,
    health::wait_for_kubelet,
    kubelet,
    node::Node,
    phase::{Outcome, Phase},
};

const BOOTSTRAP: &str = "bootstrap-kubelet.conf";
/// The time after which a pending request is reported. An automatic approval is faster.
const SOON: Duration = Duration::from_secs(15);

pub(super) const START: Phase<Ctx> = Phase {
    name: "kubelet-start",
    about: "Write the kubelet's settings and its credentials for asking for a certificate, and (re)start it",
    run: |ctx| {
        Box::pin(async {
            let cluster = ctx.discover().await?;
            let name = ctx.join.node_registration.name.clone();
            reject_taken_name(&cluster.client, &name).await?;
            let node = &ctx.node;
            let mut kubeconfig = cluster.kubeconfig;
            let local = &node.config.init.local_api_endpoint;
            let mut first = endpoint::local_host_port(local);
            for named in &mut kubeconfig.clusters {
                if ctx.is_control_plane() {
                    // The kubelet of a control plane uses its own API server, so that it does not depend on other
                    // machines.
                    named.cluster.server = endpoint::local_url(local);
                } else if node.config.cluster.node_balancer.is_some() {
                    first = named.cluster.server.trim_start_matches("https://").to_owned();
                    let api = endpoint::of_node(&node.config.cluster, local);
                    named.cluster.server = api.server;
                    named.cluster.tls_server_name = api.tls_server_name;
                }
            }
            let mut touched = node.write_balancer(&first)?;
            if ctx.is_control_plane() {
                touched.extend(node.write_virtual_address()?);
            }
            let ca = node.layout.pki("ca", "crt");
            if !ca.exists() {
                pki::write_file(&ca, cluster.ca_pem.as_bytes(), pki::PUBLIC_MODE)?;
                touched.push(FileChange { path: ca, written: true });
            }
            if !node.dry_run {
                node.service.stop().await?;
            }
            if !node.layout.kubeconfig("kubelet.conf").exists() {
                let path = node.layout.kubeconfig(BOOTSTRAP);
                kubeconfig.write(&path)?;
                touched.push(FileChange { path, written: true });
            }
            let registration = &ctx.join.node_registration;
            touched.extend(kubelet::write(node, registration, !ctx.is_control_plane())?);
            if !node.dry_run {
                touched.extend(node.service.install(ctx.is_control_plane()).await?);
                node.service.start().await?;
            }
            Ok(Outcome::Done(touched))
        })
    },
};

/// Rejects the name of a Ready Node, because two machines with one name would take over each other's Pods.
pub(super) async fn reject_taken_name(client: &client::Client, name: &str) -> Result<(), Error> {
    let Some(node) = get(client, &Resource::NODES, "", name).await? else { return Ok(()) };
    if is_ready(&node) {
        return Err(JoinError::NameTaken(name.to_owned()).into());
    }
    Ok(())
}

pub(super) const WAIT: Phase<Ctx> = Phase {
    name: "kubelet-wait-bootstrap",
    about: "Wait until the kubelet has its own certificate",
    run: |ctx| {
        Box::pin(async {
            if ctx.node.dry_run {
                return Ok(Outcome::skipped("dry run"));
            }
            let timeouts = ctx.node.timeouts();
            let patience = timeouts.kubelet_health_check.unwrap_or_default().to_std();
            wait_for_kubelet(patience, || ctx.node.service.last_words()).await?;
            let path = ctx.node.layout.kubeconfig("kubelet.conf");
            if !path.exists() {
                let client = ctx.discover().await?.client;
                let patience = timeouts.tls_bootstrap.unwrap_or_default().to_std();
                wait_for_certificate(&ctx.node, &client, &path, patience).await?;
            }
            let bootstrap = ctx.node.layout.kubeconfig(BOOTSTRAP);
            if bootstrap.exists() {
                fs::remove_file(&bootstrap).map_err(io("remove", &bootstrap))?;
            }
            Ok(Outcome::Waited(vec![path.display().to_string()]))
        })
    },
};

/// Waits until the kubelet has written `path`. A pending request is reported early, because it may need manual
/// approval.
async fn wait_for_certificate(
    node: &Node,
    client: &client::Client,
    path: &Path,
    patience: Duration,
) -> Result<(), Error> {
    let started = Instant::now();
    let mut reported = false;
    while !path.exists() {
        let (waited, is_over) = (started.elapsed(), started.elapsed() >= patience);
        if is_over || (!reported && waited >= SOON) {
            let request = request::pending_reason(client, node.name()).await;
            if is_over {
                let cause = request.unwrap_or_else(|| {
                    format!(
                        "the kubelet has no request for it in the cluster: the token may have expired ({} token list)",
                        node.program
                    )
                });
                return Err(Error::NotUp {
                    what: "the kubelet's certificate".to_owned(),
                    waited: format!("{}s", patience.as_secs()),
                    cause: format!(
                        "{} was not written: {cause}; {}",
                        path.display(),
                        node.service.last_words()
                    ),
                });
            }
            if let Some(request) = request {
                tracing::warn!("the kubelet has no certificate yet: {request}");
            }
            reported = true;
        }
        sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}
