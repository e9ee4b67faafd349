//! The index by which nodes are addressed.

/// The index of a node in the cluster's arrays.
pub type NodeIx = u32;
