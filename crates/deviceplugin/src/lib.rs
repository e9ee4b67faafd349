//! Both sides of device plugins' API, v1beta1, over unix sockets; the kubelet's side of the drivers of dynamic resource
//! allocation, v1 and v1beta1; and the messages by which a kubelet tells what it has given to whom (podresources, v1).
//!
//! Invariants: every call has a deadline, but the lists of devices and of their health, which are streams; a message is
//! bounded (gRPC's 4 MiB), and so is the number of connections to a socket that [`serve`] answers at.

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

/// The version of the API, which a plugin names when it registers.
pub const VERSION: &str = "v1beta1";

/// What a plugin says of a device that works; every other word is as good as "Unhealthy".
pub const HEALTHY: &str = "Healthy";
