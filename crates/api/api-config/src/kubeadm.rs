//! kubeadm's configuration kinds in v1beta4, which is also Windlass's internal form.
//!
//! This module contains only types. Defaults, validation and older versions are in `bootstrap-core`.

mod cluster;
mod join;
mod node;
mod upgrade;

pub use cluster::{
    ApiServer, Arg, ClusterConfiguration, ControlPlaneComponent, Dns, EmbeddedStore, Etcd,
    ExternalEtcd, HostPathMount, LocalEtcd, Networking, NodeBalancer, Proxy, Snapshots,
    VirtualAddress,
};
pub use join::{
    BootstrapTokenDiscovery, Discovery, FileDiscovery, JoinConfiguration, JoinControlPlane,
};
pub use node::{
    ApiEndpoint, BootstrapToken, InitConfiguration, NodeRegistration, Patches, ResetConfiguration,
    Timeouts,
};
pub use upgrade::{UpgradeApply, UpgradeConfiguration, UpgradeDiff, UpgradeNode, UpgradePlan};

/// The API group of kubeadm's kinds.
pub const GROUP: &str = "kubeadm.k8s.io";
/// The version that is written and used internally.
pub const V1BETA4: &str = "kubeadm.k8s.io/v1beta4";
/// The older version that kubeadm still reads.
pub const V1BETA3: &str = "kubeadm.k8s.io/v1beta3";
