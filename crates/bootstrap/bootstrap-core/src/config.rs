//! kubeadm's configuration: parses documents of every version, sets defaults, validates and prints. Read [`Init`]
//! first.

mod convert;
mod defaults;
mod dynamic;
mod facts;
mod init;
mod print;
mod read;
mod validate;

pub use defaults::{
    default_cluster, default_init, default_join, default_kubelet, default_proxy, default_reset,
    default_timeouts, default_upgrade,
};
pub use facts::Facts;
pub use init::Init;
pub use print::{
    Kinds, document, init_defaults, join_defaults, migrate, reset_defaults, upgrade_defaults,
};
pub use read::{Documents, Read, read};
pub use validate::{
    validate_cluster, validate_init, validate_join, validate_reset, validate_upgrade,
};

#[cfg(test)]
mod tests;
