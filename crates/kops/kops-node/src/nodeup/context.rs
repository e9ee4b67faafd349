//! The inputs of a machine's configuration.

use instances::Machine;
use serde_json::Value;

/// The inputs of a machine's configuration.
pub(super) struct NodeContext {
    /// The boot configuration, which the machine was created with.
    pub(super) boot: Value,
    /// The node configuration of the machine's group.
    pub(super) config: Value,
    pub(super) machine: Machine,
}
