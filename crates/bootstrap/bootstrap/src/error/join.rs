//! The errors of `join`.

/// The reason why a machine cannot join a cluster. Messages that kubeadm has are kubeadm's.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    #[error("discovery: bootstrapToken or file must be set")]
    NoDiscovery,
    #[error(
        "couldn't find authentication credentials for the TLS bootstrap process. Please use Token discovery, a \
         discovery file with embedded authentication credentials or a discovery file without authentication \
         credentials but with the TLSBootstrapToken flag (--tls-bootstrap-token)"
    )]
    NoCredentials,
    #[error("the discovery information names no certificate authority for the cluster")]
    NoAuthority,
    #[error(
        "no authorities are trusted to fetch {0}; download it, for example with curl, and pass the file"
    )]
    Url(String),
    #[error(
        "discovery.file.kubeConfigPath: Invalid value: {0:?}: not a valid HTTPS URL or a file on disk"
    )]
    File(String),
    #[error(
        "the cluster-info at {0} changed between the unverified and the verified answer, possibly by a machine in the \
         middle"
    )]
    ClusterInfoChanged(String),
    #[error(
        "there is no ConfigMap cluster-info in the namespace kube-public; create it with init phase bootstrap-token"
    )]
    NoClusterInfo,
    #[error("there is no ConfigMap {0} in kube-system; create it with init phase upload-config")]
    NoConfigMap(&'static str),
    #[error(
        "a Node with name {0:?} and status \"Ready\" already exists in the cluster. You must delete the existing Node \
         or change the name of this new joining Node"
    )]
    NameTaken(String),
    #[error(
        "unable to add a new control plane instance to a cluster that doesn't have a stable controlPlaneEndpoint \
         address; please ensure that: * The cluster has a stable controlPlaneEndpoint address (kubeadm-config)"
    )]
    NoEndpoint,
    #[error(
        "this cluster keeps its objects in a store of its first control plane's own, which cannot have a second; move \
         it to etcd first (windlass store copy)"
    )]
    EmbeddedStore,
    #[error("the cluster's etcd has no members")]
    NoEtcdMembers,
}
