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
//! - Who a machine is, its identity certificate says, which only its keeper signs; and that it was made after the last
//!   machine of its name had ended.
//! - Whoever keeps a fleet is kept itself: the keeper and its guard start each other again.

mod error;
mod fleet;
mod guard;
mod keeper;
pub mod link;
pub mod machine;
pub mod runtime;
pub mod space;

pub use error::Error;
pub use fleet::{Companion, Fleet, Group, Wanted};
pub use guard::{guard, start};
pub use keeper::{keep, remove, replace};
pub use machine::{Machine, PROGRAMS};

/// From when on the identity of a machine is good that was made then; and the other way round, when the machine was made
/// whose identity is good from then on.
pub(crate) fn not_before(made: i64) -> std::time::SystemTime {
    let made = std::time::Duration::from_secs(made.max(0).cast_unsigned());
    std::time::SystemTime::UNIX_EPOCH + made - pki::Validity::SKEW
}

/// When the machine was made that shows this identity.
pub fn made(identity: &pki::CertInfo) -> std::time::SystemTime {
    identity.not_before + pki::Validity::SKEW
}
