//! Projected volumes.

use k8s_openapi::api::core::v1::{Volume, VolumeProjection};
use pod_core::files::{File, Files, Selection, check_path};

use crate::{
    certificate, config_map, downward_api,
    error::Error,
    ownership,
    plugin::{MountWork, Plugin, Prepared, Request},
    secret, trust_bundle,
};

pub(crate) struct Projected;

impl Plugin for Projected {
    fn may_change(&self, volume: &Volume) -> bool {
        volume.projected.is_some()
    }

    fn prepare<'a>(&self, request: Request<'a>) -> Option<Prepared<'a>> {
        let source = request.volume.projected.as_ref()?;
        Some(Box::pin(async move {
            let mode = source.default_mode.unwrap_or(0o644);
            let mut files = Files::default();
            for (index, projection) in source.sources.iter().flatten().enumerate() {
                files.append(project(&request, index, projection, mode).await?)?;
            }
            let work: MountWork = Box::new(move |site| {
                site.write(site.memory_dir("kubernetes.io~projected")?, &files)
            });
            Ok(work)
        }))
    }
}

async fn project(
    request: &Request<'_>,
    index: usize,
    projection: &VolumeProjection,
    mode: i32,
) -> Result<Files, Error> {
    if let Some(map) = &projection.config_map {
        let selection = Selection::of_volume(map.items.as_deref(), Some(mode), map.optional);
        config_map::files(request, &map.name, selection).await
    } else if let Some(secret) = &projection.secret {
        let selection = Selection::of_volume(secret.items.as_deref(), Some(mode), secret.optional);
        secret::files(request, &secret.name, selection).await
    } else if let Some(downward) = &projection.downward_api {
        downward_api::files(request, downward.items.as_deref().unwrap_or_default(), mode)
    } else if let Some(token) = &projection.service_account_token {
        check_path(&token.path)?;
        let (content, _) = request.token(token).await?;
        let (owner, mode) = ownership::of_credential(request.pod, mode);
        let mut files = Files::default();
        let content = content.into_bytes().into();
        files.insert(token.path.clone(), File { content, mode, owner })?;
        Ok(files)
    } else if let Some(bundle) = &projection.cluster_trust_bundle {
        trust_bundle::files(request, bundle, mode).await
    } else if let Some(certificate) = &projection.pod_certificate {
        certificate::files(request, index, certificate, mode).await
    } else {
        // The API server drops sources whose feature gate is off, and leaves their entries empty.
        Ok(Files::default())
    }
}
