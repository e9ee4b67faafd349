//! The client of a DRA driver.

use std::{collections::HashMap, path::PathBuf, time::Duration};

use csi::{Error, within};
use http::uri::PathAndQuery;
use tonic::{Request, Response, Status, Streaming, client::Grpc, transport::Channel};
use tonic_prost::ProstCodec;

use crate::{
    dra::{
        Claim, NodePrepareResourceResponse, NodePrepareResourcesRequest,
        NodePrepareResourcesResponse, NodeUnprepareResourceResponse, NodeUnprepareResourcesRequest,
        NodeUnprepareResourcesResponse,
    },
    drahealth::{
        DeviceHealth, NodeWatchResourcesRequest, NodeWatchResourcesResponse,
        dra_resource_health_client::DraResourceHealthClient,
    },
};

/// The timeout of a call, as in upstream's kubelet.
pub const DRIVER_TIMEOUT: Duration = Duration::from_secs(45);

/// The services of a DRA driver. Both have the same messages on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriverVersion {
    /// `v1.DRAPlugin`.
    V1,
    /// `v1beta1.DRAPlugin`.
    V1Beta1,
}

/// The names of the supported services in a driver's registration.
pub const DRIVER_SERVICES: [&str; 2] = ["v1.DRAPlugin", "v1beta1.DRAPlugin"];

impl DriverVersion {
    /// Returns the first supported service in a driver's list. The driver chooses the order.
    pub fn choose(listed: &[String]) -> Option<Self> {
        listed.iter().find_map(|service| match service.as_str() {
            "v1.DRAPlugin" => Some(Self::V1),
            "v1beta1.DRAPlugin" => Some(Self::V1Beta1),
            _ => None,
        })
    }

    fn prepare(self) -> &'static str {
        match self {
            Self::V1 => "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources",
            Self::V1Beta1 => "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodePrepareResources",
        }
    }

    fn unprepare(self) -> &'static str {
        match self {
            Self::V1 => "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources",
            Self::V1Beta1 => {
                "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodeUnprepareResources"
            }
        }
    }
}

/// The client of a driver for dynamic resource allocation (DRA), cheap to clone.
#[derive(Clone)]
pub struct Driver {
    channel: Channel,
    version: DriverVersion,
    timeout: Duration,
}

impl Driver {
    /// Creates a client that connects at the first call. Must be called within a Tokio runtime.
    pub fn new(socket: PathBuf, version: DriverVersion) -> Self {
        Self { channel: grpc::channel(socket), version, timeout: DRIVER_TIMEOUT }
    }

    /// Returns the client with another timeout per call than [`DRIVER_TIMEOUT`].
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Returns the path of the method that [`Self::prepare`] calls.
    pub fn prepare_method(&self) -> &'static str {
        self.version.prepare()
    }

    /// Returns the path of the method that [`Self::unprepare`] calls.
    pub fn unprepare_method(&self) -> &'static str {
        self.version.unprepare()
    }

    /// Prepares the claims' devices. Returns the driver's result for each claim, by the claim's UID.
    pub async fn prepare(
        &self,
        claims: Vec<Claim>,
    ) -> Result<HashMap<String, NodePrepareResourceResponse>, Error> {
        let request = NodePrepareResourcesRequest { claims };
        let response: NodePrepareResourcesResponse =
            within(self.timeout, self.call(self.version.prepare(), request)).await?;
        Ok(response.claims)
    }

    /// Reverts [`Self::prepare`]. Idempotent.
    pub async fn unprepare(
        &self,
        claims: Vec<Claim>,
    ) -> Result<HashMap<String, NodeUnprepareResourceResponse>, Error> {
        let request = NodeUnprepareResourcesRequest { claims };
        let response: NodeUnprepareResourcesResponse =
            within(self.timeout, self.call(self.version.unprepare(), request)).await?;
        Ok(response.claims)
    }

    /// Starts to watch the health of the driver's devices. There is no timeout, because a driver may have nothing to
    /// report.
    pub async fn health(&self) -> Result<DeviceHealths, Error> {
        let mut client = DraResourceHealthClient::new(self.channel.clone());
        let response = client.node_watch_resources(NodeWatchResourcesRequest {}).await;
        response
            .map(|response| DeviceHealths { stream: response.into_inner() })
            .map_err(|s| Error::of(&s))
    }

    async fn call<Q, A>(&self, path: &'static str, request: Q) -> Result<Response<A>, Status>
    where
        Q: prost::Message + Default + 'static,
        A: prost::Message + Default + 'static,
    {
        let mut grpc = Grpc::new(self.channel.clone());
        let ready = grpc.ready().await;
        ready.map_err(|error| Status::unavailable(error.to_string()))?;
        let path = PathAndQuery::from_static(path);
        grpc.unary(Request::new(request), path, ProstCodec::<Q, A>::default()).await
    }
}

/// The stream of the health of a driver's devices.
pub struct DeviceHealths {
    stream: Streaming<NodeWatchResourcesResponse>,
}

impl DeviceHealths {
    /// Returns all reported devices whenever one changes; `None` when the stream has ended.
    pub async fn next(&mut self) -> Result<Option<Vec<DeviceHealth>>, Error> {
        let message = self.stream.message().await.map_err(|status| Error::of(&status))?;
        Ok(message.map(|message| message.devices))
    }
}
