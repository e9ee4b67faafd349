use std::time::Duration;

use cri::v1::ContainerState;
use futures_util::future::BoxFuture;

use super::{Container, Containers};
use crate::Error;

const NAMESPACE_LABEL: &str = "io.kubernetes.pod.namespace";
const DEADLINE: Duration = Duration::from_secs(30);

/// A runtime behind its socket.
pub struct Runtime(cri::Client);

impl Runtime {
    /// Must be called within a Tokio runtime; nothing is dialled before the first call.
    pub fn new(endpoint: &str) -> Self {
        Self(cri::Client::new(endpoint, DEADLINE))
    }

    /// The end of a container is only in its own status.
    async fn describe(&self, listed: cri::v1::Container) -> Result<Container, cri::Error> {
        let status = self.0.container_status(&listed.id).await?;
        let metadata = listed.metadata.unwrap_or_default();
        let ended = status.state == ContainerState::ContainerExited as i32;
        let reason = if status.message.is_empty() {
            status.reason
        } else {
            format!("{}: {}", status.reason, status.message)
        };
        Ok(Container {
            id: listed.id,
            name: metadata.name,
            attempt: metadata.attempt,
            running: status.state == ContainerState::ContainerRunning as i32,
            exit_code: ended.then_some(status.exit_code),
            reason,
            log_path: status.log_path,
        })
    }

    async fn all_containers(&self) -> Result<Vec<Container>, cri::Error> {
        let mut listed = self.0.list_containers(None).await?;
        listed.sort_by_key(|c| std::cmp::Reverse(c.created_at));
        let mut containers = Vec::new();
        for container in listed {
            containers.push(self.describe(container).await?);
        }
        Ok(containers)
    }

    async fn remove_all(&self) -> Result<usize, cri::Error> {
        let pods = self.0.list_pod_sandboxes(None).await?;
        let ours: Vec<_> =
            pods.into_iter().filter(|pod| pod.labels.contains_key(NAMESPACE_LABEL)).collect();
        for pod in &ours {
            self.0.stop_pod_sandbox(&pod.id).await?;
            self.0.remove_pod_sandbox(&pod.id).await?;
        }
        Ok(ours.len())
    }
}

fn failed(operation: &'static str, subject: &str) -> impl FnOnce(cri::Error) -> Error {
    let subject = subject.to_owned();
    move |e| Error::Runtime { operation, subject, cause: e.to_string() }
}

impl Containers for Runtime {
    fn version(&self) -> BoxFuture<'_, Result<String, Error>> {
        Box::pin(async {
            let version = self.0.version().await.map_err(failed("ask for", "the version"))?;
            Ok(format!("{} {}", version.runtime_name, version.runtime_version))
        })
    }

    fn has_image<'a>(&'a self, image: &'a str) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            Ok(self.0.image_status(image).await.map_err(failed("look for", image))?.is_some())
        })
    }

    fn pull<'a>(&'a self, image: &'a str) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            self.0
                .pull_image(image, None, Default::default())
                .await
                .map(drop)
                .map_err(failed("pull", image))
        })
    }

    fn containers(&self) -> BoxFuture<'_, Result<Vec<Container>, Error>> {
        Box::pin(async { self.all_containers().await.map_err(failed("list", "containers")) })
    }

    fn remove_pods(&self) -> BoxFuture<'_, Result<usize, Error>> {
        Box::pin(async { self.remove_all().await.map_err(failed("remove", "Pods")) })
    }
}
