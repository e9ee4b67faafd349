//! The checkpoint of claims in upstream's format (`dra_manager_state`), so that each kubelet can take over the other's
//! node.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Claim, Device, allocations::Allocations};
use crate::checkpoint::{ChecksumError, verify_checksum};

const KIND: &str = "DRACheckpoint";
const VERSION: &str = "checkpoint.dra.kubelet.k8s.io/v1";

/// The error of a checkpoint that cannot be restored.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    #[error("it cannot be read: {0}")]
    Syntax(#[from] serde_json::Error),
    #[error(transparent)]
    Checksum(#[from] ChecksumError),
    #[error("it is a {kind} of {version}, and this kubelet reads a {KIND} of {VERSION}")]
    Version { kind: String, version: String },
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "PascalCase")]
struct File {
    /// [`Data`] as JSON. The checksum covers these bytes.
    data: String,
    checksum: u32,
}

#[derive(Deserialize, Serialize)]
struct Data {
    #[serde(default)]
    kind: String,
    #[serde(default, rename = "apiVersion")]
    version: String,
    #[serde(rename = "ClaimInfoStateList")]
    claims: Option<Vec<Entry>>,
}

#[derive(Deserialize, Serialize)]
struct Entry {
    #[serde(rename = "ClaimUID")]
    uid: String,
    #[serde(rename = "ClaimName")]
    name: String,
    #[serde(rename = "Namespace")]
    namespace: String,
    #[serde(rename = "PodUIDs")]
    pods: Option<BTreeMap<String, Empty>>,
    #[serde(rename = "DriverState")]
    drivers: Option<BTreeMap<String, DriverState>>,
}

/// The value of a set's member in Go's encoding.
#[derive(Deserialize, Serialize)]
struct Empty {}

#[derive(Deserialize, Serialize)]
struct DriverState {
    #[serde(rename = "Devices")]
    devices: Option<Vec<DeviceState>>,
}

#[derive(Deserialize, Serialize)]
struct DeviceState {
    #[serde(rename = "PoolName")]
    pool: String,
    #[serde(rename = "DeviceName")]
    name: String,
    #[serde(default, rename = "ShareID")]
    share: Option<String>,
    #[serde(rename = "RequestNames")]
    requests: Option<Vec<String>>,
    #[serde(rename = "CDIDeviceIDs")]
    cdi: Option<Vec<String>>,
}

/// Converts an empty list to `None`, because Go encodes it as null.
fn list<T>(items: Vec<T>) -> Option<Vec<T>> {
    (!items.is_empty()).then_some(items)
}

impl From<Device> for DeviceState {
    fn from(device: Device) -> Self {
        let Device { pool, name, share, requests, cdi } = device;
        Self { pool, name, share, requests: list(requests), cdi: list(cdi) }
    }
}

impl From<DeviceState> for Device {
    fn from(state: DeviceState) -> Self {
        let DeviceState { pool, name, share, requests, cdi } = state;
        let (requests, cdi) = (requests.unwrap_or_default(), cdi.unwrap_or_default());
        Self { pool, name, share, requests, cdi }
    }
}

impl From<&Claim> for Entry {
    fn from(claim: &Claim) -> Self {
        let claim = claim.clone();
        let state = |(driver, devices): (String, Vec<Device>)| {
            let devices = list(devices.into_iter().map(Into::into).collect());
            (driver, DriverState { devices })
        };
        Self {
            uid: claim.uid,
            name: claim.name,
            namespace: claim.namespace,
            pods: Some(claim.pods.into_iter().map(|uid| (uid, Empty {})).collect()),
            drivers: Some(claim.drivers.into_iter().map(state).collect()),
        }
    }
}

impl From<Entry> for Claim {
    fn from(entry: Entry) -> Self {
        let devices = |(driver, state): (String, DriverState)| {
            let devices = state.devices.into_iter().flatten().map(Into::into).collect();
            (driver, devices)
        };
        Self {
            uid: entry.uid,
            name: entry.name,
            namespace: entry.namespace,
            pods: entry.pods.into_iter().flatten().map(|(uid, _)| uid).collect(),
            drivers: entry.drivers.into_iter().flatten().map(devices).collect(),
            // The machine may have been rebooted, which discards what drivers have prepared.
            prepared: false,
        }
    }
}

impl Allocations {
    /// Encodes the checkpoint.
    pub fn checkpoint(&self) -> Vec<u8> {
        let claims = list(self.claims().map(Entry::from).collect());
        let data = Data { kind: KIND.to_owned(), version: VERSION.to_owned(), claims };
        let data = serde_json::to_string(&data).unwrap_or_default();
        let checksum = crc32fast::hash(data.as_bytes());
        serde_json::to_vec(&File { data, checksum }).unwrap_or_default()
    }

    /// Restores the claims from the checkpoint of an earlier kubelet.
    pub fn restore(checkpoint: &[u8]) -> Result<Self, CheckpointError> {
        let file: File = serde_json::from_slice(checkpoint)?;
        let actual = crc32fast::hash(file.data.as_bytes());
        verify_checksum(file.checksum.into(), actual.into())?;
        let data: Data = serde_json::from_str(&file.data)?;
        if (&*data.kind, &*data.version) != (KIND, VERSION) {
            return Err(CheckpointError::Version { kind: data.kind, version: data.version });
        }
        Ok(Self::with(data.claims.into_iter().flatten().map(Claim::from)))
    }
}
