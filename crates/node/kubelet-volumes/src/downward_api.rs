//! Volumes of the downward API.

use k8s_openapi::api::core::v1::{DownwardAPIVolumeFile, Volume};
use pod_core::files::{Files, of_downward_api};

use crate::{
    error::Error,
    plugin::{MountWork, Plugin, Prepared, Request},
};

pub(crate) struct DownwardApi;

impl Plugin for DownwardApi {
    fn may_change(&self, volume: &Volume) -> bool {
        volume.downward_api.is_some()
    }

    fn prepare<'a>(&self, request: Request<'a>) -> Option<Prepared<'a>> {
        let source = request.volume.downward_api.as_ref()?;
        Some(Box::pin(async move {
            let items = source.items.as_deref().unwrap_or_default();
            let files = files(&request, items, source.default_mode.unwrap_or(0o644))?;
            let work: MountWork =
                Box::new(move |site| site.write(site.dir("kubernetes.io~downward-api")?, &files));
            Ok(work)
        }))
    }
}

pub(crate) fn files(
    request: &Request<'_>,
    items: &[DownwardAPIVolumeFile],
    default_mode: i32,
) -> Result<Files, Error> {
    Ok(of_downward_api(request.pod, items, default_mode, &(request.node)())?)
}
