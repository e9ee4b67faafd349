//! The DNS records of a cluster for dns-controller: the names that objects claim, the records that these names need,
//! the zones that may have them, and the changes since the last write.
//!
//! [`pod_claims`] and its siblings read objects, [`wanted`] combines them, [`ZoneRules`] selects zones, and
//! [`Published::changes`] returns the writes. Read [`wanted`] first.
//!
//! Invariants:
//! - A name that an object claims never loses its last record: while no address is known, the earlier records stay.
//! - A name is removed only if this process wrote it and no object has claimed it for [`TTL`].
//! - Objects of other namespaces cannot change a name that an object of kube-system claims.

mod claims;
mod name;
mod published;
#[cfg(test)]
mod tests;
mod wanted;
mod zones;

pub use claims::{
    Claims, EXTERNAL, INTERNAL, NodeAddresses, ingress_claims, node_addresses, pod_claims,
    service_claims,
};
pub use name::parse_name;
pub use published::{Change, Published, TTL, batches};
pub use wanted::{AddressOptions, DesiredRecords, Records, wanted};
pub use zones::{NoZone, Zone, ZoneRuleError, ZoneRules, Zones};
