//! The plugins, one to a file.

pub(crate) mod default_toleration_seconds;
pub(crate) mod limit_ranger;
pub(crate) mod namespace_exists;
pub(crate) mod namespace_lifecycle;
pub(crate) mod node_restriction;
pub(crate) mod priority;
pub(crate) mod service_account;
pub(crate) mod taint_nodes_by_condition;
