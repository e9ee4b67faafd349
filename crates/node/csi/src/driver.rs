//! The client of a driver's node service.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use tonic::transport::Channel;

use crate::{
    connection::{TIMEOUT, within},
    error::Error,
    v1::{
        self,
        node_client::NodeClient,
        node_service_capability::{self, rpc::Type},
    },
};

/// The capabilities of a driver's node service that the kubelet uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// The driver stages a volume on the node before it publishes it to Pods.
    pub stage: bool,
    /// The driver takes part in the expansion of volumes.
    pub expand: bool,
    /// The driver applies a Pod's group (`fsGroup`) itself.
    pub mount_group: bool,
    /// The driver supports the access modes `SINGLE_NODE_SINGLE_WRITER` and `SINGLE_NODE_MULTI_WRITER`.
    pub single_node_multi_writer: bool,
    /// The driver reports the usage of volumes.
    pub volume_stats: bool,
}

/// The usage of a volume. Values that the driver does not report are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VolumeStats {
    /// The usage of bytes.
    pub bytes: Usage,
    /// The usage of inodes.
    pub inodes: Usage,
}

/// The amounts of one unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The available amount.
    pub available: u64,
    /// The total amount.
    pub total: u64,
    /// The used amount.
    pub used: u64,
}

impl Usage {
    fn of(usage: &v1::VolumeUsage) -> Self {
        let amount = |reported: i64| u64::try_from(reported).unwrap_or(0);
        Self {
            available: amount(usage.available),
            total: amount(usage.total),
            used: amount(usage.used),
        }
    }
}

/// The client of a driver's node service, cheap to clone.
#[derive(Clone)]
pub struct Driver {
    client: NodeClient<Channel>,
    timeout: Duration,
}

impl Driver {
    /// Creates a client that connects at the first call. `endpoint` is the path of a socket, with or without `unix://`.
    /// Must be called within a Tokio runtime.
    pub fn new(endpoint: &str) -> Self {
        let socket = PathBuf::from(endpoint.strip_prefix("unix://").unwrap_or(endpoint));
        Self { client: NodeClient::new(grpc::channel(socket)), timeout: TIMEOUT }
    }

    /// Returns the client with another timeout per call than [`TIMEOUT`].
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Returns the node's ID, its topology, and the limit of volumes.
    pub async fn node_info(&self) -> Result<v1::NodeGetInfoResponse, Error> {
        let mut client = self.client.clone();
        within(self.timeout, client.node_get_info(v1::NodeGetInfoRequest {})).await
    }

    /// Returns the driver's capabilities. Unknown ones are ignored.
    pub async fn capabilities(&self) -> Result<Capabilities, Error> {
        let mut client = self.client.clone();
        let request = v1::NodeGetCapabilitiesRequest {};
        let response = within(self.timeout, client.node_get_capabilities(request)).await?;
        let mut can = Capabilities::default();
        for capability in response.capabilities {
            let Some(node_service_capability::Type::Rpc(rpc)) = capability.r#type else { continue };
            match rpc.r#type() {
                Type::StageUnstageVolume => can.stage = true,
                Type::ExpandVolume => can.expand = true,
                Type::VolumeMountGroup => can.mount_group = true,
                Type::SingleNodeMultiWriter => can.single_node_multi_writer = true,
                Type::GetVolumeStats => can.volume_stats = true,
                Type::Unknown | Type::VolumeCondition => {}
            }
        }
        Ok(can)
    }

    /// Stages a volume on the node, for all Pods.
    pub async fn stage(&self, request: v1::NodeStageVolumeRequest) -> Result<(), Error> {
        let mut client = self.client.clone();
        within(self.timeout, client.node_stage_volume(request)).await.map(drop)
    }

    /// Reverts [`Self::stage`]. Idempotent.
    pub async fn unstage(&self, request: v1::NodeUnstageVolumeRequest) -> Result<(), Error> {
        let mut client = self.client.clone();
        within(self.timeout, client.node_unstage_volume(request)).await.map(drop)
    }

    /// Mounts a volume at a Pod's directory.
    pub async fn publish(&self, request: v1::NodePublishVolumeRequest) -> Result<(), Error> {
        let mut client = self.client.clone();
        within(self.timeout, client.node_publish_volume(request)).await.map(drop)
    }

    /// Unmounts a volume from a Pod's directory. Idempotent.
    pub async fn unpublish(&self, request: v1::NodeUnpublishVolumeRequest) -> Result<(), Error> {
        let mut client = self.client.clone();
        within(self.timeout, client.node_unpublish_volume(request)).await.map(drop)
    }

    /// Returns the usage of a volume that is published at `path`; `None` if the response has none.
    pub async fn volume_stats(
        &self,
        volume: &str,
        path: &Path,
    ) -> Result<Option<VolumeStats>, Error> {
        let mut client = self.client.clone();
        let request = v1::NodeGetVolumeStatsRequest {
            volume_id: volume.to_owned(),
            volume_path: path.display().to_string(),
            staging_target_path: String::new(),
        };
        let response = within(self.timeout, client.node_get_volume_stats(request)).await?;
        let mut stats = VolumeStats::default();
        for usage in &response.usage {
            match usage.unit() {
                v1::volume_usage::Unit::Bytes => stats.bytes = Usage::of(usage),
                v1::volume_usage::Unit::Inodes => stats.inodes = Usage::of(usage),
                v1::volume_usage::Unit::Unknown => {}
            }
        }
        Ok((!response.usage.is_empty()).then_some(stats))
    }

    /// Expands a volume's file system after the volume has grown.
    pub async fn expand(&self, request: v1::NodeExpandVolumeRequest) -> Result<(), Error> {
        let mut client = self.client.clone();
        within(self.timeout, client.node_expand_volume(request)).await.map(drop)
    }
}
