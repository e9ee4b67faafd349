//! The registration service for device plugins.

use std::{
    fs,
    os::unix::fs::FileTypeExt,
    path::{Component, Path},
    sync::Arc,
};

use deviceplugin::{
    VERSION,
    v1beta1::{
        Empty, RegisterRequest,
        registration_server::{Registration, RegistrationServer},
    },
};
use pod_core::{PodRegistry, paths::DIRECTORY_MODE};
use tonic::{Request, Response, Status};

use super::{Devices, DevicesError};

/// The socket at which plugins register, named as upstream.
const SOCKET: &str = "kubelet.sock";

/// Serves registrations, and wakes Pods whose devices changed health, until shutdown.
pub async fn serve_devices(devices: Arc<Devices>, pods: Arc<dyn PodRegistry>) {
    let mut changes = devices.changes();
    if let Err(error) = serve(&devices) {
        let path = devices.directory.join(SOCKET);
        tracing::error!(path = %path.display(), %error, "serve the registration of device plugins; restart the \
             kubelet to try again");
    }
    while changes.changed().await.is_ok() {
        for uid in devices.take_changed_pods() {
            pods.wake(&uid);
        }
    }
}

/// Serves registrations at a new socket. Removes all sockets in the directory: a plugin watches its own socket, and
/// registers again when it disappears.
pub(super) fn serve(devices: &Arc<Devices>) -> std::io::Result<()> {
    sys::make_directories(&devices.directory, DIRECTORY_MODE)?;
    for entry in fs::read_dir(&devices.directory)?.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_socket()) {
            fs::remove_file(entry.path())?;
        }
    }
    let service = RegistrationServer::new(Registrar(devices.clone()));
    let socket = devices.directory.join(SOCKET);
    grpc::serve("kubelet device registration", &socket, service, &devices.tasks)
}

struct Registrar(Arc<Devices>);

impl Registrar {
    async fn take(&self, request: RegisterRequest) -> Result<(), DevicesError> {
        let RegisterRequest { version, endpoint, resource_name, .. } = request;
        if version != VERSION {
            return Err(DevicesError::Version(version));
        }
        let is_plain = |part: Component<'_>| matches!(part, Component::Normal(_));
        if endpoint.is_empty() || !Path::new(&endpoint).components().all(is_plain) {
            return Err(DevicesError::Endpoint(endpoint));
        }
        self.0.connect(&resource_name, self.0.directory.join(endpoint)).await.map(drop)
    }
}

#[tonic::async_trait]
impl Registration for Registrar {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        let request = request.into_inner();
        let resource = request.resource_name.clone();
        match self.take(request).await {
            Ok(()) => Ok(Response::new(Empty {})),
            Err(error) => {
                tracing::warn!(resource, %error, "register a device plugin");
                Err(Status::unknown(error.to_string()))
            }
        }
    }
}
