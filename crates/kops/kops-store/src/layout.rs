//! Names that several programs use in a cluster's directory of the store.

/// The etcd cluster of all objects, except events if there is a cluster for them.
pub const ETCD: &str = "main";
/// The etcd cluster of events, which are not backed up.
pub const EVENTS: &str = "events";
/// The channel that lists a cluster's add-ons.
pub const BOOTSTRAP_CHANNEL: &str = "addons/bootstrap-channel.yaml";
/// The authority of machine identities, stored for kops-controller.
pub const IDENTITY_CA: &str = "manifests/local/identity-ca.crt";
/// The copies of all instance groups by name, in one object. Upstream's programs ignore it.
pub(crate) const GROUP_COPIES: &str = "igconfig/groups.json";

/// The secret with credentials of registries.
pub const DOCKER_CONFIG: &str = "dockerconfig";
/// The secret with the API server's configuration of encryption at rest.
pub const ENCRYPTION_CONFIG: &str = "encryptionconfig";

/// Returns the path of a keyset with its private keys.
pub fn private_keyset(cluster: &str, name: &str) -> String {
    format!("{cluster}/pki/private/{name}/keyset.yaml")
}

/// Returns the path of the public half of a keyset.
pub fn issued_keyset(cluster: &str, name: &str) -> String {
    format!("{cluster}/pki/issued/{name}/keyset.yaml")
}
