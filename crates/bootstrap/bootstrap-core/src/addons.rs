//! The objects of the add-ons in the order to apply: cluster DNS, kube-proxy, Pod network, Metrics API and
//! StorageClass.

mod coredns;
pub mod metrics;
pub mod network;
mod proxy;
pub mod storage;

pub use coredns::{corefile, objects as coredns};
pub use proxy::objects as kube_proxy;
