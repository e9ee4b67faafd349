//! A whole cluster on this host: `windlass up`, `down`, `status` and `node`, and the processes that they start.
//!
//! Three processes run in the background. The supervisor restarts the others. The control plane has the API server with
//! the embedded store, the controllers and the scheduler. The node's agent has the kubelet, the service proxy and the
//! Pod network. containerd runs beside them with its own root, state and socket, and does not touch the host's. Further
//! nodes have namespaces, a containerd and an agent of their own ([`nodes`]). Several control planes are static Pods
//! with etcd, as `init` and `join` create them ([`replicated`]).
//!
//! The components are crates of their own, and this crate only configures and starts them. Read [`Cluster`] first.
//!
//! Invariant: everything that `up` creates lies under the cluster's root or has its name, and `down` removes it.

mod addon;
mod agent;
mod certs;
mod cluster;
mod cluster_args;
mod config;
mod configure;
mod containerd;
mod context;
mod control_plane;
mod down;
mod error;
mod health;
mod images;
mod kubectl;
mod load_balancer;
mod logs;
mod manifests;
mod manifests_error;
mod mark;
mod metrics;
mod network;
mod nodes;
mod paths;
mod preflight;
mod problem;
mod process;
mod replicated;
mod secrets;
mod secrets_error;
mod simulated;
mod status;
mod storage;
mod supervisor;
mod support;
mod takeover;
mod turn;
mod up;
mod wait;

pub use agent::run as run_agent;
pub use cluster::{Cluster, DEFAULT_NAME};
pub use cluster_args::ClusterArgs;
pub use config::{
    ClusterConfig, ConfigError, ExtraMount, LoadBalancer, LoadBalancerError, NodeConfig,
    PublishError, PublishedPort, Registry,
};
pub use configure::ConfigArgs;
pub use context::default_kubeconfig;
pub use control_plane::{load_encryption, run as run_control_plane};
pub use down::{Args as DownArgs, run as down};
pub use error::Error;
pub use kubectl::{Args as KubectlArgs, run as kubectl};
pub use load_balancer::{
    Command as LoadBalancerCommand, print as print_load_balancer, remove as remove_load_balancer,
    run as run_load_balancer,
};
pub use logs::{Args as LogsArgs, run as logs};
pub use manifests_error::ManifestsError;
pub use network::{Command as NetworkCommand, print as print_network, run as run_network};
pub use nodes::{
    cmd::{Args as NodeArgs, run as node},
    join::run as join_node,
    space::{enter as enter_node, hold as hold_node},
};
pub use paths::enter as enter_first_node;
pub use secrets::{Args as SecretsArgs, run as secrets_encrypt};
pub use secrets_error::SecretsError;
pub use simulated::run as run_simulated_nodes;
pub use status::{Args as StatusArgs, run as status, unmet_cause};
pub use storage::{Command as StorageCommand, print as print_storage};
pub use supervisor::run as run_supervisor;
pub use support::{Args as SupportArgs, run as support_bundle};
pub use up::{Args as UpArgs, run as up};
