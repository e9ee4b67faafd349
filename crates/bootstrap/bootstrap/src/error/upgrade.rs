//! The errors of upgrades.

use std::path::PathBuf;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The reason why a cluster or machine cannot be upgraded.
#[derive(Debug, thiserror::Error)]
pub enum UpgradeError {
    #[error(
        "missing one or more required arguments. Required arguments: [version]; {program} upgrade plan prints it"
    )]
    NoVersion { program: &'static str },
    #[error(
        "the version argument is invalid due to these fatal errors:\n\n{}\nPlease fix the misalignments highlighted \
         above and try upgrading again",
        listed(.0)
    )]
    Fatal(Vec<String>),
    #[error(
        "the version argument is invalid due to these errors:\n\n{}\nCan be bypassed if you pass the --force flag",
        listed(.0)
    )]
    Bypassable(Vec<String>),
    #[error("won't proceed; the user didn't answer (Y|y) in order to continue")]
    Declined,
    #[error("{} has no user of a Node, but {user:?}; run this on a node of the cluster", path.display())]
    NotANode { path: PathBuf, user: String },
    #[error(
        "{} does not name the address of this API server (annotation \
         kubeadm.kubernetes.io/kube-apiserver.advertise-address.endpoint); add it, as host:port",
        manifest.display()
    )]
    NoAddress { manifest: PathBuf },
    #[error("{command} upgrades a control plane, and {} does not exist; use upgrade node here", manifest.display())]
    NoControlPlane { command: &'static str, manifest: PathBuf },
    #[error(
        "couldn't upgrade {component}, and the earlier static Pods run again. Error faced: {source}. The new manifest \
         is in {}",
        rejected.display()
    )]
    RolledBack { component: &'static str, source: BoxError, rejected: PathBuf },
    #[error(
        "couldn't upgrade {component}: {source}. The earlier static Pods did not come up either: {after}. They are in \
         {}, and the new manifest is in {}",
        backup.display(),
        rejected.display()
    )]
    NotRolledBack {
        component: &'static str,
        source: BoxError,
        after: BoxError,
        backup: PathBuf,
        rejected: PathBuf,
    },
    #[error(
        "{source}. An earlier upgrade has not ended: if a component does not start, copy its manifest from {} back to \
         {}",
        backup.display(),
        manifests.display()
    )]
    Interrupted { source: BoxError, backup: PathBuf, manifests: PathBuf },
}

fn listed(messages: &[String]) -> String {
    messages.iter().map(|message| format!("\t- {message}\n")).collect()
}
