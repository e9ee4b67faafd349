//! A fake CSI driver: the node service and its registration, over unix sockets. Volumes are directories, and publishing
//! one bind-mounts its directory. The driver records its calls, and each method can be made to fail.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use csi::{
    registration::{
        InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
        registration_server::{Registration, RegistrationServer},
    },
    v1::{
        self, NodeServiceCapability,
        node_server::{Node, NodeServer},
        node_service_capability::{Rpc, Type, rpc},
        volume_capability::AccessType,
    },
};
use parking_lot::{Mutex, MutexGuard};
use sys::mount::Mounts;
use tonic::{Request, Response, Status};

use crate::fault::{Fault, Faults};

/// A fake driver that answers while its [`rt::Tasks`] run.
pub struct CsiDriver {
    /// The driver's name.
    pub name: String,
    /// The capabilities of the node service.
    pub capabilities: Vec<rpc::Type>,
    /// The response to `NodeGetInfo`.
    pub info: v1::NodeGetInfoResponse,
    /// The response of its registrar to `GetInfo`.
    pub plugin: PluginInfo,
    /// The usage that it reports for every volume.
    pub usage: Vec<v1::VolumeUsage>,
    /// The kubelet's directory as the kubelet names it, and its path for the driver.
    pub kubelet: Option<(PathBuf, PathBuf)>,
    directory: PathBuf,
    mounts: Arc<dyn Mounts>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    calls: Vec<String>,
    faults: Faults,
    publishes: Vec<v1::NodePublishVolumeRequest>,
    stages: Vec<v1::NodeStageVolumeRequest>,
    registered: Vec<Result<(), String>>,
}

