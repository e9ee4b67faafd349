//! A container runtime over CRI.

use std::time::Duration;

use cri::v1::ContainerState;
use futures_util::future::BoxFuture;

use super::interface::{Container, Containers};
use crate::{Error, host::Host, images};

const NAMESPACE_LABEL: &str = "io.kubernetes.pod.namespace";
const DEADLINE: Duration = Duration::from_secs(30);

/// A container runtime behind its CRI socket.
pub struct Runtime {
    cri: cri::Client,
    endpoint: String,
    host: Host,
}

impl Runtime {
    /// Creates a client. It must run in a Tokio runtime and connects at the first call.
    pub fn new(endpoint: &str, host: Host) -> Self {
        Self { cri: cri::Client::new(endpoint, DEADLINE), endpoint: endpoint.to_owned(), host }
    }

    /// Reads the status of a container, because only it has the reason for the end.
    async fn describe(&self, listed: cri::v1::Container) -> Result<Container, cri::Error> {
        let status = self.cri.container_status(&listed.id).await?;
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
        let mut listed = self.cri.list_containers(None).await?;
        listed.sort_by_key(|c| std::cmp::Reverse(c.created_at));
        let mut containers = Vec::new();
        for container in listed {
            containers.push(self.describe(container).await?);
        }
        Ok(containers)
    }

    async fn remove_all(&self) -> Result<usize, cri::Error> {
        let pods = self.cri.list_pod_sandboxes(None).await?;
        let ours: Vec<_> =
            pods.into_iter().filter(|pod| pod.labels.contains_key(NAMESPACE_LABEL)).collect();
        for pod in &ours {
            self.cri.stop_pod_sandbox(&pod.id).await?;
            self.cri.remove_pod_sandbox(&pod.id).await?;
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
            let version = self.cri.version().await.map_err(failed("ask for", "the version"))?;
            Ok(format!("{} {}", version.runtime_name, version.runtime_version))
        })
    }

    fn has_image<'a>(&'a self, image: &'a str) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            Ok(self.cri.image_status(image).await.map_err(failed("look for", image))?.is_some())
        })
    }

    fn images(&self) -> BoxFuture<'_, Result<Vec<String>, Error>> {
        Box::pin(async {
            let images = self.cri.list_images().await.map_err(failed("list", "images"))?;
            Ok(images.into_iter().flat_map(|image| image.repo_tags).collect())
        })
    }

    fn pull<'a>(&'a self, image: &'a str) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            self.cri
                .pull_image(image, None, Default::default())
                .await
                .map(drop)
                .map_err(failed("pull", image))
        })
    }

    fn build<'a>(&'a self, names: &'a [String]) -> BoxFuture<'a, Result<(), Error>> {
        let (host, endpoint, names) = (self.host.clone(), self.endpoint.clone(), names.to_vec());
        Box::pin(async move {
            // Building reads and hashes the whole binary, so it runs on a blocking thread.
            let subject = names.join(", ");
            let built = tokio::task::spawn_blocking(move || {
                images::build(&images::Sources::of(&host)?, &names, &endpoint)
            });
            built.await.map_err(|e| Error::Runtime {
                operation: "pack",
                subject,
                cause: e.to_string(),
            })?
        })
    }

    fn sandbox_image(&self) -> BoxFuture<'_, Result<Option<String>, Error>> {
        Box::pin(async {
            let status = self.cri.status(true).await;
            let status = status.map_err(failed("ask for", "the sandbox image"))?;
            let config = status.info.get("config").map_or("", String::as_str);
            let config: serde_json::Value = serde_json::from_str(config).unwrap_or_default();
            Ok(config["sandboxImage"].as_str().map(str::to_owned))
        })
    }

    fn containers(&self) -> BoxFuture<'_, Result<Vec<Container>, Error>> {
        Box::pin(async { self.all_containers().await.map_err(failed("list", "containers")) })
    }

    fn remove_pods(&self) -> BoxFuture<'_, Result<usize, Error>> {
        Box::pin(async { self.remove_all().await.map_err(failed("remove", "Pods")) })
    }
}
