use k8s_openapi::api::core::v1::{ConfigMap, ConfigMapVolumeSource};
use pod_core::files::{Files, Selection, of_config_map};

use super::{At, Error, Request};

pub(super) async fn set_up(
    request: &Request<'_>,
    source: &ConfigMapVolumeSource,
) -> Result<At, Error> {
    let selection = Selection {
        items: source.items.as_deref(),
        default_mode: source.default_mode.unwrap_or(0o644),
        optional: source.optional == Some(true),
    };
    let files = files(request, &source.name, selection).await?;
    request.write(request.dir("kubernetes.io~configmap")?, &files)
}

pub(super) async fn files(
    request: &Request<'_>,
    name: &str,
    selection: Selection<'_>,
) -> Result<Files, Error> {
    let found: Option<ConfigMap> =
        request.ctx.objects.config_map(request.namespace(), name).await?;
    match found {
        Some(map) => Ok(of_config_map(&map, selection)?),
        None if selection.optional => Ok(Files::new()),
        None => Err(Error::Missing { kind: "configmap", name: name.to_owned() }),
    }
}
