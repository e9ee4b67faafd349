//! DHCP (RFC 2131) for network boot, or proxyDHCP beside another DHCP server.
//!
//! Read [`Machine`] first: it decides the reply to a packet and is pure. [`server`] owns the sockets and the lease
//! file. Only IPv4 is served; clients and relays are not authenticated.

mod boot;
mod config;
mod error;
mod leases;
mod machine;
mod options;
mod probe;
pub mod server;
pub(crate) mod wire;

#[cfg(test)]
mod tests;

pub use crate::firmware::Firmware;
pub use boot::BootFiles;
pub use config::{Config, Reservation, Subnet};
pub(crate) use config::{parse_host, parse_range};
pub use error::{ConfigError, MAX_ADDRESSES, OptionError};
pub use leases::{Lease, Leases, State};
pub use machine::{Action, Arrival, Machine};
pub use options::{ExtraOption, parse_option};
