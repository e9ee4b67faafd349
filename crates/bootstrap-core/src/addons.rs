//! The add-ons: cluster DNS, kube-proxy and the Pod network, as the objects that are applied, in order.

mod coredns;
pub mod metrics;
pub mod network;
mod proxy;
pub mod storage;

pub use coredns::{corefile, objects as coredns};
pub use proxy::objects as kube_proxy;
