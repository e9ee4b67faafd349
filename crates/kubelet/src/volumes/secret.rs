use k8s_openapi::api::core::v1::{Secret, SecretVolumeSource};
use pod_core::files::{Files, Selection, of_secret};

use super::{At, Error, Request};

pub(super) async fn set_up(
    request: &Request<'_>,
    source: &SecretVolumeSource,
) -> Result<At, Error> {
    let selection = Selection {
        items: source.items.as_deref(),
        default_mode: source.default_mode.unwrap_or(0o644),
        optional: source.optional == Some(true),
    };
    let name = source.secret_name.as_deref().unwrap_or_default();
    let files = files(request, name, selection).await?;
    request.write(request.memory_dir("kubernetes.io~secret")?, &files)
}

pub(super) async fn files(
    request: &Request<'_>,
    name: &str,
    selection: Selection<'_>,
) -> Result<Files, Error> {
    let found: Option<Secret> = request.ctx.objects.secret(request.namespace(), name).await?;
    match found {
        Some(secret) => Ok(of_secret(&secret, selection)?),
        None if selection.optional => Ok(Files::new()),
        None => Err(Error::Missing { kind: "secret", name: name.to_owned() }),
    }
}
