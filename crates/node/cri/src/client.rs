//! The client and its connection.

use std::{future::Future, path::PathBuf, time::Duration};

use otlp::Traced;
use tonic::{Request, Response, Status, Streaming, transport::Channel};

use crate::{
    error::Error,
    v1::{
        self, image_service_client::ImageServiceClient,
        runtime_service_client::RuntimeServiceClient,
    },
};

/// The largest message: the response to `ExecSync` has the whole output, which the runtime limits to 16 MiB.
const MAX_MESSAGE: usize = 16 << 20;

/// The stream of container lifecycle events.
pub type Events = Streaming<v1::ContainerEventResponse>;

/// A connection to a container runtime, cheap to clone.
#[derive(Clone)]
pub struct Client {
    runtime: RuntimeServiceClient<Traced<Channel>>,
    images: ImageServiceClient<Traced<Channel>>,
    socket: PathBuf,
    timeout: Duration,
}

impl Client {
    /// Creates a client that connects at the first call. `endpoint` is the path of a socket, with or without `unix://`.
    /// Must be called within a Tokio runtime.
    pub fn new(endpoint: &str, timeout: Duration) -> Self {
        let socket = socket(endpoint);
        let channel = channel(socket.clone());
        Self {
            runtime: RuntimeServiceClient::new(channel.clone())
                .max_decoding_message_size(MAX_MESSAGE),
            images: ImageServiceClient::new(channel).max_decoding_message_size(MAX_MESSAGE),
            socket,
            timeout,
        }
    }

    /// Sends the calls about images to another endpoint. Must be called within a Tokio runtime.
    pub fn with_image_service(self, endpoint: &str) -> Self {
        let images = ImageServiceClient::new(channel(socket(endpoint)));
        Self { images: images.max_decoding_message_size(MAX_MESSAGE), ..self }
    }

    async fn within<T>(
        &self,
        timeout: Duration,
        operation: &'static str,
        subject: &str,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, Error> {
        match tokio::time::timeout(timeout, call).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => Err(Error::Refused {
                operation,
                subject: subject.to_owned(),
                code: status.code(),
                message: status.message().to_owned(),
            }),
            Err(_) => Err(Error::NoAnswer {
                operation,
                subject: subject.to_owned(),
                socket: self.socket.display().to_string(),
                waited: timeout,
            }),
        }
    }

