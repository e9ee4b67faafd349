//! kOps' kinds Cluster, InstanceGroup, Keyset, SSHCredential and Host in two versions. `kops.k8s.io/v1alpha2` is stored
//! and written, `v1alpha3` is read and shown.
//!
//! Both versions are parsed into one tree, the hub, whose names are v1alpha3's except for fields that v1alpha3 lacks.
//! The table `facts/fields.tsv` defines all fields; reading, converting and writing are walks over it. Completing a
//! spec is `kops-core`'s task. Read [`Object`] first.
//!
//! Invariants:
//! - Every field is checked. A field that the version does not have, or a value of another type, is an error with the
//!   field's path. (Upstream drops such fields.)
//! - Output equals upstream's byte for byte: empty fields are omitted as Go's tags say, keys are in the order of Go's
//!   YAML, quantities and durations are in canonical form.
//! - The crate is pure.

mod error;
#[cfg(test)]
mod fuzzed;
mod legacy;
mod object;
mod read;
mod schema;
mod set;
mod validate;
mod write;
pub mod yaml;

pub use error::Error;
pub use object::{Object, VersionName, is_ours};
pub use schema::{Kind, has_field};
pub use validate::{
    CLOUD_LABEL, overlap, validate_cluster, validate_cluster_update, validate_group,
};
