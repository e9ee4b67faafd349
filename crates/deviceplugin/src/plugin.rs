use std::{path::PathBuf, time::Duration};

use csi::{Error, channel, within};
use tonic::{Streaming, transport::Channel};

use crate::v1beta1::{
    AllocateRequest, ContainerAllocateRequest, ContainerAllocateResponse,
    ContainerPreferredAllocationRequest, Device, DevicePluginOptions, Empty, ListAndWatchResponse,
    PreStartContainerRequest, PreferredAllocationRequest, device_plugin_client::DevicePluginClient,
};

/// How long a plugin has for what costs it nothing.
const SHORT: Duration = Duration::from_secs(10);
/// How long it has to make devices ready before a container starts, as with upstream's kubelet.
const PRE_START: Duration = Duration::from_secs(30);
/// How long it has to give devices away. Upstream's kubelet waits for ever, and starts no other Pod meanwhile.
const ALLOCATE: Duration = Duration::from_secs(2 * 60);

/// A device plugin, cheap to clone.
#[derive(Clone)]
pub struct Plugin {
    client: DevicePluginClient<Channel>,
    allocate: Duration,
}

impl Plugin {
    /// Dials nothing yet. Must be called within a Tokio runtime.
    pub fn new(socket: PathBuf) -> Self {
        Self { client: DevicePluginClient::new(channel(socket)), allocate: ALLOCATE }
    }

    /// The same with another deadline for giving devices away than two minutes.
    pub fn with_allocate_timeout(self, allocate: Duration) -> Self {
        Self { allocate, ..self }
    }

    /// What it wants to be asked.
    pub async fn options(&self) -> Result<DevicePluginOptions, Error> {
        let mut client = self.client.clone();
        within(SHORT, client.get_device_plugin_options(Empty {})).await
    }

    /// Its devices, as they are and as they change.
    pub async fn devices(&self) -> Result<Devices, Error> {
        let mut client = self.client.clone();
        // Whoever has no devices yet may say nothing for long.
        let answer = client.list_and_watch(Empty {}).await;
        answer.map(|answer| Devices { stream: answer.into_inner() }).map_err(|s| Error::of(&s))
    }

    /// Which `size` of the devices it would rather give away together.
    pub async fn preferred(
        &self,
        available: Vec<String>,
        must_include: Vec<String>,
        size: usize,
    ) -> Result<Vec<String>, Error> {
        let mut client = self.client.clone();
        let request = ContainerPreferredAllocationRequest {
            available_device_i_ds: available,
            must_include_device_i_ds: must_include,
            allocation_size: i32::try_from(size).unwrap_or(i32::MAX),
        };
        let request = PreferredAllocationRequest { container_requests: vec![request] };
        let answer = within(SHORT, client.get_preferred_allocation(request)).await?;
        let first = answer.container_responses.into_iter().next();
        Ok(first.map(|response| response.device_i_ds).unwrap_or_default())
    }

    /// Gives devices to a container; `None` if the answer speaks of no container.
    pub async fn allocate(
        &self,
        devices_ids: Vec<String>,
    ) -> Result<Option<ContainerAllocateResponse>, Error> {
        let mut client = self.client.clone();
        let container_requests = vec![ContainerAllocateRequest { devices_ids }];
        let request = AllocateRequest { container_requests };
        let answer = within(self.allocate, client.allocate(request)).await?;
        Ok(answer.container_responses.into_iter().next())
    }

    /// Makes a container's devices ready, each time before it starts.
    pub async fn pre_start(&self, devices_ids: Vec<String>) -> Result<(), Error> {
        let mut client = self.client.clone();
        let request = PreStartContainerRequest { devices_ids };
        within(PRE_START, client.pre_start_container(request)).await.map(drop)
    }
}

/// A plugin's devices as they change.
pub struct Devices {
    stream: Streaming<ListAndWatchResponse>,
}

impl Devices {
    /// All devices, each time that one changes; `None` when the plugin has ended its list.
    pub async fn next(&mut self) -> Result<Option<Vec<Device>>, Error> {
        let message = self.stream.message().await.map_err(|status| Error::of(&status))?;
        Ok(message.map(|message| message.devices))
    }
}
