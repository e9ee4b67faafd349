//! The protocol's calls.

use futures_util::stream::unfold;
use tokio::sync::broadcast::error::RecvError;
use tonic::{Request, Response, Status, codegen::BoxStream};

use super::{MemoryRuntime, not_found};
use crate::v1::{self, image_service_server::ImageService, runtime_service_server::RuntimeService};

type Answer<T> = Result<Response<T>, Status>;

/// Returns the empty response to a call that has succeeded.
fn done<T: Default>() -> Answer<T> {
    Ok(Response::new(T::default()))
}

/// Returns the error for a call that needs a process.
fn no_process<T>() -> Answer<T> {
    Err(Status::unimplemented("a simulated container has no process"))
}

#[tonic::async_trait]
impl RuntimeService for MemoryRuntime {
    type GetContainerEventsStream = BoxStream<v1::ContainerEventResponse>;

    async fn version(&self, _: Request<v1::VersionRequest>) -> Answer<v1::VersionResponse> {
        Ok(Response::new(v1::VersionResponse {
            version: "0.1.0".to_owned(),
            runtime_name: "simulated".to_owned(),
            runtime_version: "1.0.0".to_owned(),
            runtime_api_version: "v1".to_owned(),
        }))
    }

    async fn status(&self, _: Request<v1::StatusRequest>) -> Answer<v1::StatusResponse> {
        let ready = |kind: &str| v1::RuntimeCondition {
            r#type: kind.to_owned(),
            status: true,
            ..Default::default()
        };
        let conditions = ["RuntimeReady", "NetworkReady"].map(ready).into();
        let status = Some(v1::RuntimeStatus { conditions });
        Ok(Response::new(v1::StatusResponse { status, ..Default::default() }))
    }

    async fn runtime_config(
        &self,
        _: Request<v1::RuntimeConfigRequest>,
    ) -> Answer<v1::RuntimeConfigResponse> {
        let cgroup_driver = v1::CgroupDriver::Cgroupfs.into();
        let linux = Some(v1::LinuxRuntimeConfiguration { cgroup_driver });
        Ok(Response::new(v1::RuntimeConfigResponse { linux }))
    }

    async fn update_runtime_config(
        &self,
        _: Request<v1::UpdateRuntimeConfigRequest>,
    ) -> Answer<v1::UpdateRuntimeConfigResponse> {
        done()
    }

    async fn run_pod_sandbox(
        &self,
        request: Request<v1::RunPodSandboxRequest>,
    ) -> Answer<v1::RunPodSandboxResponse> {
        let v1::RunPodSandboxRequest { config, runtime_handler } = request.into_inner();
        let pod_sandbox_id = self.run_sandbox(config.unwrap_or_default(), runtime_handler)?;
        Ok(Response::new(v1::RunPodSandboxResponse { pod_sandbox_id }))
    }

    async fn stop_pod_sandbox(
        &self,
        request: Request<v1::StopPodSandboxRequest>,
    ) -> Answer<v1::StopPodSandboxResponse> {
        self.stop_sandbox(&request.get_ref().pod_sandbox_id);
        done()
    }

    async fn remove_pod_sandbox(
        &self,
        request: Request<v1::RemovePodSandboxRequest>,
    ) -> Answer<v1::RemovePodSandboxResponse> {
        self.remove_sandbox(&request.get_ref().pod_sandbox_id);
        done()
    }

    async fn pod_sandbox_status(
        &self,
        request: Request<v1::PodSandboxStatusRequest>,
    ) -> Answer<v1::PodSandboxStatusResponse> {
        let objects = self.0.objects.lock();
        let status = Some(objects.sandbox(&request.get_ref().pod_sandbox_id)?.status.clone());
        Ok(Response::new(v1::PodSandboxStatusResponse { status, ..Default::default() }))
    }

    async fn list_pod_sandbox(
        &self,
        request: Request<v1::ListPodSandboxRequest>,
    ) -> Answer<v1::ListPodSandboxResponse> {
        let filter = request.into_inner().filter.unwrap_or_default();
        let items = self.0.objects.lock().list_sandboxes(&filter);
        Ok(Response::new(v1::ListPodSandboxResponse { items }))
    }

    async fn create_container(
        &self,
        request: Request<v1::CreateContainerRequest>,
    ) -> Answer<v1::CreateContainerResponse> {
        let container_id = self.add_container(request.into_inner())?;
        Ok(Response::new(v1::CreateContainerResponse { container_id }))
    }

    async fn start_container(
        &self,
        request: Request<v1::StartContainerRequest>,
    ) -> Answer<v1::StartContainerResponse> {
        self.start(&request.get_ref().container_id)?;
        done()
    }

    async fn stop_container(
        &self,
        request: Request<v1::StopContainerRequest>,
    ) -> Answer<v1::StopContainerResponse> {
        self.stop(&mut self.0.objects.lock(), &request.get_ref().container_id);
        done()
    }

