//! The crate's error.

use std::path::PathBuf;

use crate::{
    config::{ConfigError, LoadBalancerError, PublishError},
    manifests_error::ManifestsError,
    problem::Problem,
    secrets_error::SecretsError,
};

/// An error in starting, running or removing a local cluster.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{operation} {}: {source}", path.display())]
    File { operation: &'static str, path: PathBuf, source: std::io::Error },
    #[error("starting {program}: {source}; is it installed?")]
    Start { program: String, source: std::io::Error },
    #[error("preflight: {} of the machine's conditions are not met:\n{}", .0.len(), lines(.0))]
    Preflight(Vec<Problem>),
    #[error("the cluster's settings {}: {source}", path.display())]
    Settings { path: PathBuf, source: serde_json::Error },
    #[error("parse address range {range}: {source}")]
    Range { range: String, source: api_meta::CidrError },
    #[error("there is no cluster at {}: run `windlass up` first", .0.display())]
    NoCluster(PathBuf),
    #[error(
        "{} contains other files and is not a cluster's root: give an empty directory with --root, because `down` \
         removes it entirely",
        .0.display()
    )]
    Occupied(PathBuf),
    #[error("{} is the root of the cluster {owner}: give --name {owner}, or another --root", root.display())]
    OthersRoot { root: PathBuf, owner: String },
    #[error(
        "there is no {}, the mark that lets `down` remove the directory: if it contains only the cluster's files, run \
         `windlass up` with the same --name and --root to create the mark; otherwise remove the cluster's files by \
         hand",
        .0.display()
    )]
    Unmarked(PathBuf),
    #[error("{what} did not come up in time{pods}\nlast lines of {process}'s log:\n{log}")]
    NotUp {
        what: &'static str,
        /// The conditions of the Pods that are waited for, a line each.
        pods: String,
        process: &'static str,
        log: String,
    },
    #[error("{operation}: {source}")]
    Task { operation: &'static str, source: tokio::task::JoinError },
    #[error("waiting for {subject}: {source}")]
    Wait { subject: &'static str, source: std::io::Error },
    #[error("this host has no address besides the loopback one; set one with --address")]
    NoAddress,
    #[error(
        "cluster {0} has one control plane, with a store of its own; for several, run `windlass down` and then \
         `windlass up` with --control-planes"
    )]
    OneControlPlane(String),
    #[error(
        "several control planes keep their objects in etcd, which is not installed; install it (apt-get install \
         etcd-server)"
    )]
    NoEtcd,
    #[error("the plan of kubeconfigs has no admin.conf")]
    NoAdminKubeconfig,
    #[error(
        "the cluster has no Pod range (podSubnet in the ConfigMap kubeadm-config), so its nodes get none; run init \
         with --pod-network-cidr"
    )]
    NoPodRange,
    #[error(
        "the controller manager has no load balancer ranges (controllerManager.extraArgs in the ConfigMap \
         kubeadm-config); without --load-balancer-ranges, service-lb-controller gives the nodes' own addresses, which \
         nodes need not announce"
    )]
    NoLoadBalancerRanges,
    #[error("several nodes require an IPv4 address of this host; set one with --address")]
    NoIpv4,
    #[error("the link range {0:?} in the cluster's settings is invalid, expected: a CIDR")]
    LinkRange(String),
    #[error(transparent)]
    LoadBalancer(#[from] LoadBalancerError),
    #[error(transparent)]
    Publish(#[from] PublishError),
    #[error("--san {0} is neither a DNS name nor an IP address")]
    San(String),
    #[error(transparent)]
    Document(#[from] ConfigError),
    #[error("apiServer.extraArgs: {0}")]
    ApiServerFlags(#[source] Box<apiserver::flags::FlagError>),
    #[error("controllerManager.extraArgs: {0}")]
    ControllerFlags(#[from] controllers::FlagError),
    #[error("scheduler.extraArgs: {0}")]
    SchedulerFlags(#[from] scheduler::ConfigError),
    #[error("featureGates: {0}")]
    FeatureGates(#[from] api_config::FeatureGateError),
    #[error("the configuration of encryption at rest: {0}")]
    Encryption(#[from] encryption::ConfigError),
    #[error("node {0} is this host itself; `windlass down` stops it with the cluster")]
    NodeIsHost(String),
    #[error("there is no node {name}; further nodes of this cluster: {names}")]
    NoNode { name: String, names: String },
    #[error("node {0} does not run; start it with `windlass node start {0}`")]
    NodeNotRunning(String),
    #[error("no command is given to run in the node")]
    NoCommand,
    #[error("node {node} did not join: {stderr}")]
    Join { node: String, stderr: String },
    #[error("processes of node {0} do not exit after SIGKILL; find them with `ps`")]
    Unkillable(String),
    #[error("the Metrics API: {0}")]
    Metrics(#[from] metrics_server::Error),
    #[error(transparent)]
    Secrets(#[from] SecretsError),
    #[error(
        "--secrets-encryption is for clusters with one control plane; for several, give their API servers \
         --encryption-provider-config"
    )]
    SharedEncryption,
    #[error(transparent)]
    Panic(#[from] rt::CaughtPanic),
    #[error(transparent)]
    Kernel(#[from] netlink::Error),
    #[error(transparent)]
    System(#[from] sys::Error),
    #[error(transparent)]
    ProxyConfig(#[from] proxy::ConfigError),
    #[error(transparent)]
    Bootstrap(#[from] bootstrap::Error),
    #[error(transparent)]
    Plan(#[from] bootstrap_core::Error),
    #[error(transparent)]
    Pki(#[from] pki::Error),
    #[error(transparent)]
    Config(#[from] api_config::Error),
    #[error(transparent)]
    Api(#[from] client::Error),
    #[error(transparent)]
    Kubeconfig(#[from] client::KubeconfigError),
    #[error(transparent)]
    ApiServer(#[from] apiserver::StartError),
    #[error(transparent)]
    Diagnostics(#[from] diagnostics::DiagnosticsError),
    #[error("opening the store: {0}")]
    Store(#[from] store::Error),
    #[error(transparent)]
    Kubelet(#[from] kubelet::Error),
    #[error(transparent)]
    Proxy(#[from] proxy::RunError),
    #[error(transparent)]
    Image(#[from] oci::Error),
    #[error(transparent)]
    Import(#[from] oci::ImportError),
    #[error(transparent)]
    Network(#[from] cni::InstallError),
    #[error(transparent)]
    Announcement(#[from] vip::Error),
    #[error(transparent)]
    Manifests(#[from] ManifestsError),
    #[error(transparent)]
    Machine(#[from] instances::Error),
}

fn lines(problems: &[Problem]) -> String {
    problems.iter().map(|p| format!("  {p}")).collect::<Vec<_>>().join("\n")
}

impl From<apiserver::flags::FlagError> for Error {
    fn from(error: apiserver::flags::FlagError) -> Self {
        Self::ApiServerFlags(Box::new(error))
    }
}

impl Error {
    pub(crate) fn file(
        operation: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { operation, path, source }
    }
}
