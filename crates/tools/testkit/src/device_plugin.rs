//! A fake device plugin over a unix socket. The plugin records its calls, and each method can be made to fail.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use deviceplugin::v1beta1::{
    AllocateRequest, AllocateResponse, ContainerAllocateResponse,
    ContainerPreferredAllocationResponse, Device, DevicePluginOptions, Empty, ListAndWatchResponse,
    NumaNode, PreStartContainerRequest, PreStartContainerResponse, PreferredAllocationRequest,
    PreferredAllocationResponse, RegisterRequest, TopologyInfo,
    device_plugin_server::{DevicePlugin as Service, DevicePluginServer},
    registration_client::RegistrationClient,
};
use futures_util::stream::BoxStream;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;
use tonic::{Request, Response, Status};

use crate::fault::{Fault, Faults};

/// A fake plugin that answers while its [`rt::Tasks`] run. A container gets the IDs of its devices in the variable
/// `DEVICES`.
pub struct DevicePlugin {
    /// The name of the resource.
    pub resource: String,
    /// The options that it reports.
    pub options: DevicePluginOptions,
    /// The devices that it prefers.
    pub preferred: Vec<String>,
    /// The response to `Allocate`, without the variable `DEVICES`.
    pub answer: ContainerAllocateResponse,
    devices: watch::Sender<Vec<Device>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    calls: Vec<String>,
    faults: Faults,
}

/// Returns a device as a plugin reports it, near a NUMA node if one is given.
pub fn device(id: &str, health: &str, node: Option<i64>) -> Device {
    let near = |id| TopologyInfo { nodes: vec![NumaNode { id }] };
    Device { id: id.to_owned(), health: health.to_owned(), topology: node.map(near) }
}

impl DevicePlugin {
    /// Creates a plugin with healthy devices.
    pub fn new(resource: &str, devices: &[&str]) -> Self {
        let devices = devices.iter().map(|id| device(id, "Healthy", None)).collect();
        Self {
            resource: resource.to_owned(),
            options: DevicePluginOptions::default(),
            preferred: Vec::new(),
            answer: ContainerAllocateResponse::default(),
            devices: watch::channel(devices).0,
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Returns the calls so far: the method and the devices.
    pub fn calls(&self) -> Vec<String> {
        self.state().calls.clone()
    }

    /// Makes a method fail from now on, or work again.
    pub fn set_fault(&self, method: &str, fault: Option<Fault>) {
        self.state().faults.set(method, fault);
    }

    /// Replaces its devices.
    pub fn set_devices(&self, devices: Vec<Device>) {
        self.devices.send_replace(devices);
    }

    /// Serves at a socket. Must be called within a Tokio runtime.
    pub fn serve(self: &Arc<Self>, socket: &Path, tasks: &rt::Tasks) -> std::io::Result<()> {
        let service = DevicePluginServer::new(PluginService(self.clone()));
        grpc::serve("device plugin", socket, service, tasks)
    }

    /// Registers with the kubelet of a directory. `endpoint` is the name of the plugin's socket in it.
    pub async fn register(&self, directory: &Path, endpoint: &str) -> Result<(), Status> {
        register(directory, "v1beta1", endpoint, &self.resource).await
    }

    async fn called(&self, method: &str, devices: &[String]) -> Result<(), Status> {
        let fault = {
            let mut state = self.state();
            let mut devices = devices.to_vec();
            devices.sort();
            state.calls.push(format!("{method} {}", devices.join(",")).trim_end().to_owned());
            state.faults.of(method)
        };
        Fault::happen(fault).await
    }
}

/// Sends a registration with any contents to the kubelet of a directory.
pub async fn register(
    directory: &Path,
    version: &str,
    endpoint: &str,
    resource: &str,
) -> Result<(), Status> {
    let socket: PathBuf = directory.join("kubelet.sock");
    let mut client = RegistrationClient::new(grpc::channel(socket));
    let request = RegisterRequest {
        version: version.to_owned(),
        endpoint: endpoint.to_owned(),
        resource_name: resource.to_owned(),
        options: None,
    };
    client.register(request).await.map(drop)
}

struct PluginService(Arc<DevicePlugin>);

#[tonic::async_trait]
impl Service for PluginService {
    async fn get_device_plugin_options(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<DevicePluginOptions>, Status> {
        self.0.called("GetDevicePluginOptions", &[]).await?;
        Ok(Response::new(self.0.options))
    }

    type ListAndWatchStream = BoxStream<'static, Result<ListAndWatchResponse, Status>>;

    async fn list_and_watch(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<Self::ListAndWatchStream>, Status> {
        self.0.called("ListAndWatch", &[]).await?;
        let mut devices = self.0.devices.subscribe();
        devices.mark_changed();
        let lists = futures_util::stream::unfold(devices, |mut devices| async {
            devices.changed().await.ok()?;
            let list = devices.borrow_and_update().clone();
            Some((Ok(ListAndWatchResponse { devices: list }), devices))
        });
        Ok(Response::new(Box::pin(lists)))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        for request in request.into_inner().container_requests {
            self.0.called("GetPreferredAllocation", &request.available_device_i_ds).await?;
        }
        let device_i_ds = self.0.preferred.clone();
        let container_responses = vec![ContainerPreferredAllocationResponse { device_i_ds }];
        Ok(Response::new(PreferredAllocationResponse { container_responses }))
    }

    async fn allocate(
        &self,
        request: Request<AllocateRequest>,
    ) -> Result<Response<AllocateResponse>, Status> {
        let mut container_responses = Vec::new();
        for request in request.into_inner().container_requests {
            self.0.called("Allocate", &request.devices_ids).await?;
            let mut answer = self.0.answer.clone();
            answer.envs.insert("DEVICES".to_owned(), request.devices_ids.join(","));
            container_responses.push(answer);
        }
        Ok(Response::new(AllocateResponse { container_responses }))
    }

    async fn pre_start_container(
        &self,
        request: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        self.0.called("PreStartContainer", &request.into_inner().devices_ids).await?;
        Ok(Response::new(PreStartContainerResponse {}))
    }
}