    async fn call<T>(
        &self,
        operation: &'static str,
        subject: &str,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, Error> {
        self.within(self.timeout, operation, subject, call).await
    }

    /// Returns the name and version of the runtime, and the version of CRI that it supports.
    pub async fn version(&self) -> Result<v1::VersionResponse, Error> {
        let mut rt = self.runtime.clone();
        self.call("Version", "", rt.version(v1::VersionRequest { version: "0.1.0".into() })).await
    }

    /// Returns the runtime's conditions (`RuntimeReady`, `NetworkReady`). `verbose` adds the runtime's own details.
    pub async fn status(&self, verbose: bool) -> Result<v1::StatusResponse, Error> {
        let mut rt = self.runtime.clone();
        self.call("Status", "", rt.status(v1::StatusRequest { verbose })).await
    }

    /// Returns the runtime's cgroup driver. Runtimes before containerd 2.0 do not implement this call.
    pub async fn cgroup_driver(&self) -> Result<v1::CgroupDriver, Error> {
        let mut rt = self.runtime.clone();
        let response =
            self.call("RuntimeConfig", "", rt.runtime_config(v1::RuntimeConfigRequest {})).await?;
        Ok(response.linux.unwrap_or_default().cgroup_driver())
    }

    /// Sends the node's Pod range to the runtime, which may write its own CNI configuration from it.
    pub async fn set_pod_cidr(&self, cidr: &str) -> Result<(), Error> {
        let mut rt = self.runtime.clone();
        let network_config = Some(v1::NetworkConfig { pod_cidr: cidr.to_owned() });
        let request = v1::UpdateRuntimeConfigRequest {
            runtime_config: Some(v1::RuntimeNetworkConfig { network_config }),
        };
        self.call("UpdateRuntimeConfig", cidr, rt.update_runtime_config(request)).await.map(drop)
    }

    /// Creates and starts a sandbox with its network, and returns its ID. The CNI plugin may take long.
    pub async fn run_pod_sandbox(
        &self,
        config: v1::PodSandboxConfig,
        handler: &str,
    ) -> Result<String, Error> {
        let mut rt = self.runtime.clone();
        let subject = config
            .metadata
            .as_ref()
            .map(|m| format!("{}/{}", m.namespace, m.name))
            .unwrap_or_default();
        let request =
            v1::RunPodSandboxRequest { config: Some(config), runtime_handler: handler.to_owned() };
        // Twice the ordinary timeout, as in upstream's kubelet, because networks are slow to set up.
        let response = self
            .within(self.timeout * 2, "RunPodSandbox", &subject, rt.run_pod_sandbox(request))
            .await?;
        Ok(response.pod_sandbox_id)
    }

    /// Stops all processes of the sandbox and releases its addresses. Idempotent.
    pub async fn stop_pod_sandbox(&self, id: &str) -> Result<(), Error> {
        let mut rt = self.runtime.clone();
        let request = v1::StopPodSandboxRequest { pod_sandbox_id: id.to_owned() };
        self.call("StopPodSandbox", id, rt.stop_pod_sandbox(request)).await.map(drop)
    }

    /// Removes a sandbox with all of its containers. Succeeds if the sandbox does not exist.
    pub async fn remove_pod_sandbox(&self, id: &str) -> Result<(), Error> {
        let mut rt = self.runtime.clone();
        let request = v1::RemovePodSandboxRequest { pod_sandbox_id: id.to_owned() };
        self.call("RemovePodSandbox", id, rt.remove_pod_sandbox(request)).await.map(drop)
    }

    /// Returns the status of a sandbox, with its addresses. See [`Error::is_not_found`] for a missing sandbox.
    pub async fn pod_sandbox_status(
        &self,
        id: &str,
        verbose: bool,
    ) -> Result<v1::PodSandboxStatusResponse, Error> {
        let mut rt = self.runtime.clone();
        let request = v1::PodSandboxStatusRequest { pod_sandbox_id: id.to_owned(), verbose };
        self.call("PodSandboxStatus", id, rt.pod_sandbox_status(request)).await
    }

    /// Lists the sandboxes that match the filter, unordered.
    pub async fn list_pod_sandboxes(
        &self,
        filter: Option<v1::PodSandboxFilter>,
    ) -> Result<Vec<v1::PodSandbox>, Error> {
        let mut rt = self.runtime.clone();
        let request = v1::ListPodSandboxRequest { filter };
        Ok(self.call("ListPodSandbox", "", rt.list_pod_sandbox(request)).await?.items)
    }

    /// Creates a container from a pulled image and returns its ID. Does not start it.
    pub async fn create_container(
        &self,
        sandbox: &str,
        config: v1::ContainerConfig,
        sandbox_config: v1::PodSandboxConfig,
    ) -> Result<String, Error> {
        let mut rt = self.runtime.clone();
        let subject = config.metadata.as_ref().map(|m| m.name.clone()).unwrap_or_default();
        let request = v1::CreateContainerRequest {
            pod_sandbox_id: sandbox.to_owned(),
            config: Some(config),
            sandbox_config: Some(sandbox_config),
        };
        Ok(self.call("CreateContainer", &subject, rt.create_container(request)).await?.container_id)
    }

    /// Starts a container that has been created.
    pub async fn start_container(&self, id: &str) -> Result<(), Error> {
        let mut rt = self.runtime.clone();
        let request = v1::StartContainerRequest { container_id: id.to_owned() };
        self.call("StartContainer", id, rt.start_container(request)).await.map(drop)
    }

    /// Stops a container, and kills it after `grace`. The runtime counts in seconds, so `grace` is rounded up.
    pub async fn stop_container(&self, id: &str, grace: Duration) -> Result<(), Error> {
        let mut rt = self.runtime.clone();
        let request =
            v1::StopContainerRequest { container_id: id.to_owned(), timeout: whole_seconds(grace) };
        let call = rt.stop_container(request);
        self.within(self.timeout.saturating_add(grace), "StopContainer", id, call).await.map(drop)
    }

    /// Removes a container, and kills it before if it runs. Succeeds if the container does not exist.
    pub async fn remove_container(&self, id: &str) -> Result<(), Error> {
        let mut rt = self.runtime.clone();
        let request = v1::RemoveContainerRequest { container_id: id.to_owned() };
        self.call("RemoveContainer", id, rt.remove_container(request)).await.map(drop)
    }

    /// Lists the containers that match the filter, unordered and without their exit codes.
    pub async fn list_containers(
        &self,
        filter: Option<v1::ContainerFilter>,
    ) -> Result<Vec<v1::Container>, Error> {
        let mut rt = self.runtime.clone();
        let request = v1::ListContainersRequest { filter };
        Ok(self.call("ListContainers", "", rt.list_containers(request)).await?.containers)
    }

    /// Returns the status of a container, with its times and exit code. See [`Error::is_not_found`] for a missing
    /// container.
    pub async fn container_status(&self, id: &str) -> Result<v1::ContainerStatus, Error> {
        let mut rt = self.runtime.clone();
        let request = v1::ContainerStatusRequest { container_id: id.to_owned(), verbose: false };
        let response = self.call("ContainerStatus", id, rt.container_status(request)).await?;
        response.status.ok_or_else(|| Error::Incomplete {
            operation: "ContainerStatus",
            subject: id.to_owned(),
            field: "status",
        })
    }

    /// Changes the cgroup limits of a running container. Fields that are 0 or empty do not change.
    pub async fn update_container_resources(
        &self,
        id: &str,
        linux: v1::LinuxContainerResources,
    ) -> Result<(), Error> {
        let mut rt = self.runtime.clone();
        let request =
            v1::UpdateContainerResourcesRequest { container_id: id.to_owned(), linux: Some(linux) };
        self.call("UpdateContainerResources", id, rt.update_container_resources(request))
            .await
            .map(drop)
    }

    /// Makes the runtime reopen the container's log file, after the file was renamed.
    pub async fn reopen_container_log(&self, id: &str) -> Result<(), Error> {
        let mut rt = self.runtime.clone();
        let request = v1::ReopenContainerLogRequest { container_id: id.to_owned() };
        self.call("ReopenContainerLog", id, rt.reopen_container_log(request)).await.map(drop)
    }

    /// Writes the state of a running container to an archive. `seconds` limits the time; zero stands for the runtime's
    /// own limit. Runtimes before containerd 2.0 do not implement this call; see [`Error::is_unimplemented`].
    pub async fn checkpoint_container(
        &self,
        id: &str,
        location: &str,
        seconds: i64,
    ) -> Result<(), Error> {
        let mut rt = self.runtime.clone();
        let request = v1::CheckpointContainerRequest {
            container_id: id.to_owned(),
            location: location.to_owned(),
            timeout: seconds,
        };
        let own = Duration::from_secs(seconds.max(0).unsigned_abs());
        let call = rt.checkpoint_container(request);
        self.within(self.timeout.max(own), "CheckpointContainer", id, call).await.map(drop)
    }

    /// Returns the CPU, memory and disk usage of all containers.
    pub async fn list_container_stats(&self) -> Result<Vec<v1::ContainerStats>, Error> {
        let mut rt = self.runtime.clone();
        let request = v1::ListContainerStatsRequest { filter: None };
        Ok(self.call("ListContainerStats", "", rt.list_container_stats(request)).await?.stats)
    }

    /// Returns the stream of container events. Runtimes before containerd 1.7 do not implement this call.
    pub async fn container_events(&self) -> Result<Events, Error> {
        let mut rt = self.runtime.clone();
        self.call("GetContainerEvents", "", rt.get_container_events(v1::GetEventsRequest {})).await
    }

    /// Runs a command in a container for at most `timeout`, and returns its output and exit code.
    pub async fn exec_sync(
        &self,
        id: &str,
        cmd: Vec<String>,
        timeout: Duration,
    ) -> Result<v1::ExecSyncResponse, Error> {
        let mut rt = self.runtime.clone();
        let seconds = i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX);
        let request = v1::ExecSyncRequest { container_id: id.to_owned(), cmd, timeout: seconds };
        let call = rt.exec_sync(Request::new(request));
        self.within(self.timeout.saturating_add(timeout), "ExecSync", id, call).await
    }

