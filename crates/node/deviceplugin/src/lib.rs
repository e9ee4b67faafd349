//! The APIs between the kubelet and device plugins, over Unix sockets: both sides of device plugins (v1beta1), the
//! client of drivers for dynamic resource allocation (DRA, v1 and v1beta1), and the messages of podresources (v1). Read
//! [`Plugin`] and [`Driver`] first.
//!
//! Invariants: every call has a timeout, except for the streams of devices and of their health. Messages are limited to
//! gRPC's 4 MiB.

#[allow(clippy::all, clippy::pedantic, unreachable_pub, missing_docs, reason = "generated")]
pub mod dra;
#[allow(clippy::all, clippy::pedantic, unreachable_pub, missing_docs, reason = "generated")]
pub mod drahealth;
mod driver;
mod plugin;
#[allow(clippy::all, clippy::pedantic, unreachable_pub, missing_docs, reason = "generated")]
pub mod podresources;
#[allow(clippy::all, clippy::pedantic, unreachable_pub, missing_docs, reason = "generated")]
pub mod v1beta1;

pub use csi::{Error, shorten};
pub use driver::{DRIVER_SERVICES, DRIVER_TIMEOUT, DeviceHealths, Driver, DriverVersion};
pub use plugin::{Devices, Plugin};

/// The version of the device plugin API, which a plugin sends in its registration.
pub const VERSION: &str = "v1beta1";

/// The health of a working device. Every other value counts as unhealthy.
pub const HEALTHY: &str = "Healthy";
