//! Provides the images that a container mounts as volumes (KEP-4639). The runtime mounts them.

use std::collections::{BTreeMap, BTreeSet};

use cri::v1;
use k8s_openapi::api::core::v1::{Container, ImageVolumeSource, Pod};

use super::image::{self, ImageRequest, PullError};
use crate::{context::Context, runtime_version::RuntimeVersion};

/// The images that a container mounts, by volume.
pub(super) type VolumeImages = BTreeMap<String, v1::ImageSpec>;

/// The error of an image volume that a container cannot mount.
#[derive(Debug, thiserror::Error)]
pub(super) enum ImageVolumeError {
    #[error("read the version of the container runtime: {0}")]
    Runtime(#[from] cri::Error),
    #[error(
        "{runtime} does not support image volumes and would start the container without the volume {volume:?}; use \
         containerd 2.1 or CRI-O 1.33 or later"
    )]
    Unsupported { runtime: RuntimeVersion, volume: String },
    #[error("volume {volume:?}: {}", error.message)]
    Pull { volume: String, error: PullError },
}

/// Returns the Pod's image volumes that a container mounts.
fn mounted<'a>(
    pod: &'a Pod,
    container: &'a Container,
) -> impl Iterator<Item = (&'a str, &'a ImageVolumeSource)> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let mounts = container.volume_mounts.iter().flatten();
    let names: BTreeSet<&str> = mounts.map(|mount| mount.name.as_str()).collect();
    volumes
        .filter(move |volume| names.contains(volume.name.as_str()))
        .filter_map(|volume| Some((volume.name.as_str(), volume.image.as_ref()?)))
}

/// Makes sure that the images which a container mounts are on the node.
pub(super) async fn ensure(
    ctx: &Context,
    pod: &Pod,
    container: &Container,
) -> Result<VolumeImages, ImageVolumeError> {
    let mut images = VolumeImages::new();
    for (volume, source) in mounted(pod, container) {
        ctx.metrics.image_volumes.requested.inc();
        if images.is_empty() {
            let runtime = RuntimeVersion::from(ctx.cri.version().await?);
            if !runtime.has_image_volumes() {
                ctx.metrics.image_volumes.failed.inc();
                let volume = volume.to_owned();
                return Err(ImageVolumeError::Unsupported { runtime, volume });
            }
        }
        let reference = source.reference.as_deref().unwrap_or_default();
        let policy = source.pull_policy.as_deref().filter(|policy| !policy.is_empty());
        let request = ImageRequest { container: None, image: reference, policy };
        let image = image::ensure(ctx, pod, request).await.map_err(|error| {
            ctx.metrics.image_volumes.failed.inc();
            ImageVolumeError::Pull { volume: volume.to_owned(), error }
        })?;
        let spec = v1::ImageSpec {
            image: image.reference,
            user_specified_image: reference.to_owned(),
            ..v1::ImageSpec::default()
        };
        images.insert(volume.to_owned(), spec);
    }
    Ok(images)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn finds_only_image_volumes_that_the_container_mounts() {
        let pod: Pod = serde_json::from_value(json!({ "spec": {
            "volumes": [
                { "name": "data", "image": { "reference": "registry.test/data:1" } },
                { "name": "other", "image": { "reference": "registry.test/other:1" } },
                { "name": "dir", "emptyDir": {} },
            ],
            "containers": [{ "name": "c", "volumeMounts": [
                { "name": "data", "mountPath": "/a" }, { "name": "data", "mountPath": "/b", "subPath": "x" },
                { "name": "dir", "mountPath": "/c" },
            ] }],
        } }))
        .unwrap();
        let container = &pod.spec.as_ref().unwrap().containers[0];
        let found: Vec<_> = mounted(&pod, container).map(|(name, _)| name).collect();
        assert_eq!(found, ["data"]);
    }
}
