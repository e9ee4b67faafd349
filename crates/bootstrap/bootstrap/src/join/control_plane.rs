//! The phases of `join` that only a control plane runs.

use bootstrap_core::{kubelet::control_plane_taint, manifests::Component};

use super::context::Ctx;
use crate::{
    certs,
    cluster::download_certs,
    init::{control_plane_targets, mark, wait_for_control_plane},
    phase::{Outcome, Phase},
};

pub(super) const PREPARE: [Phase<Ctx>; 4] = [
    Phase {
        name: "control-plane-prepare/download-certs",
        about: "Fetch the shared certificates",
        run: |ctx| {
            Box::pin(async {
                if let Some(nothing) = ctx.skips_files() {
                    return Ok(nothing);
                }
                let control_plane = ctx.join.control_plane.as_ref();
                let key = control_plane.map(|c| c.certificate_key.clone()).unwrap_or_default();
                if key.is_empty() {
                    return Ok(Outcome::skipped(
                        "no certificate key is given; the files must be here already",
                    ));
                }
                let cluster = ctx.discover().await?;
                let (dir, etcd) = (&ctx.node.layout.certificates, &ctx.node.config.cluster.etcd);
                Ok(Outcome::Done(download_certs(&cluster.client, dir, etcd, &key).await?))
            })
        },
    },
    Phase {
        name: "control-plane-prepare/certs",
        about: "Generate this control plane's certificates",
        run: |ctx| {
            Box::pin(async {
                if let Some(nothing) = ctx.skips_files() {
                    return Ok(nothing);
                }
                ctx.discover().await?;
                let plan = ctx.node.pki()?;
                certs::require_shared(
                    &ctx.node.layout.certificates,
                    &plan,
                    ctx.node.config.cluster.etcd.external.as_ref(),
                )?;
                Ok(Outcome::Done(certs::ensure(
                    &ctx.node.layout.certificates,
                    &plan,
                    ctx.node.now(),
                )?))
            })
        },
    },
    Phase {
        name: "control-plane-prepare/kubeconfig",
        about: "Generate this control plane's kubeconfig files",
        run: |ctx| {
            Box::pin(async {
                if let Some(nothing) = ctx.skips_files() {
                    return Ok(nothing);
                }
                ctx.discover().await?;
                // The kubelet requests its own kubeconfig, and super-admin.conf stays on the first machine.
                let files = ["admin", "controller-manager", "scheduler"];
                let touched = files
                    .iter()
                    .map(|f| ctx.node.ensure_kubeconfig(f))
                    .collect::<Result<_, _>>()?;
                Ok(Outcome::Done(touched))
            })
        },
    },
    Phase {
        name: "control-plane-prepare/control-plane",
        about: "Generate the static Pods of this control plane",
        run: |ctx| {
            Box::pin(async {
                if let Some(nothing) = ctx.skips_files() {
                    return Ok(nothing);
                }
                ctx.discover().await?;
                let write = |c: &Component| ctx.node.write_manifest(*c, &[]);
                Ok(Outcome::Done(
                    Component::CONTROL_PLANE.iter().map(write).collect::<Result<_, _>>()?,
                ))
            })
        },
    },
];

pub(super) const MARK: Phase<Ctx> = Phase {
    name: "control-plane-join/mark-control-plane",
    about: "Label and taint this node as a control plane",
    run: |ctx| {
        Box::pin(async {
            if let Some(nothing) = ctx.skips_cluster() {
                return Ok(nothing);
            }
            let registration = ctx.join.node_registration.clone();
            let taints = registration.taints.unwrap_or_else(|| vec![control_plane_taint()]);
            let patience = ctx.node.timeouts().kubernetes_api_call.unwrap_or_default().to_std();
            let client = ctx.node.client().await?;
            mark(&client, &registration.name, &taints, patience).await?;
            Ok(Outcome::done())
        })
    },
};

pub(super) const WAIT: Phase<Ctx> = Phase {
    name: "wait-control-plane",
    about: "Wait for this control plane to start",
    run: |ctx| {
        Box::pin(async {
            if let Some(nothing) = ctx.skips_cluster() {
                return Ok(nothing);
            }
            wait_for_control_plane(&ctx.node).await?;
            let names = control_plane_targets(&ctx.node).into_iter().map(|t| t.name.to_owned());
            Ok(Outcome::Waited(names.collect()))
        })
    },
};
