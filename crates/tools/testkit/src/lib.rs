//! Test helpers for several crates: an in-memory API server, the real API server in this process, fake drivers,
//! plugins and collectors of traces, a network with faults, and random panics.
//!
//! [`FakeApi`] suffices for controllers and the scheduler: it supports resourceVersions, conflicts, generations,
//! finalizers, selectors, lists, watches and discovery. It has no defaults, validation or admission; tests that need
//! those use [`RealApi`]. Read these two first. Production code must not depend on this crate.

mod collector;
mod csi_driver;
pub mod device_plugin;
pub mod dra_driver;
mod fake_api;
mod fault;
mod lagging_store;
pub mod metrics;
mod network;
mod objects;
mod panics;
mod ports;
mod real_api;
mod script;
mod until;

pub use collector::{CollectedSpan, Collector};
pub use csi_driver::CsiDriver;
pub use device_plugin::DevicePlugin;
pub use dra_driver::DraDriver;
pub use fake_api::FakeApi;
pub use fault::Fault;
pub use network::{Link, Loss, Network};
pub use objects::{Objects, ServedResource};
pub use panics::PanicInjector;
pub use ports::free_port;
pub use real_api::{Machine, RealApi, config};
pub use script::write_script;
/// The status codes of a fake driver's errors.
pub use tonic::Code;
pub use until::until;
