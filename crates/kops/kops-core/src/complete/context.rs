//! The inputs of the builders of defaults.

use crate::{version::Version, world::World};

/// The inputs of builders besides the spec.
pub(super) struct BuildContext<'w> {
    /// The version of the control plane.
    pub(super) control_plane: Version,
    /// The version of the kubelets.
    pub(super) node: Version,
    /// The contents of the cloud.
    pub(super) world: &'w World,
}
