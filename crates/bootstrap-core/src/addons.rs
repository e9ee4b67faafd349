//! The add-ons: cluster DNS and kube-proxy, as the objects that are applied, in order.

mod coredns;
mod proxy;

pub use coredns::{corefile, objects as coredns};
pub use proxy::objects as kube_proxy;
