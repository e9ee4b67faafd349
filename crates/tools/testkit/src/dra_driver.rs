//! A fake driver of dynamic resource allocation, over unix sockets. The driver records its calls, and each method can
//! be made to fail.

use std::{
    collections::{BTreeSet, HashMap},
    convert::Infallible,
    path::{Path, PathBuf},
    sync::Arc,
};

use csi::registration::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
    registration_server::{Registration, RegistrationServer},
};
pub use deviceplugin::drahealth::HealthStatus;
use deviceplugin::{
    dra::{
        Claim, Device, NodePrepareResourceResponse, NodePrepareResourcesRequest,
        NodePrepareResourcesResponse, NodeUnprepareResourceResponse, NodeUnprepareResourcesRequest,
        NodeUnprepareResourcesResponse,
        dra_plugin_server::{DraPlugin, DraPluginServer},
    },
    drahealth::{
        DeviceHealth, DeviceIdentifier, NodeWatchResourcesRequest, NodeWatchResourcesResponse,
        dra_resource_health_server::{DraResourceHealth, DraResourceHealthServer},
    },
};
use futures_util::{FutureExt as _, future::BoxFuture, stream::BoxStream};
use http::uri::PathAndQuery;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;
use tonic::{Request, Response, Status};

use crate::fault::{Fault, Faults};

/// A fake driver that answers while its [`rt::Tasks`] run. For each claim it prepares a device of the claim's name.
pub struct DraDriver {
    /// The response of its registrar to `GetInfo`.
    pub plugin: PluginInfo,
    /// The CDI vendor and class of its devices; `None` for devices without CDI.
    pub kind: Option<String>,
    healths: watch::Sender<Vec<DeviceHealth>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    calls: Vec<String>,
    faults: Faults,
    /// The response for all claims, if it is overridden.
    answer: Option<HashMap<String, NodePrepareResourceResponse>>,
    ready: BTreeSet<String>,
    registered: Vec<Result<(), String>>,
}

/// Returns the health of a device in the pool `node`.
pub fn health(device: &str, health: HealthStatus, message: &str) -> DeviceHealth {
    let (pool_name, device_name) = ("node".to_owned(), device.to_owned());
    DeviceHealth {
        device: Some(DeviceIdentifier { pool_name, device_name }),
        health: health.into(),
        message: message.to_owned(),
        ..DeviceHealth::default()
    }
}