    /// Returns a URL at which the runtime serves the streams of a command, once.
    pub async fn exec(&self, request: v1::ExecRequest) -> Result<String, Error> {
        let mut rt = self.runtime.clone();
        let id = request.container_id.clone();
        Ok(self.call("Exec", &id, rt.exec(request)).await?.url)
    }

    /// Returns a URL at which the runtime serves the streams of the running process, once.
    pub async fn attach(&self, request: v1::AttachRequest) -> Result<String, Error> {
        let mut rt = self.runtime.clone();
        let id = request.container_id.clone();
        Ok(self.call("Attach", &id, rt.attach(request)).await?.url)
    }

    /// Returns a URL at which the runtime serves connections to the sandbox's ports, once.
    pub async fn port_forward(&self, sandbox: &str, port: Vec<i32>) -> Result<String, Error> {
        let mut rt = self.runtime.clone();
        let request = v1::PortForwardRequest { pod_sandbox_id: sandbox.to_owned(), port };
        Ok(self.call("PortForward", sandbox, rt.port_forward(request)).await?.url)
    }

    /// Lists all images of the runtime, with their sizes in bytes.
    pub async fn list_images(&self) -> Result<Vec<v1::Image>, Error> {
        let mut images = self.images.clone();
        Ok(self
            .call("ListImages", "", images.list_images(v1::ListImagesRequest { filter: None }))
            .await?
            .images)
    }

