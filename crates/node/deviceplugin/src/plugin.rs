//! The client of a device plugin.

use std::{path::PathBuf, time::Duration};

use csi::{Error, within};
use tonic::{Streaming, transport::Channel};

use crate::v1beta1::{
    AllocateRequest, ContainerAllocateRequest, ContainerAllocateResponse,
    ContainerPreferredAllocationRequest, Device, DevicePluginOptions, Empty, ListAndWatchResponse,
    PreStartContainerRequest, PreferredAllocationRequest, device_plugin_client::DevicePluginClient,
};

/// The timeout of calls that do no work.
const SHORT_TIMEOUT: Duration = Duration::from_secs(10);
/// The timeout of preparing devices before a container starts, as in upstream's kubelet.
const PRE_START: Duration = Duration::from_secs(30);
/// The timeout of allocating devices. Upstream's kubelet waits forever, and starts no other Pod meanwhile.
const ALLOCATE: Duration = Duration::from_secs(2 * 60);

/// The client of a device plugin, cheap to clone.
#[derive(Clone)]
pub struct Plugin {
    client: DevicePluginClient<Channel>,
}

impl Plugin {
    /// Creates a client that connects at the first call. Must be called within a Tokio runtime.
    pub fn new(socket: PathBuf) -> Self {
        Self { client: DevicePluginClient::new(grpc::channel(socket)) }
    }

    /// Returns the optional calls that the plugin supports.
    pub async fn options(&self) -> Result<DevicePluginOptions, Error> {
        let mut client = self.client.clone();
        within(SHORT_TIMEOUT, client.get_device_plugin_options(Empty {})).await
    }

    /// Starts to watch the plugin's devices.
    pub async fn devices(&self) -> Result<Devices, Error> {
        let mut client = self.client.clone();
        // There is no timeout, because a plugin without devices may send nothing for long.
        let response = client.list_and_watch(Empty {}).await;
        response
            .map(|response| Devices { stream: response.into_inner() })
            .map_err(|s| Error::of(&s))
    }

    /// Returns the `size` devices that the plugin prefers to allocate together.
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
        let response = within(SHORT_TIMEOUT, client.get_preferred_allocation(request)).await?;
        let first = response.container_responses.into_iter().next();
        Ok(first.map(|response| response.device_i_ds).unwrap_or_default())
    }

    /// Allocates devices to a container; `None` if the response has no container.
    pub async fn allocate(
        &self,
        devices_ids: Vec<String>,
    ) -> Result<Option<ContainerAllocateResponse>, Error> {
        let mut client = self.client.clone();
        let container_requests = vec![ContainerAllocateRequest { devices_ids }];
        let request = AllocateRequest { container_requests };
        let response = within(ALLOCATE, client.allocate(request)).await?;
        Ok(response.container_responses.into_iter().next())
    }

    /// Prepares a container's devices, before each of its starts.
    pub async fn pre_start(&self, devices_ids: Vec<String>) -> Result<(), Error> {
        let mut client = self.client.clone();
        let request = PreStartContainerRequest { devices_ids };
        within(PRE_START, client.pre_start_container(request)).await.map(drop)
    }
}

/// The stream of a plugin's devices.
pub struct Devices {
    stream: Streaming<ListAndWatchResponse>,
}

impl Devices {
    /// Returns all devices whenever one changes; `None` when the stream has ended.
    pub async fn next(&mut self) -> Result<Option<Vec<Device>>, Error> {
        let message = self.stream.message().await.map_err(|status| Error::of(&status))?;
        Ok(message.map(|message| message.devices))
    }
}
