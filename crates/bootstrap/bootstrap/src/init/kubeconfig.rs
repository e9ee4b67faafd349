//! The phases `kubeconfig` of `init`.

use super::context::{Ctx, file_phase};
use crate::phase::Phase;

pub(super) const PHASES: [Phase<Ctx>; 5] = [
    file_phase!("kubeconfig/admin", "Generate a kubeconfig file for the administrator", |n| Ok(
        vec![n.ensure_kubeconfig("admin")?]
    )),
    file_phase!(
        "kubeconfig/super-admin",
        "Generate a kubeconfig file for the super-administrator",
        |n| Ok(vec![n.ensure_kubeconfig("super-admin")?])
    ),
    file_phase!(
        "kubeconfig/kubelet",
        "Generate a kubeconfig file for the kubelet to bootstrap the cluster",
        |n| Ok(vec![n.ensure_kubeconfig("kubelet")?])
    ),
    file_phase!(
        "kubeconfig/controller-manager",
        "Generate a kubeconfig file for the controller manager",
        |n| Ok(vec![n.ensure_kubeconfig("controller-manager")?])
    ),
    file_phase!("kubeconfig/scheduler", "Generate a kubeconfig file for the scheduler", |n| Ok(
        vec![n.ensure_kubeconfig("scheduler")?]
    )),
];
