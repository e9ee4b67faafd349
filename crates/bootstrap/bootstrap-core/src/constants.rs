//! Names and numbers that kubeadm's users rely on.

/// The release date of the minor version, in seconds since 1970. An earlier clock is wrong.
pub const RELEASED: u64 = 1_776_816_000;
/// The version in `config print`: the first release of the minor version.
pub(crate) const PRINTED_VERSION: &str = "1.36.0";

/// The API server's binary, image, manifest and user.
pub const API_SERVER: &str = "kube-apiserver";
/// The controller manager's binary, image and manifest.
pub(crate) const CONTROLLER_MANAGER: &str = "kube-controller-manager";
/// The scheduler's binary, image and manifest.
pub const SCHEDULER: &str = "kube-scheduler";
/// etcd's binary, image and manifest.
pub const ETCD: &str = "etcd";

/// The default port of the API server.
pub const API_SERVER_PORT: u16 = 6443;
/// The HTTPS port of the kubelet's API, which the API server calls.
pub const KUBELET_PORT: u16 = 10250;
/// The port of the kubelet's `/healthz` on loopback.
pub const KUBELET_HEALTH_PORT: u16 = 10248;
/// The controller manager's HTTPS port on loopback, for probes and metrics.
pub const CONTROLLER_MANAGER_PORT: u16 = 10257;
/// The scheduler's HTTPS port on loopback, for probes and metrics.
pub const SCHEDULER_PORT: u16 = 10259;
/// etcd's port for clients such as the API server.
pub const ETCD_CLIENT_PORT: u16 = 2379;
/// etcd's port for other members.
pub const ETCD_PEER_PORT: u16 = 2380;
/// etcd's plain HTTP port on loopback, for probes and metrics.
pub(crate) const ETCD_METRICS_PORT: u16 = 2381;

/// The group of `admin.conf`. It is bound to `cluster-admin` and can be unbound.
pub(crate) const ADMINS_GROUP: &str = "kubeadm:cluster-admins";
/// The group of `super-admin.conf`, which the API server always authorizes.
pub(crate) const MASTERS_GROUP: &str = "system:masters";
/// The group of every kubelet's certificate.
pub const NODES_GROUP: &str = "system:nodes";
/// The group of kubeadm's tokens, which may request kubelet certificates.
pub const BOOTSTRAPPERS_GROUP: &str = "system:bootstrappers:kubeadm:default-node-token";

/// The label of control planes, also the key of their taint.
pub const CONTROL_PLANE_LABEL: &str = "node-role.kubernetes.io/control-plane";
/// The label that excludes control planes from cloud load balancers.
pub const EXCLUDE_BALANCER_LABEL: &str = "node.kubernetes.io/exclude-from-external-load-balancers";

/// The default socket of containerd.
pub const DEFAULT_CRI_SOCKET: &str = "unix:///var/run/containerd/containerd.sock";
/// The cluster's name in kubeconfigs and for the controller manager.
pub const DEFAULT_CLUSTER_NAME: &str = "kubernetes";
/// The default IP range of Services.
pub const DEFAULT_SERVICE_SUBNET: &str = "10.96.0.0/12";
/// The default DNS zone of the cluster.
pub const DEFAULT_DNS_DOMAIN: &str = "cluster.local";
/// The repository of images that are built from Windlass' own binary. No registry has it.
pub const OWN_REPOSITORY: &str = "windlass.local";
/// Upstream's registry.
pub const DEFAULT_REPOSITORY: &str = "registry.k8s.io";
/// etcd's data directory.
pub(crate) const DEFAULT_ETCD_DATA_DIR: &str = "/var/lib/etcd";
/// The directory of the PKI.
pub const DEFAULT_CERTIFICATES_DIR: &str = "/etc/kubernetes/pki";

/// The tag of upstream's etcd image.
pub(crate) const ETCD_VERSION: &str = "3.6.8-0";
/// The tag of upstream's CoreDNS image.
pub(crate) const COREDNS_VERSION: &str = "v1.14.2";
/// The tag of the sandbox image.
pub(crate) const PAUSE_VERSION: &str = "3.10.2";
/// The minimum version of an external etcd.
pub const MIN_EXTERNAL_ETCD_VERSION: &str = "3.5.24";
