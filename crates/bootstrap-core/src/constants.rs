//! Names and numbers that kubeadm's users rely on.

/// The release whose behaviour and images this is.
pub const KUBERNETES_VERSION: &str = "v1.36.2";
/// When the minor version was released, in seconds since 1970: no clock that is right says less.
pub const RELEASED: u64 = 1_776_816_000;
/// What `config print` shows: the first release of the minor version.
pub(crate) const PRINTED_VERSION: &str = "1.36.0";

/// The API server's binary, image, manifest and user.
pub const API_SERVER: &str = "kube-apiserver";
/// The controller manager's binary, image and manifest.
pub(crate) const CONTROLLER_MANAGER: &str = "kube-controller-manager";
/// The scheduler's binary, image and manifest.
pub const SCHEDULER: &str = "kube-scheduler";
/// etcd's binary, image and manifest.
pub const ETCD: &str = "etcd";

/// The API server's port where `bindPort` says no other.
pub const API_SERVER_PORT: u16 = 6443;
/// The kubelet's own API (HTTPS), which the API server calls.
pub const KUBELET_PORT: u16 = 10250;
/// The kubelet's `/healthz`, on loopback.
pub const KUBELET_HEALTH_PORT: u16 = 10248;
/// The controller manager's HTTPS port, on loopback, for probes and metrics.
pub const CONTROLLER_MANAGER_PORT: u16 = 10257;
/// The scheduler's HTTPS port, on loopback, for probes and metrics.
pub const SCHEDULER_PORT: u16 = 10259;
/// etcd's port for the API server.
pub const ETCD_CLIENT_PORT: u16 = 2379;
/// etcd's port for other members.
pub const ETCD_PEER_PORT: u16 = 2380;
/// etcd's plain HTTP port, on loopback, for probes and metrics.
pub(crate) const ETCD_METRICS_PORT: u16 = 2381;

/// The group of `admin.conf`, which is bound to `cluster-admin` and can be unbound.
pub(crate) const ADMINS_GROUP: &str = "kubeadm:cluster-admins";
/// The group of `super-admin.conf`, which no authoriser ever refuses.
pub(crate) const MASTERS_GROUP: &str = "system:masters";
/// The group of every kubelet's certificate.
pub const NODES_GROUP: &str = "system:nodes";
/// The group that kubeadm's tokens give, and that may ask for a kubelet's certificate.
pub const BOOTSTRAPPERS_GROUP: &str = "system:bootstrappers:kubeadm:default-node-token";

/// The label and the taint's key of control planes.
pub const CONTROL_PLANE_LABEL: &str = "node-role.kubernetes.io/control-plane";
/// The label that keeps control planes from behind cloud load balancers.
pub const EXCLUDE_BALANCER_LABEL: &str = "node.kubernetes.io/exclude-from-external-load-balancers";

/// containerd's socket, where Debian's package has it.
pub const DEFAULT_CRI_SOCKET: &str = "unix:///var/run/containerd/containerd.sock";
/// The cluster's name in kubeconfigs and for the controller manager.
pub const DEFAULT_CLUSTER_NAME: &str = "kubernetes";
/// The Services' range where the configuration says no other.
pub const DEFAULT_SERVICE_SUBNET: &str = "10.96.0.0/12";
/// The DNS zone of the cluster where the configuration says no other.
pub const DEFAULT_DNS_DOMAIN: &str = "cluster.local";
/// The images of Windlass are packed from its own binary under this name, which no registry has.
pub const OWN_REPOSITORY: &str = "windlass.local";
/// Upstream's own registry.
pub const DEFAULT_REPOSITORY: &str = "registry.k8s.io";
/// etcd's directory on a control plane's machine.
pub(crate) const DEFAULT_ETCD_DATA_DIR: &str = "/var/lib/etcd";
/// Where the PKI lies on a machine.
pub const DEFAULT_CERTIFICATES_DIR: &str = "/etc/kubernetes/pki";

/// The tag of upstream's etcd image.
pub(crate) const ETCD_VERSION: &str = "3.6.8-0";
/// The tag of upstream's CoreDNS image.
pub(crate) const COREDNS_VERSION: &str = "v1.14.2";
/// The tag of the sandboxes' image.
pub(crate) const PAUSE_VERSION: &str = "3.10.2";
/// `init` refuses an external etcd that is older.
pub const MIN_EXTERNAL_ETCD_VERSION: &str = "3.5.24";
