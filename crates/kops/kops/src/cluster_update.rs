//! The subject of one `kops update cluster`, which the clouds' updates share.

use kops_api::Object;
use kops_store::Registry;

use crate::flags::UpdateCluster;

/// An update of a cluster by its specs in the state store.
#[derive(Clone, Copy)]
pub(crate) struct ClusterUpdate<'a> {
    /// The state store.
    pub(crate) registry: &'a Registry,
    /// The flags.
    pub(crate) command: &'a UpdateCluster,
    /// The cluster as the user specified it.
    pub(crate) cluster: &'a Object,
}
