//! The plan of kubeadm's kubeconfig files: user and server of each.

use api_config::kubeadm::{ApiEndpoint, ClusterConfiguration};
use pki::{LeafSpec, Subject, Usage};

use crate::{
    constants::{ADMINS_GROUP, DEFAULT_CLUSTER_NAME, MASTERS_GROUP, NODES_GROUP},
    endpoint,
};

/// A kubeconfig file with an embedded client certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The name of its phase.
    pub phase: &'static str,
    /// The file name below `/etc/kubernetes`, also used in `certs renew`.
    pub file: &'static str,
    /// The name of the cluster in the file.
    pub cluster_name: String,
    /// The URL of the API server.
    pub server: String,
    /// The subject of the client certificate.
    pub user: Subject,
    /// The description in `certs renew`.
    pub long_name: &'static str,
}

impl Plan {
    /// Returns the specification of the client certificate.
    pub fn spec(&self) -> LeafSpec {
        LeafSpec { subject: self.user.clone(), alt_names: Vec::new(), usage: Usage::Client }
    }
}

/// Returns the files of one control plane machine. Only the first one gets `super_admin`; further copies would only be
/// more keys to lose.
pub fn plan(
    cluster: &ClusterConfiguration,
    local: &ApiEndpoint,
    node_name: &str,
    super_admin: bool,
) -> Vec<Plan> {
    let cluster_name = match cluster.cluster_name.as_str() {
        "" => DEFAULT_CLUSTER_NAME.to_owned(),
        name => name.to_owned(),
    };
    let file = |phase, file, server: String, user, long_name| Plan {
        phase,
        file,
        cluster_name: cluster_name.clone(),
        server,
        user,
        long_name,
    };
    let (stable, own) = (|| endpoint::stable_url(cluster, local), || endpoint::local_url(local));
    let mut files = vec![file(
        "admin",
        "admin.conf",
        stable(),
        Subject::new("kubernetes-admin").in_group(ADMINS_GROUP),
        "certificate embedded in the kubeconfig file for the admin to use and for kubeadm itself",
    )];
    if super_admin {
        files.push(file(
            "super-admin",
            "super-admin.conf",
            stable(),
            Subject::new("kubernetes-super-admin").in_group(MASTERS_GROUP),
            "certificate embedded in the kubeconfig file for the super-admin",
        ));
    }
    files.extend([
        file(
            "kubelet",
            "kubelet.conf",
            own(),
            Subject::new(format!("system:node:{node_name}")).in_group(NODES_GROUP),
            "certificate embedded in the kubeconfig file for the kubelet",
        ),
        file(
            "controller-manager",
            "controller-manager.conf",
            own(),
            Subject::new("system:kube-controller-manager"),
            "certificate embedded in the kubeconfig file for the controller manager to use",
        ),
        file(
            "scheduler",
            "scheduler.conf",
            own(),
            Subject::new("system:kube-scheduler"),
            "certificate embedded in the kubeconfig file for the scheduler manager to use",
        ),
    ]);
    files
}
