use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use tonic::transport::Channel;

use crate::{
    Error, TIMEOUT, channel,
    v1::{
        self,
        node_client::NodeClient,
        node_service_capability::{self, rpc::Type},
    },
    within,
};

/// What a driver's node service can do, of what the kubelet asks about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// A volume is staged once on a node before it is published to Pods.
    pub stage: bool,
    /// It takes part in growing a volume.
    pub expand: bool,
    /// It gives volumes to a Pod's group (`fsGroup`) itself.
    pub mount_group: bool,
    /// It knows the access modes that tell one Pod from one node.
    pub single_node_multi_writer: bool,
    /// It tells how full volumes are.
    pub volume_stats: bool,
}

/// How full a volume is; what a driver does not tell is zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VolumeStats {
    pub bytes: Amounts,
    pub inodes: Amounts,
}

/// How much there is of something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amounts {
    pub available: u64,
    pub total: u64,
    pub used: u64,
}

impl Amounts {
    fn of(usage: &v1::VolumeUsage) -> Self {
        let amount = |told: i64| u64::try_from(told).unwrap_or(0);
        Self {
            available: amount(usage.available),
            total: amount(usage.total),
            used: amount(usage.used),
        }
    }
}

/// A driver's node service, cheap to clone.
#[derive(Clone)]
pub struct Driver {
    client: NodeClient<Channel>,
    timeout: Duration,
}

impl Driver {
    /// `endpoint` is a socket's path, with or without `unix://`. Nothing is dialled before the first call. Must be called
    /// within a Tokio runtime.
    pub fn new(endpoint: &str) -> Self {
        let socket = PathBuf::from(endpoint.strip_prefix("unix://").unwrap_or(endpoint));
        Self { client: NodeClient::new(channel(socket)), timeout: TIMEOUT }
    }

    /// The same with another deadline for each call than upstream's two minutes.
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// The node's ID, which volumes it reaches, and how many.
    pub async fn node_info(&self) -> Result<v1::NodeGetInfoResponse, Error> {
        let mut client = self.client.clone();
        within(self.timeout, client.node_get_info(v1::NodeGetInfoRequest {})).await
    }

    /// What the driver can do; what it names beyond what is known is passed over.
    pub async fn capabilities(&self) -> Result<Capabilities, Error> {
        let mut client = self.client.clone();
        let request = v1::NodeGetCapabilitiesRequest {};
        let answer = within(self.timeout, client.node_get_capabilities(request)).await?;
        let mut can = Capabilities::default();
        for capability in answer.capabilities {
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

    /// Makes a volume ready on this node, for all Pods.
    pub async fn stage(&self, request: v1::NodeStageVolumeRequest) -> Result<(), Error> {
        let mut client = self.client.clone();
        within(self.timeout, client.node_stage_volume(request)).await.map(drop)
    }

    /// Takes back what staging did; success if that is done already.
    pub async fn unstage(&self, request: v1::NodeUnstageVolumeRequest) -> Result<(), Error> {
        let mut client = self.client.clone();
        within(self.timeout, client.node_unstage_volume(request)).await.map(drop)
    }

    /// Brings a volume to a Pod's directory.
    pub async fn publish(&self, request: v1::NodePublishVolumeRequest) -> Result<(), Error> {
        let mut client = self.client.clone();
        within(self.timeout, client.node_publish_volume(request)).await.map(drop)
    }

    /// Takes a volume from a Pod's directory; success if that is done already.
    pub async fn unpublish(&self, request: v1::NodeUnpublishVolumeRequest) -> Result<(), Error> {
        let mut client = self.client.clone();
        within(self.timeout, client.node_unpublish_volume(request)).await.map(drop)
    }

    /// How full a volume is that is published at `path`; `None` if the driver answers without saying so.
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
        let answer = within(self.timeout, client.node_get_volume_stats(request)).await?;
        let mut stats = VolumeStats::default();
        for usage in &answer.usage {
            match usage.unit() {
                v1::volume_usage::Unit::Bytes => stats.bytes = Amounts::of(usage),
                v1::volume_usage::Unit::Inodes => stats.inodes = Amounts::of(usage),
                v1::volume_usage::Unit::Unknown => {}
            }
        }
        Ok((!answer.usage.is_empty()).then_some(stats))
    }

    /// Grows what is on a volume after the volume has grown.
    pub async fn expand(&self, request: v1::NodeExpandVolumeRequest) -> Result<(), Error> {
        let mut client = self.client.clone();
        within(self.timeout, client.node_expand_volume(request)).await.map(drop)
    }
}
