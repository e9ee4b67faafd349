//! Helps for tests of several crates: an API server in memory, the real one in this process, and panics at random.
//!
//! [`FakeApi`] is good enough to run controllers and the scheduler against: resource versions, conflicts,
//! generations, finalizers, selectors, lists, watches and the discovery documents. It knows no defaults,
//! validation or admission; tests that need those use [`RealApi`].

mod csi_driver;
pub mod device_plugin;
pub mod dra_driver;
mod fake_api;
mod memory_disk;
mod objects;
mod panics;
mod ports;
mod real_api;

pub use csi_driver::{CsiDriver, Fault};
pub use device_plugin::DevicePlugin;
pub use dra_driver::DraDriver;
pub use fake_api::FakeApi;
pub use objects::{Objects, Served};
pub use panics::Panics;
pub use ports::free_port;
pub use real_api::{RealApi, config};
/// The codes by which a driver refuses.
pub use tonic::Code;
