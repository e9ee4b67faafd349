//! A storage driver for tests: CSI's node service and its registration, over unix sockets. Volumes are directories, and
//! publishing one binds its directory; what was asked is kept, and any call can be made to fail in a way of its own.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
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
use sys::mount::Mounts;
use tonic::{Request, Response, Status};

/// How a call goes wrong.
#[derive(Clone, Debug)]
pub enum Fault {
    /// It is never answered.
    Hang,
    /// It is refused with this status.
    Refuse(tonic::Code, String),
    /// The refusal is longer than any message may be.
    Huge,
}

impl Fault {
    /// What a call comes to that goes wrong so, if it does.
    pub(crate) async fn happen(fault: Option<Self>) -> Result<(), Status> {
        match fault {
            None => Ok(()),
            Some(Self::Hang) => std::future::pending().await,
            Some(Self::Refuse(code, message)) => Err(Status::new(code, message)),
            Some(Self::Huge) => Err(Status::internal("x".repeat(5 << 20))),
        }
    }
}

/// A driver that answers while its [`rt::Tasks`] run.
pub struct CsiDriver {
    /// The driver's name.
    pub name: String,
    /// What it can do.
    pub capabilities: Vec<rpc::Type>,
    /// What it says of its node.
    pub info: v1::NodeGetInfoResponse,
    /// What its registrar says of it.
    pub plugin: PluginInfo,
    /// What it says of how full a volume is, whichever.
    pub usage: Vec<v1::VolumeUsage>,
    directory: PathBuf,
    mounts: Arc<dyn Mounts>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    calls: Vec<String>,
    faults: BTreeMap<String, Fault>,
    publishes: Vec<v1::NodePublishVolumeRequest>,
    stages: Vec<v1::NodeStageVolumeRequest>,
    registered: Vec<Result<(), String>>,
}

impl CsiDriver {
    /// A driver that stages, expands, and has its volumes and its socket in a directory.
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
            directory: directory.to_owned(),
            mounts,
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the driver answers.
    pub fn socket(&self) -> PathBuf {
        self.directory.join("csi.sock")
    }

    /// The calls so far: the method and the volume.
    pub fn calls(&self) -> Vec<String> {
        self.state().calls.clone()
    }

    /// Forgets the calls so far.
    pub fn forget_calls(&self) {
        self.state().calls.clear();
    }

    /// From now on a method fails so, or no more.
    pub fn set_fault(&self, method: &str, fault: Option<Fault>) {
        let faults = &mut self.state().faults;
        match fault {
            Some(fault) => drop(faults.insert(method.to_owned(), fault)),
            None => drop(faults.remove(method)),
        }
    }

    /// All that it was asked to publish.
    pub fn publishes(&self) -> Vec<v1::NodePublishVolumeRequest> {
        self.state().publishes.clone()
    }

    /// All that it was asked to stage.
    pub fn stages(&self) -> Vec<v1::NodeStageVolumeRequest> {
        self.state().stages.clone()
    }

    /// What the kubelet said of its registration.
    pub fn registered(&self) -> Vec<Result<(), String>> {
        self.state().registered.clone()
    }

    /// Where what is on a volume lies.
    pub fn volume(&self, id: &str) -> PathBuf {
        self.directory.join("volumes").join(id)
    }

    /// Answers at its socket. Must be called within a Tokio runtime.
    pub fn serve(self: &Arc<Self>, tasks: &rt::Tasks) -> std::io::Result<()> {
        let service = NodeServer::new(Served(self.clone()));
        deviceplugin::serve("csi driver", &self.socket(), service, tasks)
    }

    /// Announces the driver by a socket in the kubelet's `plugins_registry`.
    pub fn announce(self: &Arc<Self>, socket: &Path, tasks: &rt::Tasks) -> std::io::Result<()> {
        let service = RegistrationServer::new(Served(self.clone()));
        deviceplugin::serve("csi registrar", socket, service, tasks)
    }

    async fn called(&self, method: &str, volume: &str) -> Result<(), Status> {
        let fault = {
            let mut state = self.state();
            state.calls.push(format!("{method} {volume}").trim_end().to_owned());
            state.faults.get(method).cloned()
        };
        Fault::happen(fault).await
    }
}

/// The services of one driver.
struct Served(Arc<CsiDriver>);

fn io(error: std::io::Error) -> Status {
    Status::internal(error.to_string())
}

#[tonic::async_trait]
impl Registration for Served {
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
impl Node for Served {
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
        let (volume, target) = (self.0.volume(&request.volume_id), Path::new(&request.target_path));
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
        let target = Path::new(&request.target_path);
        self.0.mounts.unmount(target).map_err(|error| Status::internal(error.to_string()))?;
        Ok(Response::new(v1::NodeUnpublishVolumeResponse {}))
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<v1::NodeGetVolumeStatsRequest>,
    ) -> Result<Response<v1::NodeGetVolumeStatsResponse>, Status> {
        let request = request.into_inner();
        self.0.called("NodeGetVolumeStats", &request.volume_id).await?;
        if !Path::new(&request.volume_path).exists() {
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
