//! A whole cluster on this machine: `windlass up`, `down`, `status`, `node`, and the processes that they start.
//!
//! Three processes run in the background: the supervisor, which starts the others again when they die; the
//! control plane (API server with the embedded store, controllers, scheduler); and the node's agent (kubelet,
//! service proxy, Pod network). containerd runs beside them with its own root, state and socket, so that the
//! host's is not touched. Further nodes have namespaces, a containerd and an agent of their own ([`nodes`]). Several
//! control planes are those of `init` and `join`: static Pods and etcd ([`replicated`]).
//!
//! Invariant: everything that `up` makes lies under the cluster's root or carries its name, and `down` takes it away.

mod agent;
mod certs;
mod cluster;
mod containerd;
mod context;
mod control_plane;
mod down;
mod error;
mod health;
mod images;
mod mark;
mod metrics;
mod network;
mod nodes;
mod preflight;
mod process;
mod replicated;
mod status;
mod storage;
mod supervisor;
mod up;

pub use agent::run as run_agent;
pub use cluster::{Cluster, DEFAULT_NAME};
pub use control_plane::run as run_control_plane;
pub use down::{Args as DownArgs, run as down};
pub use error::Error;
pub use network::{Command as NetworkCommand, print as print_network, run as run_network};
pub use nodes::{
    cmd::{Args as NodeArgs, run as node},
    join::run as join_node,
    space::{enter as enter_node, hold as hold_node},
};
pub use status::{Args as StatusArgs, run as status};
pub use storage::{Command as StorageCommand, print as print_storage};
pub use supervisor::run as run_supervisor;
pub use up::{Args as UpArgs, run as up};