impl CsiDriver {
    /// Creates a driver with staging and expansion. Its volumes and its socket are in a directory.
    pub fn new(name: &str, directory: &Path, mounts: Arc<dyn Mounts>) -> Self {
        let endpoint = directory.join("csi.sock").display().to_string();
        Self {
            name: name.to_owned(),
            capabilities: vec![rpc::Type::StageUnstageVolume, rpc::Type::ExpandVolume],
            info: v1::NodeGetInfoResponse { node_id: "node".to_owned(), ..Default::default() },
            plugin: PluginInfo {
                r#type: "CSIPlugin".to_owned(),
                name: name.to_owned(),
                endpoint,
                supported_versions: vec!["1.0.0".to_owned()],
            },
            usage: Vec::new(),
            kubelet: None,
            directory: directory.to_owned(),
            mounts,
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Returns the path of the driver's socket.
    pub fn socket(&self) -> PathBuf {
        self.directory.join("csi.sock")
    }

    /// Returns the calls so far: the method and the volume.
    pub fn calls(&self) -> Vec<String> {
        self.state().calls.clone()
    }

    /// Clears the recorded calls.
    pub fn forget_calls(&self) {
        self.state().calls.clear();
    }

    /// Makes a method fail from now on, or work again.
    pub fn set_fault(&self, method: &str, fault: Option<Fault>) {
        self.state().faults.set(method, fault);
    }

    /// Returns all publish requests.
    pub fn publishes(&self) -> Vec<v1::NodePublishVolumeRequest> {
        self.state().publishes.clone()
    }

    /// Returns all stage requests.
    pub fn stages(&self) -> Vec<v1::NodeStageVolumeRequest> {
        self.state().stages.clone()
    }

    /// Returns the results of its registrations with the kubelet.
    pub fn registered(&self) -> Vec<Result<(), String>> {
        self.state().registered.clone()
    }

    /// Returns the directory of a volume's contents.
    pub fn volume(&self, id: &str) -> PathBuf {
        self.directory.join("volumes").join(id)
    }

    /// Returns the path at which the driver reaches a path of the kubelet.
    fn reach(&self, path: &str) -> PathBuf {
        let below = self.kubelet.as_ref().and_then(|(named, reached)| {
            Some(reached.join(Path::new(path).strip_prefix(named).ok()?))
        });
        below.unwrap_or_else(|| path.into())
    }

    /// Serves at its socket. Must be called within a Tokio runtime.
    pub fn serve(self: &Arc<Self>, tasks: &rt::Tasks) -> std::io::Result<()> {
        let service = NodeServer::new(CsiService(self.clone()));
        grpc::serve("csi driver", &self.socket(), service, tasks)
    }

    /// Registers the driver through a socket in the kubelet's `plugins_registry`.
    pub fn announce(self: &Arc<Self>, socket: &Path, tasks: &rt::Tasks) -> std::io::Result<()> {
        let service = RegistrationServer::new(CsiService(self.clone()));
        grpc::serve("csi registrar", socket, service, tasks)
    }

    async fn called(&self, method: &str, volume: &str) -> Result<(), Status> {
        let fault = {
            let mut state = self.state();
            state.calls.push(format!("{method} {volume}").trim_end().to_owned());
            state.faults.of(method)
        };
        Fault::happen(fault).await
    }
}

/// The gRPC services of one driver.
struct CsiService(Arc<CsiDriver>);

fn io(error: std::io::Error) -> Status {
    Status::internal(error.to_string())
}

#[tonic::async_trait]
impl Registration for CsiService {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        self.0.called("GetInfo", "").await?;
        Ok(Response::new(self.0.plugin.clone()))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let RegistrationStatus { plugin_registered, error } = request.into_inner();
        self.0.state().registered.push(if plugin_registered { Ok(()) } else { Err(error) });
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

#[tonic::async_trait]
impl Node for CsiService {
    async fn node_stage_volume(
        &self,
        request: Request<v1::NodeStageVolumeRequest>,
    ) -> Result<Response<v1::NodeStageVolumeResponse>, Status> {
        let request = request.into_inner();
        self.0.state().stages.push(request.clone());
        self.0.called("NodeStageVolume", &request.volume_id).await?;
        Ok(Response::new(v1::NodeStageVolumeResponse {}))
    }

    async fn node_unstage_volume(
        &self,
        request: Request<v1::NodeUnstageVolumeRequest>,
    ) -> Result<Response<v1::NodeUnstageVolumeResponse>, Status> {
        self.0.called("NodeUnstageVolume", &request.into_inner().volume_id).await?;
        Ok(Response::new(v1::NodeUnstageVolumeResponse {}))
    }

    async fn node_publish_volume(
        &self,
        request: Request<v1::NodePublishVolumeRequest>,
    ) -> Result<Response<v1::NodePublishVolumeResponse>, Status> {
        let request = request.into_inner();
        self.0.state().publishes.push(request.clone());
        self.0.called("NodePublishVolume", &request.volume_id).await?;
        let volume = self.0.volume(&request.volume_id);
        let target = &self.0.reach(&request.target_path);
        let access = request.volume_capability.and_then(|capability| capability.access_type);
        if matches!(access, Some(AccessType::Block(_))) {
            std::fs::write(target, "").map_err(io)?;
            return Ok(Response::new(v1::NodePublishVolumeResponse {}));
        }
        std::fs::create_dir_all(&volume).map_err(io)?;
        std::fs::create_dir_all(target).map_err(io)?;
        let failed = |error: sys::Error| Status::internal(error.to_string());
        if !self.0.mounts.is_mount_point(target).map_err(failed)? {
            self.0.mounts.bind(&volume, target).map_err(failed)?;
        }
        Ok(Response::new(v1::NodePublishVolumeResponse {}))
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<v1::NodeUnpublishVolumeRequest>,
    ) -> Result<Response<v1::NodeUnpublishVolumeResponse>, Status> {
        let request = request.into_inner();
        self.0.called("NodeUnpublishVolume", &request.volume_id).await?;
        let target = self.0.reach(&request.target_path);
        self.0.mounts.unmount(&target).map_err(|error| Status::internal(error.to_string()))?;
        Ok(Response::new(v1::NodeUnpublishVolumeResponse {}))
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<v1::NodeGetVolumeStatsRequest>,
    ) -> Result<Response<v1::NodeGetVolumeStatsResponse>, Status> {
        let request = request.into_inner();
        self.0.called("NodeGetVolumeStats", &request.volume_id).await?;
        if !self.0.reach(&request.volume_path).exists() {
            return Err(Status::not_found("nothing is published there"));
        }
        Ok(Response::new(v1::NodeGetVolumeStatsResponse { usage: self.0.usage.clone() }))
    }

    async fn node_expand_volume(
        &self,
        request: Request<v1::NodeExpandVolumeRequest>,
    ) -> Result<Response<v1::NodeExpandVolumeResponse>, Status> {
        let request = request.into_inner();
        self.0.called("NodeExpandVolume", &request.volume_id).await?;
        let capacity_bytes = request.capacity_range.map_or(0, |range| range.required_bytes);
        Ok(Response::new(v1::NodeExpandVolumeResponse { capacity_bytes }))
    }

    async fn node_get_capabilities(
        &self,
        _: Request<v1::NodeGetCapabilitiesRequest>,
    ) -> Result<Response<v1::NodeGetCapabilitiesResponse>, Status> {
        self.0.called("NodeGetCapabilities", "").await?;
        let capability = |kind: &rpc::Type| NodeServiceCapability {
            r#type: Some(Type::Rpc(Rpc { r#type: (*kind).into() })),
        };
        let capabilities = self.0.capabilities.iter().map(capability).collect();
        Ok(Response::new(v1::NodeGetCapabilitiesResponse { capabilities }))
    }

    async fn node_get_info(
        &self,
        _: Request<v1::NodeGetInfoRequest>,
    ) -> Result<Response<v1::NodeGetInfoResponse>, Status> {
        self.0.called("NodeGetInfo", "").await?;
        Ok(Response::new(self.0.info.clone()))
    }
}