    /// Returns an image's metadata; `None` if the runtime does not have the image.
    pub async fn image_status(&self, image: &str) -> Result<Option<v1::Image>, Error> {
        let mut images = self.images.clone();
        let request = v1::ImageStatusRequest { image: Some(image_spec(image)), verbose: false };
        Ok(self.call("ImageStatus", image, images.image_status(request)).await?.image)
    }

    /// Pulls an image and returns its reference. The caller must limit the time if necessary.
    pub async fn pull_image(
        &self,
        image: &str,
        auth: Option<v1::AuthConfig>,
        sandbox_config: v1::PodSandboxConfig,
    ) -> Result<String, Error> {
        let mut images = self.images.clone();
        let request = v1::PullImageRequest {
            image: Some(image_spec(image)),
            auth,
            sandbox_config: Some(sandbox_config),
        };
        // The runtime itself aborts a pull without progress. This timeout only covers a hung runtime.
        let hour = Duration::from_secs(3600);
        Ok(self.within(hour, "PullImage", image, images.pull_image(request)).await?.image_ref)
    }

    /// Removes an image with all of its names. Succeeds if the image does not exist.
    pub async fn remove_image(&self, image: &str) -> Result<(), Error> {
        let mut images = self.images.clone();
        let request = v1::RemoveImageRequest { image: Some(image_spec(image)) };
        self.call("RemoveImage", image, images.remove_image(request)).await.map(drop)
    }

    /// Returns the file systems of images and writable layers, and their usage.
    pub async fn image_fs_info(&self) -> Result<v1::ImageFsInfoResponse, Error> {
        let mut images = self.images.clone();
        self.call("ImageFsInfo", "", images.image_fs_info(v1::ImageFsInfoRequest {})).await
    }
}

/// Returns the path of an endpoint's socket.
fn socket(endpoint: &str) -> PathBuf {
    PathBuf::from(endpoint.strip_prefix("unix://").unwrap_or(endpoint))
}

/// Returns a channel that connects at the first call.
fn channel(path: PathBuf) -> Traced<Channel> {
    Traced::new(grpc::channel(path))
}

fn image_spec(image: &str) -> v1::ImageSpec {
    v1::ImageSpec { image: image.to_owned(), ..Default::default() }
}

fn whole_seconds(time: Duration) -> i64 {
    let begun = u64::from(time.subsec_nanos() > 0);
    i64::try_from(time.as_secs().saturating_add(begun)).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_seconds_up() {
        for (millis, seconds) in [(0, 0), (1, 1), (999, 1), (1000, 1), (3999, 4)] {
            assert_eq!(whole_seconds(Duration::from_millis(millis)), seconds, "{millis} ms");
        }
    }
}
