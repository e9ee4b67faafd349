use k8s_openapi::api::core::v1::{DownwardAPIVolumeFile, DownwardAPIVolumeSource};
use pod_core::files::{Files, of_downward_api};

use super::{At, Error, Request};

pub(super) fn set_up(request: &Request<'_>, source: &DownwardAPIVolumeSource) -> Result<At, Error> {
    let items = source.items.as_deref().unwrap_or_default();
    let files = files(request, items, source.default_mode.unwrap_or(0o644))?;
    request.write(request.dir("kubernetes.io~downward-api")?, &files)
}

pub(super) fn files(
    request: &Request<'_>,
    items: &[DownwardAPIVolumeFile],
    default_mode: i32,
) -> Result<Files, Error> {
    let node = crate::steps::node_facts(request.ctx, request.pod_ips);
    Ok(of_downward_api(request.pod, items, default_mode, &node)?)
}