    async fn remove_container(
        &self,
        request: Request<v1::RemoveContainerRequest>,
    ) -> Answer<v1::RemoveContainerResponse> {
        self.delete_container(&request.get_ref().container_id);
        done()
    }

    async fn list_containers(
        &self,
        request: Request<v1::ListContainersRequest>,
    ) -> Answer<v1::ListContainersResponse> {
        let filter = request.into_inner().filter.unwrap_or_default();
        let containers = self.0.objects.lock().list_containers(&filter);
        Ok(Response::new(v1::ListContainersResponse { containers }))
    }

    async fn container_status(
        &self,
        request: Request<v1::ContainerStatusRequest>,
    ) -> Answer<v1::ContainerStatusResponse> {
        let id = &request.get_ref().container_id;
        let objects = self.0.objects.lock();
        let container = objects.containers.get(id).ok_or_else(|| not_found("container", id))?;
        let status = Some(container.status.clone());
        Ok(Response::new(v1::ContainerStatusResponse { status, ..Default::default() }))
    }

    async fn update_container_resources(
        &self,
        _: Request<v1::UpdateContainerResourcesRequest>,
    ) -> Answer<v1::UpdateContainerResourcesResponse> {
        done()
    }

    async fn reopen_container_log(
        &self,
        _: Request<v1::ReopenContainerLogRequest>,
    ) -> Answer<v1::ReopenContainerLogResponse> {
        done()
    }

    async fn checkpoint_container(
        &self,
        _: Request<v1::CheckpointContainerRequest>,
    ) -> Answer<v1::CheckpointContainerResponse> {
        no_process()
    }

    async fn list_container_stats(
        &self,
        _: Request<v1::ListContainerStatsRequest>,
    ) -> Answer<v1::ListContainerStatsResponse> {
        done()
    }

    async fn get_container_events(
        &self,
        _: Request<v1::GetEventsRequest>,
    ) -> Answer<Self::GetContainerEventsStream> {
        let events = unfold(self.0.events.subscribe(), |mut reader| async move {
            let event = reader.recv().await.map_err(|error| match error {
                RecvError::Lagged(_) => Status::data_loss("the reader of events is too slow"),
                RecvError::Closed => Status::unavailable("the runtime has ended"),
            });
            Some((event, reader))
        });
        Ok(Response::new(Box::pin(events)))
    }

    async fn exec_sync(&self, _: Request<v1::ExecSyncRequest>) -> Answer<v1::ExecSyncResponse> {
        done()
    }

    async fn exec(&self, _: Request<v1::ExecRequest>) -> Answer<v1::ExecResponse> {
        no_process()
    }

    async fn attach(&self, _: Request<v1::AttachRequest>) -> Answer<v1::AttachResponse> {
        no_process()
    }

    async fn port_forward(
        &self,
        _: Request<v1::PortForwardRequest>,
    ) -> Answer<v1::PortForwardResponse> {
        no_process()
    }
}

/// Returns an image that was pulled by this name.
fn image(name: &str) -> v1::Image {
    v1::Image { id: name.to_owned(), repo_tags: vec![name.to_owned()], ..Default::default() }
}

fn name_of(spec: Option<v1::ImageSpec>) -> String {
    spec.unwrap_or_default().image
}

#[tonic::async_trait]
impl ImageService for MemoryRuntime {
    async fn list_images(
        &self,
        _: Request<v1::ListImagesRequest>,
    ) -> Answer<v1::ListImagesResponse> {
        let images = self.0.objects.lock().images.iter().map(|name| image(name)).collect();
        Ok(Response::new(v1::ListImagesResponse { images }))
    }

    async fn image_status(
        &self,
        request: Request<v1::ImageStatusRequest>,
    ) -> Answer<v1::ImageStatusResponse> {
        let name = name_of(request.into_inner().image);
        let found = self.0.objects.lock().images.get(&name).map(|name| image(name));
        Ok(Response::new(v1::ImageStatusResponse { image: found }))
    }

    async fn pull_image(
        &self,
        request: Request<v1::PullImageRequest>,
    ) -> Answer<v1::PullImageResponse> {
        let image_ref = name_of(request.into_inner().image);
        self.0.objects.lock().images.insert(image_ref.clone());
        Ok(Response::new(v1::PullImageResponse { image_ref }))
    }

    async fn remove_image(
        &self,
        request: Request<v1::RemoveImageRequest>,
    ) -> Answer<v1::RemoveImageResponse> {
        let name = name_of(request.into_inner().image);
        self.0.objects.lock().images.remove(&name);
        done()
    }

    async fn image_fs_info(
        &self,
        _: Request<v1::ImageFsInfoRequest>,
    ) -> Answer<v1::ImageFsInfoResponse> {
        done()
    }
}
