//! kOps' kinds: Cluster, InstanceGroup, Keyset, SSHCredential and Host, as `kops.k8s.io/v1alpha2` (which is stored and
//! written) and `v1alpha3` (which is read and shown) have them.
//!
//! Both versions are read into one tree, the hub, whose names are v1alpha3's but for fields that it lacks. What the
//! fields are stands in one table, `facts/fields.tsv`, and reading, converting and writing are two walks over it.
//!
//! Invariants:
//! - What is read is checked: a field that the version does not have, or a value of another kind, is an error that names
//!   its path. (Upstream drops such fields.)
//! - What is written is upstream's byte for byte: empty fields are left out where Go's tags say so, keys are in the order
//!   of Go's YAML, quantities and durations in their canonical form.
//! - The crate is pure.

mod error;
#[cfg(test)]
mod fuzzed;
mod legacy;
mod object;
mod read;
mod schema;
mod set;
mod spec;
mod validate;
mod write;
pub mod yaml;

pub use error::Error;
pub use object::{Object, VersionName, documents, is_ours};
pub use schema::{Kind, has_field};
pub use spec::Spec;
pub use validate::{CLOUD_LABEL, validate_cluster, validate_cluster_update, validate_group};
