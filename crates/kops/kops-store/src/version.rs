//! The version of kOps.

/// The kOps release that this implementation follows.
pub const KOPS_VERSION: &str = "1.36.2";
