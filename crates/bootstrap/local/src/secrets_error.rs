//! The errors of `windlass secrets-encrypt`.

use std::{path::PathBuf, time::Duration};

/// An error in reading or changing the encryption of a cluster.
#[derive(Debug, thiserror::Error)]
pub enum SecretsError {
    #[error("{operation} {}: {source}", path.display())]
    File { operation: &'static str, path: PathBuf, source: std::io::Error },
    #[error("{}: another secrets-encrypt changes this file; wait until it ends", .0.display())]
    Locked(PathBuf),
    #[error(
        "the API server of this machine has no --encryption-provider-config; add the flag with a file in which \
         secretbox, aescbc or aesgcm comes first (clusters of up: windlass up --secrets-encryption)"
    )]
    NotConfigured,
    #[error(
        "there is neither a cluster of `up` at {} nor {}; run secrets-encrypt on a control plane",
        root.display(), manifest.display()
    )]
    NoCluster { root: PathBuf, manifest: PathBuf },
    #[error("{} is not the manifest of a static Pod: {reason}", path.display())]
    Manifest { path: PathBuf, reason: String },
    #[error(
        "the API server does not reload its encryption configuration; add \
         --encryption-provider-config-automatic-reload=true to {0}"
    )]
    NotReloaded(String),
    #[error("{0} in the container of the API server is not a file of a hostPath volume")]
    NoHostPath(PathBuf),
    #[error(transparent)]
    Config(#[from] encryption::ConfigError),
    #[error("{}: {reason}; correct the file", path.display())]
    Invalid { path: PathBuf, reason: String },
    #[error(
        "the first provider of {0} is identity, so it is not encrypted; put another provider first"
    )]
    NotEncrypted(String),
    #[error("the keys of {0} are in a KMS plugin; rotate them there")]
    Kms(String),
    #[error(
        "the configuration covers {0}, of which parts are not objects and cannot be rewritten; name the resources \
         without services"
    )]
    Allocations(String),
    #[error("a rotation is unfinished: run windlass secrets-encrypt rotate to continue it")]
    Unfinished,
    #[error(
        "the cluster has {0} API servers, each with its own file, and this command changes one; rotate the keys by \
         hand on all of them"
    )]
    SeveralServers(usize),
    #[error(
        "the API server has not loaded {} after {}s; is it the file of --encryption-provider-config? Nothing was \
         removed: run the command again", path.display(), waited.as_secs()
    )]
    NotLoaded { path: PathBuf, waited: Duration },
    #[error(
        "the API does not serve {0}, so its objects cannot be rewritten; the old keys stay. Serve it, or remove it \
         from the configuration once none of its objects is stored"
    )]
    NotServed(String),
    #[error(
        "{count} objects could not be rewritten, so the old keys stay; the first is {object}: {source}"
    )]
    Rewrite { count: usize, object: String, source: Box<client::Error> },
    #[error(transparent)]
    Api(#[from] client::Error),
    #[error(transparent)]
    Pki(#[from] pki::Error),
    #[error(transparent)]
    Yaml(#[from] api_config::Error),
}