impl DraDriver {
    /// Creates a driver whose socket is in a directory.
    pub fn new(name: &str, directory: &Path) -> Self {
        let endpoint = directory.join("dra.sock").display().to_string();
        Self {
            plugin: PluginInfo {
                r#type: "DRAPlugin".to_owned(),
                name: name.to_owned(),
                endpoint,
                supported_versions: vec!["v1.DRAPlugin".to_owned()],
            },
            kind: Some(format!("{name}/device")),
            healths: watch::channel(Vec::new()).0,
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Returns the calls so far: the version, the method and the names of the claims.
    pub fn calls(&self) -> Vec<String> {
        self.state().calls.clone()
    }

    /// Returns the UIDs of the prepared claims.
    pub fn ready(&self) -> BTreeSet<String> {
        self.state().ready.clone()
    }

    /// Returns the results of its registrations with the kubelet.
    pub fn registered(&self) -> Vec<Result<(), String>> {
        self.state().registered.clone()
    }

    /// Makes a method fail from now on, or work again.
    pub fn set_fault(&self, method: &str, fault: Option<Fault>) {
        self.state().faults.set(method, fault);
    }

    /// Overrides the response to `NodePrepareResources`: the results by claim UID, whatever the request.
    pub fn set_answer(&self, answer: Option<HashMap<String, NodePrepareResourceResponse>>) {
        self.state().answer = answer;
    }

    /// Replaces the health of its devices.
    pub fn set_healths(&self, healths: Vec<DeviceHealth>) {
        self.healths.send_replace(healths);
    }

    /// Serves at its socket. Must be called within a Tokio runtime.
    pub fn serve(self: &Arc<Self>, tasks: &rt::Tasks) -> std::io::Result<()> {
        let socket = PathBuf::from(&self.plugin.endpoint);
        let service = SocketServices {
            claims: DraPluginServer::new(DraService { driver: self.clone(), version: "v1" }),
            claims_beta: DraPluginServer::new(DraService {
                driver: self.clone(),
                version: "v1beta1",
            }),
            health: DraResourceHealthServer::new(DraService { driver: self.clone(), version: "" }),
        };
        grpc::serve("dra driver", &socket, service, tasks)
    }

    /// Registers the driver through a socket in the kubelet's `plugins_registry`.
    pub fn announce(self: &Arc<Self>, socket: &Path, tasks: &rt::Tasks) -> std::io::Result<()> {
        let service = RegistrationServer::new(DraService { driver: self.clone(), version: "" });
        grpc::serve("dra registrar", socket, service, tasks)
    }

    async fn called(&self, method: &str, version: &str, claims: &[Claim]) -> Result<(), Status> {
        let fault = {
            let mut state = self.state();
            let mut names: Vec<&str> = claims.iter().map(|claim| claim.name.as_str()).collect();
            names.sort_unstable();
            let call = format!("{version} {method} {}", names.join(","));
            state.calls.push(call.trim().to_owned());
            state.faults.of(method)
        };
        Fault::happen(fault).await
    }
}

/// The services at the driver's socket, selected by the path. Both versions have the same messages.
#[derive(Clone)]
struct SocketServices {
    claims: DraPluginServer<DraService>,
    claims_beta: DraPluginServer<DraService>,
    health: DraResourceHealthServer<DraService>,
}

impl<B> tower::Service<http::Request<B>> for SocketServices
where
    DraPluginServer<DraService>: tower::Service<
            http::Request<B>,
            Response = http::Response<tonic::body::Body>,
            Error = Infallible,
            Future = BoxFuture<'static, Result<http::Response<tonic::body::Body>, Infallible>>,
        >,
    DraResourceHealthServer<DraService>: tower::Service<
            http::Request<B>,
            Response = http::Response<tonic::body::Body>,
            Error = Infallible,
            Future = BoxFuture<'static, Result<http::Response<tonic::body::Body>, Infallible>>,
        >,
{
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(
        &mut self,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), Infallible>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: http::Request<B>) -> Self::Future {
        let path = request.uri().path().to_owned();
        if path.starts_with("/v1alpha1.") {
            return self.health.call(request);
        }
        if !path.contains(".v1beta1.") {
            return self.claims.call(request);
        }
        let path = path.replace(".v1beta1.", ".v1.");
        if let Ok(path) = path.parse::<PathAndQuery>() {
            let mut parts = request.uri().clone().into_parts();
            parts.path_and_query = Some(path);
            if let Ok(uri) = http::Uri::from_parts(parts) {
                *request.uri_mut() = uri;
            }
        }
        self.claims_beta.call(request).boxed()
    }
}

#[derive(Clone)]
struct DraService {
    driver: Arc<DraDriver>,
    version: &'static str,
}

#[tonic::async_trait]
impl DraPlugin for DraService {
    async fn node_prepare_resources(
        &self,
        request: Request<NodePrepareResourcesRequest>,
    ) -> Result<Response<NodePrepareResourcesResponse>, Status> {
        let request = request.into_inner().claims;
        self.driver.called("NodePrepareResources", self.version, &request).await?;
        if let Some(claims) = self.driver.state().answer.clone() {
            return Ok(Response::new(NodePrepareResourcesResponse { claims }));
        }
        let ready = |claim: Claim| {
            let device = Device {
                pool_name: "node".to_owned(),
                cdi_device_ids: {
                    let kind = self.driver.kind.iter();
                    kind.map(|kind| format!("{kind}={}", claim.name)).collect()
                },
                device_name: claim.name,
                ..Device::default()
            };
            let devices = vec![device];
            (claim.uid, NodePrepareResourceResponse { devices, error: String::new() })
        };
        self.driver.state().ready.extend(request.iter().map(|claim| claim.uid.clone()));
        let claims = request.into_iter().map(ready).collect();
        Ok(Response::new(NodePrepareResourcesResponse { claims }))
    }

    async fn node_unprepare_resources(
        &self,
        request: Request<NodeUnprepareResourcesRequest>,
    ) -> Result<Response<NodeUnprepareResourcesResponse>, Status> {
        let request = request.into_inner().claims;
        self.driver.called("NodeUnprepareResources", self.version, &request).await?;
        let ready = &mut self.driver.state().ready;
        let done = |claim: Claim| {
            ready.remove(&claim.uid);
            (claim.uid, NodeUnprepareResourceResponse::default())
        };
        let claims = request.into_iter().map(done).collect();
        Ok(Response::new(NodeUnprepareResourcesResponse { claims }))
    }
}

#[tonic::async_trait]
impl DraResourceHealth for DraService {
    type NodeWatchResourcesStream = BoxStream<'static, Result<NodeWatchResourcesResponse, Status>>;

    async fn node_watch_resources(
        &self,
        _: Request<NodeWatchResourcesRequest>,
    ) -> Result<Response<Self::NodeWatchResourcesStream>, Status> {
        let fault = self.driver.state().faults.of("NodeWatchResources");
        Fault::happen(fault).await?;
        let mut healths = self.driver.healths.subscribe();
        healths.mark_changed();
        let updates = futures_util::stream::unfold(healths, |mut healths| async {
            healths.changed().await.ok()?;
            let devices = healths.borrow_and_update().clone();
            Some((Ok(NodeWatchResourcesResponse { devices }), healths))
        });
        Ok(Response::new(Box::pin(updates)))
    }
}

#[tonic::async_trait]
impl Registration for DraService {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(self.driver.plugin.clone()))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        let result = if status.plugin_registered { Ok(()) } else { Err(status.error) };
        self.driver.state().registered.push(result);
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}
