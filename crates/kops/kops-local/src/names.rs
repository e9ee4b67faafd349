//! Names of cloud local in a cluster's API and in its specs.

/// The user name of the machines' keeper at the API server.
pub(crate) const KEEPER: &str = "kops-instances";
/// The annotation of a group with the time after which a machine with an unready Node is replaced.
pub(crate) const REPAIR_AFTER: &str = "kops.windlass.local/repair-after";
