//! The checkpoint of devices in upstream's format (`kubelet_internal_checkpoint`), so that each kubelet can take over
//! the other's node.

use std::{collections::BTreeMap, fmt::Write as _};

use base64::{Engine, engine::general_purpose::STANDARD};
use serde::{Deserialize, Serialize};

use super::{AllocatedDevices, Allocations, Resource};
use crate::{
    checkpoint::{ChecksumError, verify_checksum},
    spec::fnv1a,
    time::Timestamp,
};

/// The error of a checkpoint that cannot be restored.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    #[error("it cannot be read: {0}")]
    Syntax(#[from] serde_json::Error),
    #[error(
        "the answer of {resource}'s plugin for container {container} of Pod {pod} is not base64"
    )]
    Response { pod: String, container: String, resource: String },
    #[error(transparent)]
    Checksum(#[from] ChecksumError),
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "PascalCase")]
struct File {
    data: Data,
    checksum: u64,
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Data {
    pod_device_entries: Option<Vec<Entry>>,
    registered_devices: Option<BTreeMap<String, Option<Vec<String>>>>,
}

#[derive(Deserialize, Serialize)]
struct Entry {
    #[serde(rename = "PodUID")]
    pod: String,
    #[serde(rename = "ContainerName")]
    container: String,
    #[serde(rename = "ResourceName")]
    resource: String,
    #[serde(rename = "DeviceIDs")]
    devices: Option<BTreeMap<i64, Option<Vec<String>>>>,
    /// The response in base64, as Go encodes bytes.
    #[serde(rename = "AllocResp")]
    response: Option<String>,
}

impl Entry {
    fn response(&self) -> Result<Vec<u8>, CheckpointError> {
        let decoded = STANDARD.decode(self.response.as_deref().unwrap_or_default());
        decoded.map_err(|_| CheckpointError::Response {
            pod: self.pod.clone(),
            container: self.container.clone(),
            resource: self.resource.clone(),
        })
    }
}

impl Allocations {
    /// Encodes the checkpoint.
    pub fn checkpoint(&self) -> Vec<u8> {
        let registered = |(name, entry): (&String, &Resource)| {
            let healthy = entry.devices.iter().filter(|(_, d)| d.healthy && entry.listed);
            (name.clone(), Some(healthy.map(|(id, _)| id.clone()).collect()))
        };
        let mut entries = Vec::new();
        for (pod, containers) in &self.pods {
            for (container, resources) in containers {
                entries.extend(resources.iter().map(|(resource, allocated)| Entry {
                    pod: pod.clone(),
                    container: container.clone(),
                    resource: resource.clone(),
                    devices: Some(
                        allocated.devices.iter().map(|(n, ids)| (*n, Some(ids.clone()))).collect(),
                    ),
                    response: Some(STANDARD.encode(&allocated.response)),
                }));
            }
        }
        let data = Data {
            pod_device_entries: (!entries.is_empty()).then_some(entries),
            registered_devices: Some(self.resources.iter().map(registered).collect()),
        };
        let checksum = checksum(&data).unwrap_or_default();
        serde_json::to_vec(&File { data, checksum }).unwrap_or_default()
    }

    /// Restores the state of an earlier kubelet. Plugins must register again within [`super::GRACE`].
    pub fn restore(checkpoint: &[u8], now: Timestamp) -> Result<Self, CheckpointError> {
        let file: File = serde_json::from_slice(checkpoint)?;
        verify_checksum(file.checksum, checksum(&file.data)?)?;
        let mut allocations = Self::default();
        for entry in file.data.pod_device_entries.into_iter().flatten() {
            let response = entry.response()?;
            let devices = entry.devices.unwrap_or_default().into_iter();
            let devices = devices.map(|(node, ids)| (node, ids.unwrap_or_default())).collect();
            allocations
                .entry(&entry.pod, &entry.container)
                .insert(entry.resource, AllocatedDevices { devices, response });
        }
        for name in file.data.registered_devices.unwrap_or_default().into_keys() {
            let stopped = Some(now);
            allocations.resources.insert(name, Resource { stopped, ..Resource::default() });
        }
        Ok(allocations)
    }
}

/// Returns the hash of Go's printed form of the data, which upstream compares.
fn checksum(data: &Data) -> Result<u64, CheckpointError> {
    Ok(u64::from(fnv1a(go_string(data)?.as_bytes())))
}

fn go_string(data: &Data) -> Result<String, CheckpointError> {
    let mut text =
        String::from("(checkpoint.checkpointData){PodDeviceEntries:([]checkpoint.PodDevicesEntry)");
    match &data.pod_device_entries {
        None => text.push_str("<nil>"),
        Some(entries) => {
            let entries: Result<Vec<String>, _> = entries.iter().map(go_entry).collect();
            let _ = write!(text, "[{}]", entries?.join(" "));
        }
    }
    text.push_str(" RegisteredDevices:(map[string][]string)");
    text.push_str(&go_map(data.registered_devices.as_ref()));
    text.push('}');
    Ok(text)
}

fn go_entry(entry: &Entry) -> Result<String, CheckpointError> {
    let response = match &entry.response {
        None => "<nil>".to_owned(),
        Some(_) => {
            let bytes: Vec<String> = entry.response()?.iter().map(u8::to_string).collect();
            format!("[{}]", bytes.join(" "))
        }
    };
    Ok(format!(
        "{{PodUID:(string){} ContainerName:(string){} ResourceName:(string){} \
         DeviceIDs:(checkpoint.DevicesPerNUMA){} AllocResp:([]uint8){response}}}",
        entry.pod,
        entry.container,
        entry.resource,
        go_map(entry.devices.as_ref()),
    ))
}

fn go_map<K: std::fmt::Display>(map: Option<&BTreeMap<K, Option<Vec<String>>>>) -> String {
    let Some(map) = map else { return "<nil>".to_owned() };
    let entry = |(key, ids): (&K, &Option<Vec<String>>)| match ids {
        None => format!("{key}:<nil>"),
        Some(ids) => format!("{key}:[{}]", ids.join(" ")),
    };
    let entries: Vec<String> = map.iter().map(entry).collect();
    format!("map[{}]", entries.join(" "))
}
