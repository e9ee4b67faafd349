//! Names and numbers that kubeadm's users rely on.

/// The release whose behaviour and images this is.
pub const KUBERNETES_VERSION: &str = "v1.36.2";
/// When the minor version was released, in seconds since 1970: no clock that is right says less.
pub const RELEASED: u64 = 1_776_816_000;
/// What `config print` shows: the first release of the minor version.
pub const PRINTED_VERSION: &str = "1.36.0";

pub const API_SERVER: &str = "kube-apiserver";
pub const CONTROLLER_MANAGER: &str = "kube-controller-manager";
pub const SCHEDULER: &str = "kube-scheduler";
pub const ETCD: &str = "etcd";

pub const API_SERVER_PORT: u16 = 6443;
pub const KUBELET_PORT: u16 = 10250;
pub const KUBELET_HEALTH_PORT: u16 = 10248;
pub const CONTROLLER_MANAGER_PORT: u16 = 10257;
pub const SCHEDULER_PORT: u16 = 10259;
pub const ETCD_CLIENT_PORT: u16 = 2379;
pub const ETCD_PEER_PORT: u16 = 2380;
pub const ETCD_METRICS_PORT: u16 = 2381;

pub const ADMINS_GROUP: &str = "kubeadm:cluster-admins";
pub const MASTERS_GROUP: &str = "system:masters";
pub const NODES_GROUP: &str = "system:nodes";
pub const BOOTSTRAPPERS_GROUP: &str = "system:bootstrappers:kubeadm:default-node-token";

pub const CONTROL_PLANE_LABEL: &str = "node-role.kubernetes.io/control-plane";
pub const EXCLUDE_BALANCER_LABEL: &str = "node.kubernetes.io/exclude-from-external-load-balancers";

pub const DEFAULT_CRI_SOCKET: &str = "unix:///var/run/containerd/containerd.sock";
pub const DEFAULT_CLUSTER_NAME: &str = "kubernetes";
pub const DEFAULT_SERVICE_SUBNET: &str = "10.96.0.0/12";
pub const DEFAULT_DNS_DOMAIN: &str = "cluster.local";
/// The images of Windlass are packed from its own binary under this name, which no registry has.
pub const OWN_REPOSITORY: &str = "windlass.local";
pub const DEFAULT_REPOSITORY: &str = "registry.k8s.io";
pub const DEFAULT_ETCD_DATA_DIR: &str = "/var/lib/etcd";
pub const DEFAULT_CERTIFICATES_DIR: &str = "/etc/kubernetes/pki";

pub const ETCD_VERSION: &str = "3.6.8-0";
pub const COREDNS_VERSION: &str = "v1.14.2";
pub const PAUSE_VERSION: &str = "3.10.2";
pub const MIN_EXTERNAL_ETCD_VERSION: &str = "3.5.24";
