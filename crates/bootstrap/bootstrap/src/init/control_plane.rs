//! The phases `etcd` and `control-plane` of `init`: write static Pods.

use bootstrap_core::manifests::Component;

use super::context::{Ctx, file_phase};
use crate::{
    manifests,
    phase::{Outcome, Phase},
};

pub(super) const PHASES: [Phase<Ctx>; 4] = [
    Phase {
        name: "etcd/local",
        about: "Generate the static Pod of a local, single-node etcd",
        run: |ctx| {
            Box::pin(async {
                let Some(etcd) = &ctx.node.config.cluster.etcd.local else {
                    return Ok(Outcome::skipped("the cluster has no local etcd"));
                };
                if !ctx.node.dry_run {
                    manifests::make_data_dir(&ctx.node.host.path(&etcd.data_dir))?;
                }
                Ok(Outcome::Done(vec![ctx.node.write_manifest(Component::Etcd, &[])?]))
            })
        },
    },
    file_phase!("control-plane/apiserver", "Generate the static Pod of the API server", |n| Ok(
        vec![n.write_manifest(Component::ApiServer, &[])?]
    )),
    file_phase!(
        "control-plane/controller-manager",
        "Generate the static Pod of the controller manager",
        |n| Ok(vec![n.write_manifest(Component::ControllerManager, &[])?])
    ),
    file_phase!("control-plane/scheduler", "Generate the static Pod of the scheduler", |n| Ok(
        vec![n.write_manifest(Component::Scheduler, &[])?]
    )),
];
