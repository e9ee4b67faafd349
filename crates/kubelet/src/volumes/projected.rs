use k8s_openapi::api::core::v1::{ProjectedVolumeSource, VolumeProjection};
use pod_core::files::{File, Files, Selection, check_path};

use super::{At, Error, Request, Tokens, config_map, downward_api, secret};

pub(super) async fn set_up(
    request: &Request<'_>,
    source: &ProjectedVolumeSource,
    tokens: &mut Tokens,
) -> Result<At, Error> {
    let mode = source.default_mode.unwrap_or(0o644);
    let mut files = Files::new();
    for projection in source.sources.iter().flatten() {
        files.extend(project(request, projection, mode, tokens).await?);
    }
    request.write(request.memory_dir("kubernetes.io~projected")?, &files)
}

async fn project(
    request: &Request<'_>,
    projection: &VolumeProjection,
    mode: i32,
    tokens: &mut Tokens,
) -> Result<Files, Error> {
    if let Some(map) = &projection.config_map {
        let optional = map.optional == Some(true);
        let selection = Selection { items: map.items.as_deref(), default_mode: mode, optional };
        config_map::files(request, &map.name, selection).await
    } else if let Some(secret) = &projection.secret {
        let optional = secret.optional == Some(true);
        let selection = Selection { items: secret.items.as_deref(), default_mode: mode, optional };
        secret::files(request, &secret.name, selection).await
    } else if let Some(downward) = &projection.downward_api {
        downward_api::files(request, downward.items.as_deref().unwrap_or_default(), mode)
    } else if let Some(token) = &projection.service_account_token {
        check_path(&token.path)?;
        let content = tokens.get(request, token).await?.into_bytes();
        // A token is for its Pod's user alone, where the Pod says who that is.
        let owner = super::ownership::user(request.pod);
        let known = owner.is_some() || super::ownership::group(request.pod).is_some();
        let mode = if known { 0o600 } else { mode.unsigned_abs() };
        Ok(Files::from([(token.path.clone(), File { content, mode, owner })]))
    } else {
        Err(Error::Unsupported)
    }
}
