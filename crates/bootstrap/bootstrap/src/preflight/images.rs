//! Brings images to the machine before they are needed.

use bootstrap_core::{constants::OWN_REPOSITORY, images as names};

use super::check::{Check, Ignored, Problem, check};
use crate::{Error, images, node::Node};

/// Brings the images of a control plane: our own images are built, others pulled.
pub async fn ensure_images(node: &Node, ignored: &Ignored) -> Result<(), Error> {
    ensure(node, names::all(&node.config.cluster), ignored).await
}

/// Brings our own images of a worker, which no registry has. Its kubelet pulls the others.
pub async fn ensure_node_images(node: &Node, ignored: &Ignored) -> Result<(), Error> {
    let mut images = images::of_node(&node.config.cluster);
    images.retain(|image| names::is_own(image));
    ensure(node, images, ignored).await
}

async fn ensure(node: &Node, images: Vec<String>, ignored: &Ignored) -> Result<(), Error> {
    let policy = node.config.init.node_registration.image_pull_policy.as_str();
    if node.dry_run || policy == "Never" {
        return Ok(());
    }
    let mut own = Vec::new();
    let mut failures = Vec::new();
    for image in images {
        let ours = names::is_own(&image);
        // Our own images are built from this binary, so an existing one is used.
        let present = (ours || policy == "IfNotPresent")
            && node.containers.has_image(&image).await.unwrap_or(false);
        if present {
            continue;
        }
        if ours {
            own.push(image);
        } else if let Err(e) = node.containers.pull(&image).await {
            let cure = "check the registry and the network, or bring the image here (windlass images import)";
            failures.push(failure(format!("failed to pull image {image}: {e}"), cure));
        }
    }
    own.extend(missing_sandbox(node).await);
    if !own.is_empty()
        && let Err(e) = node.containers.build(&own).await
    {
        failures.push(failure(e.to_string(), "or name a registry with --image-repository"));
    }
    check(failures, ignored)
}

fn failure(cause: String, cure: &str) -> Check {
    Check::new("ImagePull", Err(Problem::error(cause, cure)))
}

/// Returns the sandbox image of the runtime's configuration if it is missing. With our own images a cluster needs no
/// registry, and our pause image can have any name.
async fn missing_sandbox(node: &Node) -> Option<String> {
    if node.config.cluster.image_repository != OWN_REPOSITORY {
        return None;
    }
    let image = node.containers.sandbox_image().await.ok()??;
    let present = node.containers.has_image(&image).await.unwrap_or(true);
    let is_pause = image.rsplit('/').next().is_some_and(|name| name.starts_with("pause:"));
    (!present && is_pause).then_some(image)
}
