//! Applies a document to a cluster: its checks against the cluster, the files and flags that it changes, and the
//! processes that must be restarted.

mod addresses;
mod arguments;
mod change;
mod command;
mod kubelet;
mod nodes;
mod registries;
#[cfg(test)]
mod tests;

pub(crate) use addresses::{clear as clear_addresses, cluster_ranges, gateways};
pub use arguments::ConfigArgs;
pub(crate) use change::{check, concerned, store};
pub(crate) use command::{api_server, check_encryption, controller_manager, scheduler};
pub(crate) use kubelet::update as update_kubelet;
pub(crate) use nodes::apply as apply_nodes;
pub(crate) use registries::{encoded_credentials, write as write_registries};
