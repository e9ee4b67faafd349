//! Machines on this host: namespaces with a disk, a network and a container runtime of their own, in groups of a fixed
//! size. The crate `kops-local` decides which machines a cluster needs.
//!
//! Read [`Fleet`] first: the directory with the desired state of one cluster's machines. [`keep`] is the process that
//! creates and replaces them. [`Machine`] describes one machine, whose first process ([`machine`]) starts the runtime
//! and `nodeup`. The crate `local` uses [`space`], [`link`] and [`runtime`] alone.
//!
//! Invariants:
//! - A machine that ends is replaced by a new one with the same name and address, and with an empty disk. Only its
//!   volumes remain.
//! - A volume is attached to one machine at a time, which finds it by its tags.
//! - Only a directory with the fleet's mark is removed.
//! - A machine does not see the files of other machines. Only trusted machines (control planes) see the state store.
//! - The identity certificate, which only the keeper signs, identifies a machine. It also proves that the machine was
//!   created after the end of the previous machine of its name.
//! - The keeper and its guard restart each other.

mod attach;
mod document;
mod error;
mod fleet;
mod guard;
mod identity;
mod json;
mod keeper;
pub mod link;
pub mod machine;
mod process;
pub mod runtime;
pub mod space;
pub mod testing;
pub mod untrusted;
mod volume;

pub use document::Machine;
pub use error::Error;
pub use fleet::{Companion, Fleet, FleetSpec, Group};
pub use guard::{guard, start};
pub use identity::created_at;
pub use keeper::{keep, remove, replace};
pub use machine::PROGRAMS;
pub use volume::{AttachedVolume, Volume};
