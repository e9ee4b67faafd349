//! The plan of kubeadm's kubeconfig files: whom each speaks for and which server it asks.

use api_config::kubeadm::{ApiEndpoint, ClusterConfiguration};
use pki::{LeafSpec, Subject, Usage};

use crate::{
    constants::{ADMINS_GROUP, DEFAULT_CLUSTER_NAME, MASTERS_GROUP, NODES_GROUP},
    endpoint,
};

/// A kubeconfig file with a client certificate inside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The name of its phase.
    pub phase: &'static str,
    /// The file's name under `/etc/kubernetes`, and in `certs renew`.
    pub file: &'static str,
    pub cluster_name: String,
    pub server: String,
    pub user: Subject,
    pub long_name: &'static str,
}

impl Plan {
    /// The client certificate that the file holds.
    pub fn spec(&self) -> LeafSpec {
        LeafSpec { subject: self.user.clone(), alt_names: Vec::new(), usage: Usage::Client }
    }
}

/// The files of one control-plane machine. `super_admin` only where the cluster begins: a second one on each
/// joining machine would only be a second key to lose.
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
