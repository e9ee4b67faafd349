//! Role-based access control. Read [`Rbac`] first.
//!
//! Invariant: the index holds exactly the observed Roles and bindings, by subject. A decision reads only the
//! bindings of the user and the user's groups, so its cost does not grow with the cluster.

mod authorizer;
mod index;
mod policy;
mod rules;

pub use authorizer::Rbac;
pub(crate) use index::RoleRef;
pub use policy::{Ensure, bootstrap_objects, ensure_bootstrap, node_rules};
pub(crate) use rules::quoted_list;
pub use rules::{PolicyRule, uncovered};

#[cfg(test)]
mod tests;
