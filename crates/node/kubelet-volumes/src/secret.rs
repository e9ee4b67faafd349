//! Volumes of Secrets.

use k8s_openapi::api::core::v1::{Secret, Volume};
use pod_core::files::{Files, Selection, of_secret};

use crate::{
    error::Error,
    plugin::{MountWork, Plugin, Prepared, Request},
};

pub(crate) struct Secrets;

impl Plugin for Secrets {
    fn may_change(&self, volume: &Volume) -> bool {
        volume.secret.is_some()
    }

    fn prepare<'a>(&self, request: Request<'a>) -> Option<Prepared<'a>> {
        let source = request.volume.secret.as_ref()?;
        Some(Box::pin(async move {
            let items = source.items.as_deref();
            let selection = Selection::of_volume(items, source.default_mode, source.optional);
            let name = source.secret_name.as_deref().unwrap_or_default();
            let files = files(&request, name, selection).await?;
            let work: MountWork =
                Box::new(move |site| site.write(site.memory_dir("kubernetes.io~secret")?, &files));
            Ok(work)
        }))
    }
}

pub(crate) async fn files(
    request: &Request<'_>,
    name: &str,
    selection: Selection<'_>,
) -> Result<Files, Error> {
    let secret: Option<Secret> = request.volumes.objects.secret(request.namespace(), name).await?;
    match secret {
        Some(secret) => Ok(of_secret(&secret, selection)?),
        None if selection.optional => Ok(Files::default()),
        None => Err(Error::Missing { kind: "secret", name: name.to_owned() }),
    }
}
