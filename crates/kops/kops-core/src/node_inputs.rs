//! The inputs of node and boot configurations besides the cluster's objects.

use std::collections::BTreeMap;

use crate::files::Hashes;

/// The inputs of a node configuration, besides the complete cluster and the complete group.
#[derive(Clone, Debug, Default)]
pub struct NodeInputs {
    /// The version of kOps that control planes with upstream's programs download.
    pub kops: String,
    /// The hashes of downloads.
    pub hashes: Hashes,
    /// The keysets, by name.
    pub keysets: BTreeMap<String, NodeKeyset>,
    /// The known addresses of the API's load balancer.
    pub api_addresses: Vec<String>,
    /// The images that a warm pool's machines pull in advance.
    pub warm_images: Vec<String>,
    /// The scheduler's configuration.
    pub scheduler_config: String,
    /// The newest version allowed for kubelets until the control plane has been updated; `None` for the spec's.
    pub kubelet: Option<String>,
    /// The hash of the encryption-at-rest configuration; empty for none.
    pub encryption_hash: String,
}

/// The public half of a keyset.
#[derive(Clone, Debug, Default)]
pub struct NodeKeyset {
    /// The ID of the primary key.
    pub primary_id: String,
    /// All trusted certificates, in PEM.
    pub certificates: String,
    /// The public keys of all trusted key pairs, in PEM.
    pub public_keys: String,
}
