//! The phases `certs` of `init`, one per certificate.

use bootstrap_core::certs::Ca;

use super::context::{Ctx, file_phase};
use crate::{
    Error, FileChange, certs,
    node::Node,
    phase::{Outcome, Phase},
};

fn authority(node: &Node, ca: Ca) -> Result<Vec<FileChange>, Error> {
    certs::ensure_authority(&node.layout.certificates, ca, &node.pki()?, node.now())
}

fn leaf(node: &Node, name: &str) -> Result<Vec<FileChange>, Error> {
    let plan = node.pki()?;
    let leaf = plan.leaf(name).ok_or_else(|| Error::NoCertificate(name.to_owned()))?;
    certs::ensure_leaf(&node.layout.certificates, leaf, &plan, node.now())
}

/// Defines a phase for an etcd certificate, which only a local etcd has.
macro_rules! etcd_phase {
    ($name:literal, $about:literal, $work:expr) => {
        Phase {
            name: $name,
            about: $about,
            run: |ctx: &mut Ctx| {
                let work: fn(&Node) -> Result<Vec<FileChange>, Error> = $work;
                Box::pin(async move {
                    if ctx.node.config.cluster.etcd.local.is_none() {
                        return Ok(Outcome::skipped("the cluster has no local etcd"));
                    }
                    Ok(Outcome::Done(work(&ctx.node)?))
                })
            },
        }
    };
}

pub(super) const PHASES: [Phase<Ctx>; 11] = [
    file_phase!("certs/ca", "Generate the self-signed Kubernetes CA", |n| authority(
        n,
        Ca::Kubernetes
    )),
    file_phase!(
        "certs/apiserver",
        "Generate the certificate for serving the Kubernetes API",
        |n| leaf(n, "apiserver")
    ),
    file_phase!(
        "certs/apiserver-kubelet-client",
        "Generate the certificate for the API server to connect to kubelet",
        |n| leaf(n, "apiserver-kubelet-client")
    ),
    file_phase!("certs/front-proxy-ca", "Generate the self-signed CA for the front proxy", |n| {
        authority(n, Ca::FrontProxy)
    }),
    file_phase!(
        "certs/front-proxy-client",
        "Generate the certificate for the front proxy client",
        |n| leaf(n, "front-proxy-client")
    ),
    etcd_phase!("certs/etcd-ca", "Generate the self-signed CA for etcd", |n| authority(
        n,
        Ca::Etcd
    )),
    etcd_phase!("certs/etcd-server", "Generate the certificate for serving etcd", |n| leaf(
        n,
        "etcd-server"
    )),
    etcd_phase!(
        "certs/etcd-peer",
        "Generate the certificate for etcd members to talk to each other",
        |n| leaf(n, "etcd-peer")
    ),
    etcd_phase!(
        "certs/etcd-healthcheck-client",
        "Generate the certificate for checking etcd's health",
        |n| leaf(n, "etcd-healthcheck-client")
    ),
    etcd_phase!(
        "certs/apiserver-etcd-client",
        "Generate the certificate the API server uses to access etcd",
        |n| leaf(n, "apiserver-etcd-client")
    ),
    file_phase!("certs/sa", "Generate the key pair that signs service-account tokens", |n| {
        certs::ensure_service_account(&n.layout.certificates, &n.pki()?)
    }),
];
