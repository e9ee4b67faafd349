//! The part that the checkpoints of CPUs, memory, devices and claims share: a checksum, and for CPUs and memory the
//! policy that wrote the file.

use serde::de::DeserializeOwned;

/// The error of a checkpoint whose data does not match its checksum. The message is upstream's.
#[derive(Debug, thiserror::Error)]
#[error("checkpoint is corrupted: its checksum is {stated}, and that of its data {actual}")]
pub struct ChecksumError {
    /// The checksum in the file.
    pub stated: u64,
    /// The checksum of the file's data.
    pub actual: u64,
}

/// Compares the checksum in a file with that of its data.
pub(crate) fn verify_checksum(stated: u64, actual: u64) -> Result<(), ChecksumError> {
    if stated == actual { Ok(()) } else { Err(ChecksumError { stated, actual }) }
}

/// The error of a checkpoint that another policy wrote. The message is upstream's.
#[derive(Debug, thiserror::Error)]
#[error("configured policy {configured:?} differs from state checkpoint policy {stated:?}")]
pub struct PolicyError {
    /// The policy of this kubelet.
    pub configured: &'static str,
    /// The policy in the file.
    pub stated: String,
}

/// The fields of a checkpoint that do not depend on its manager.
pub(crate) struct Header<'a> {
    /// The name of the policy that wrote the file.
    pub(crate) policy: &'a str,
    /// The checksum in the file; 0 for none.
    pub(crate) checksum: u64,
}

/// A checkpoint that depends on the policy of its manager.
pub(crate) trait PolicyFile: DeserializeOwned {
    /// Returns the header of the file.
    fn header(&self) -> Header<'_>;

    /// Returns the checksum of the file's data.
    fn checksum(&self) -> u64;
}

/// Reads the checkpoint of a policy.
pub(crate) fn read<F, E>(checkpoint: &[u8], configured: &'static str) -> Result<F, E>
where
    F: PolicyFile,
    E: From<serde_json::Error> + From<ChecksumError> + From<PolicyError>,
{
    let file: F = serde_json::from_slice(checkpoint)?;
    let header = file.header();
    if header.checksum != 0 {
        verify_checksum(header.checksum, file.checksum())?;
    }
    if header.policy != configured {
        return Err(PolicyError { configured, stated: header.policy.to_owned() }.into());
    }
    Ok(file)
}
