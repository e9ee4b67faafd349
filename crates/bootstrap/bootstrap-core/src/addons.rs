//! The objects of the add-ons in the order to apply: cluster DNS, kube-proxy, Pod network, Metrics API,
//! StorageClass and load balancer addresses.

mod coredns;
mod daemon_set;
pub mod load_balancer;
pub mod metrics;
pub mod network;
mod proxy;
pub mod storage;

pub use coredns::{corefile, objects as coredns};
pub use proxy::objects as kube_proxy;
