//! Machines on this machine: namespaces with a disk, a network and a container runtime of their own, in groups that are
//! kept at their size.
//!
//! [`Fleet`] is what is wanted of one cluster's machines, in a directory; [`keep`] is the process that makes it so; and
//! [`Machine`] is one of them, whose first process ([`machine`]) starts the runtime and hands over to what it is given to
//! run. `local`'s nodes use [`space`] and [`link`] alone.
//!
//! Invariants:
//! - A machine that ends is replaced by a new one of the same name and address, with an empty disk. Only its volumes stay.
//! - Only what a fleet's mark names is removed.
//! - A machine sees neither the other machines' files nor, unless it is a control plane, the state store.
//! - Who a machine is, its identity certificate says, which only its keeper signs.

mod error;
mod fleet;
mod keeper;
pub mod link;
pub mod machine;
pub mod runtime;
pub mod space;

pub use error::Error;
pub use fleet::{Fleet, Group, Wanted};
pub use keeper::{keep, remove, running, start, tell};
pub use machine::{Machine, PROGRAMS};
