//! The APIs between the kubelet and device plugins, over Unix sockets: both sides of device plugins (v1beta1), the
//! client of drivers for dynamic resource allocation (DRA, v1 and v1beta1), and the messages of podresources (v1). Read
//! [`Plugin`] and [`Driver`] first.
//!
//! Invariants: every call has a timeout, except for the streams of devices and of their health. Messages are limited to
//! gRPC's 4 MiB, and [`serve`] limits the number of connections to a socket.

mod driver;
mod lenient;
mod plugin;
mod server;

pub use csi::{Error, shortened};
pub use driver::{DRIVER_SERVICES, DRIVER_TIMEOUT, DeviceHealths, Driver, DriverVersion};
pub use plugin::{Devices, Plugin};
pub use server::serve;

/// The messages of device plugins, generated from `proto/deviceplugin.proto`, with clients and servers.
#[allow(clippy::all, clippy::pedantic, unreachable_pub, missing_docs)]
pub mod v1beta1 {
    tonic::include_proto!("v1beta1");
}

/// The messages of dynamic resource allocation, v1, generated from `proto/dra.proto`, with clients and servers.
#[allow(clippy::all, clippy::pedantic, unreachable_pub, missing_docs)]
pub mod dra {
    tonic::include_proto!("k8s.io.kubelet.pkg.apis.dra.v1");
}

/// The messages of devices' health, generated from `proto/drahealth.proto`, with clients and servers.
#[allow(clippy::all, clippy::pedantic, unreachable_pub, missing_docs)]
pub mod drahealth {
    tonic::include_proto!("v1alpha1");
}

/// The messages of podresources, generated from `proto/podresources.proto`, with clients and servers.
#[allow(clippy::all, clippy::pedantic, unreachable_pub, missing_docs)]
pub mod podresources {
    tonic::include_proto!("v1");
}

/// The version of the device plugin API, which a plugin sends in its registration.
pub const VERSION: &str = "v1beta1";

/// The health of a working device. Every other value counts as unhealthy.
pub const HEALTHY: &str = "Healthy";
