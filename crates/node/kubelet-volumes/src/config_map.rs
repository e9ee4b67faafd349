//! Volumes of ConfigMaps.

use k8s_openapi::api::core::v1::{ConfigMap, Volume};
use pod_core::files::{Files, Selection, of_config_map};

use crate::{
    error::Error,
    plugin::{MountWork, Plugin, Prepared, Request},
};

pub(crate) struct ConfigMaps;

impl Plugin for ConfigMaps {
    fn may_change(&self, volume: &Volume) -> bool {
        volume.config_map.is_some()
    }

    fn prepare<'a>(&self, request: Request<'a>) -> Option<Prepared<'a>> {
        let source = request.volume.config_map.as_ref()?;
        Some(Box::pin(async move {
            let items = source.items.as_deref();
            let selection = Selection::of_volume(items, source.default_mode, source.optional);
            let files = files(&request, &source.name, selection).await?;
            let work: MountWork =
                Box::new(move |site| site.write(site.dir("kubernetes.io~configmap")?, &files));
            Ok(work)
        }))
    }
}

pub(crate) async fn files(
    request: &Request<'_>,
    name: &str,
    selection: Selection<'_>,
) -> Result<Files, Error> {
    let map: Option<ConfigMap> =
        request.volumes.objects.config_map(request.namespace(), name).await?;
    match map {
        Some(map) => Ok(of_config_map(&map, selection)?),
        None if selection.optional => Ok(Files::default()),
        None => Err(Error::Missing { kind: "configmap", name: name.to_owned() }),
    }
}
