//! The context of the phases of `upgrade`.

use std::path::PathBuf;

use bootstrap_core::upgrade::Allowed;
use futures_util::future::BoxFuture;
use semver::Version;

use crate::{Error, health::wait_for, init::control_plane_targets, node::Node, preflight::Ignored};

/// The part of a machine in its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The machine has static Pods of the control plane.
    ControlPlane,
    /// The machine only runs Pods.
    Worker,
}

/// The settings of an upgrade, from flags and the UpgradeConfiguration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The unstable versions that may be the target.
    pub allowed: Allowed,
    /// `true` to renew the certificates of each component.
    pub renew_certificates: bool,
    /// `true` to upgrade a local etcd.
    pub etcd: bool,
    /// `true` to turn broken rules of the skew policy into warnings.
    pub force: bool,
}

/// Waits for the health check of a component on a machine.
pub type WaitForHealth = for<'a> fn(&'a Node, &'a str) -> BoxFuture<'a, Result<(), Error>>;

/// The assessment of a Corefile for the DNS server of this version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CorefileReview {
    /// The Corefile without plugins and options that CoreDNS has removed.
    pub migrated: String,
    /// The changes of the migration, by line.
    pub notices: Vec<String>,
    /// The lines of the migrated Corefile that Windlass' own DNS server does not accept.
    pub errors: Vec<String>,
}

/// Reviews a Corefile.
pub type ReviewCorefile = fn(&str) -> CorefileReview;

/// The context of the phases of `upgrade`.
pub struct Ctx {
    /// The machine, with the cluster's configuration at the target version.
    pub node: Node,
    /// The part of the machine in the cluster.
    pub role: Role,
    /// The version to upgrade to.
    pub target: Version,
    /// The settings.
    pub options: Options,
    /// The preflight checks whose errors are warnings.
    pub ignored: Ignored,
    /// Asks the user whether to proceed; `None` proceeds without a question.
    pub confirm: Option<fn() -> Result<bool, Error>>,
    /// Waits until a component of this machine is healthy, after its Pod is ready.
    pub wait_for_health: WaitForHealth,
    /// Reviews a Corefile for the DNS server of this version.
    pub review_corefile: ReviewCorefile,
    /// The directory for the files of a dry run, which reads the machine's own files; `None` changes these.
    pub dry_run: Option<PathBuf>,
    /// The digest of this binary, if the cluster's images are built from it.
    pub(super) program: Option<String>,
    /// `true` if this upgrade has built images on this machine.
    pub(super) rebuilt: bool,
}

impl Ctx {
    /// Creates the context of a machine.
    pub fn new(node: Node, role: Role, target: Version, options: Options) -> Self {
        Self {
            node,
            role,
            target,
            options,
            ignored: Ignored::default(),
            confirm: None,
            wait_for_health: |node, name| Box::pin(wait_for_component(node, name)),
            review_corefile: |text| CorefileReview {
                migrated: text.to_owned(),
                ..CorefileReview::default()
            },
            dry_run: None,
            program: None,
            rebuilt: false,
        }
    }

    /// Returns `true` if the machine has a control plane.
    pub fn is_control_plane(&self) -> bool {
        self.role == Role::ControlPlane
    }
}

/// Waits for a component's own health check. The controller manager's Pod has no readiness probe.
async fn wait_for_component(node: &Node, name: &str) -> Result<(), Error> {
    let patience = node.timeouts().control_plane_component_health_check.unwrap_or_default();
    for target in control_plane_targets(node).iter().filter(|target| target.name == name) {
        wait_for(target, patience.to_std(), node.containers.as_ref()).await?;
    }
    Ok(())
}
