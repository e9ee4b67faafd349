//! The creation time in a machine's identity certificate.

use std::time::{Duration, SystemTime};

use pki::{CertInfo, Validity};

/// Returns the start of validity of the identity of a machine that was created at `made`, in seconds since the epoch.
pub(crate) fn not_before(made: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(made.max(0).cast_unsigned()) - Validity::SKEW
}

/// Returns the creation time of the machine with this identity.
pub fn created_at(identity: &CertInfo) -> SystemTime {
    identity.not_before + Validity::SKEW
}
