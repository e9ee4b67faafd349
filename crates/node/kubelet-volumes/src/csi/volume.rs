//! Reads a CSI volume's objects from the API server and prepares its mount.

use client::{NotFoundExt as _, Resource};
use k8s_openapi::api::{
    core::v1::{
        CSIPersistentVolumeSource, CSIVolumeSource, PersistentVolume, PersistentVolumeClaim,
        SecretReference, ServiceAccountTokenProjection,
    },
    storage::v1::{CSIDriver, CSIDriverSpec, VolumeAttachment},
};
use kubelet_objects::ObjectsError;
use serde_json::json;

use super::{
    files::{self, EPHEMERAL, Layout, PERSISTENT, Record},
    mount::{GroupPolicy, MountJob, Strings},
};
use crate::{
    error::{Cause, CsiError, Error, VolumeStep},
    growth::{Growth, GrowthReporter},
    ownership,
    plugin::{MountWork, Plugin, Prepared, Request},
};

/// A CSI ephemeral volume (`csi` in the Pod's spec).
pub(crate) struct Inline;

impl Plugin for Inline {
    fn may_change(&self, volume: &k8s_openapi::api::core::v1::Volume) -> bool {
        // A driver with `requiresRepublish` is called periodically.
        volume.csi.is_some()
    }

    fn prepare<'a>(&self, request: Request<'a>) -> Option<Prepared<'a>> {
        let source = request.volume.csi.as_ref()?;
        let volume = CsiVolume::of_pod(&request, source);
        Some(Box::pin(volume.prepare(request)))
    }
}

/// Prepares a CSI PersistentVolume for the Pod's claim.
pub(crate) async fn prepare(
    request: Request<'_>,
    claim: &PersistentVolumeClaim,
    volume: &PersistentVolume,
    source: &CSIPersistentVolumeSource,
    read_only: bool,
) -> Result<MountWork, Error> {
    CsiVolume::of_volume(&request, claim, volume, source, read_only).prepare(request).await
}

/// A volume as described by the Pod or the PersistentVolume.
struct CsiVolume {
    record: Record,
    block: bool,
    read_only: bool,
    fs_type: String,
    access_modes: Vec<String>,
    mount_flags: Vec<String>,
    attributes: Strings,
    stage_secret: Option<SecretReference>,
    publish_secret: Option<SecretReference>,
    expand_secret: Option<SecretReference>,
    growth: Option<Growth>,
}

impl CsiVolume {
    fn of_pod(request: &Request<'_>, source: &CSIVolumeSource) -> Self {
        let node = &request.volumes.node_name;
        let uid = request.pod.metadata.uid.as_deref().unwrap_or_default();
        let handle = files::ephemeral_handle(uid, &request.volume.name);
        let secret = source.node_publish_secret_ref.as_ref().map(|of| SecretReference {
            name: Some(of.name.clone()),
            namespace: Some(request.namespace().to_owned()),
        });
        Self {
            record: Record {
                attachment: files::attachment(&handle, &source.driver, node),
                driver: source.driver.clone(),
                node: node.clone(),
                spec_name: request.volume.name.clone(),
                handle,
                lifecycle: EPHEMERAL.to_owned(),
            },
            block: false,
            read_only: source.read_only == Some(true),
            fs_type: source.fs_type.clone().unwrap_or_default(),
            access_modes: vec!["ReadWriteOnce".to_owned()],
            mount_flags: Vec::new(),
            attributes: source.volume_attributes.clone().unwrap_or_default(),
            stage_secret: None,
            publish_secret: secret,
            expand_secret: None,
            growth: None,
        }
    }

    fn of_volume(
        request: &Request<'_>,
        claim: &PersistentVolumeClaim,
        volume: &PersistentVolume,
        source: &CSIPersistentVolumeSource,
        read_only: bool,
    ) -> Self {
        let node = &request.volumes.node_name;
        let spec = volume.spec.clone().unwrap_or_default();
        Self {
            record: Record {
                attachment: files::attachment(&source.volume_handle, &source.driver, node),
                driver: source.driver.clone(),
                node: node.clone(),
                spec_name: volume.metadata.name.clone().unwrap_or_default(),
                handle: source.volume_handle.clone(),
                lifecycle: PERSISTENT.to_owned(),
            },
            block: spec.volume_mode.as_deref() == Some("Block"),
            read_only,
            fs_type: source.fs_type.clone().unwrap_or_default(),
            access_modes: spec.access_modes.unwrap_or_default(),
            mount_flags: spec.mount_options.unwrap_or_default(),
            attributes: source.volume_attributes.clone().unwrap_or_default(),
            stage_secret: source.node_stage_secret_ref.clone(),
            publish_secret: source.node_publish_secret_ref.clone(),
            expand_secret: source.node_expand_secret_ref.clone(),
            growth: Growth::of(claim, volume),
        }
    }

    fn is_ephemeral(&self) -> bool {
        self.record.lifecycle == EPHEMERAL
    }

    async fn prepare(self, request: Request<'_>) -> Result<MountWork, Error> {
        let (step, volume) = (VolumeStep::publish(self.block), self.record.spec_name.clone());
        let job = self.mount_job(request).await.map_err(|cause| {
            let is_unattached = matches!(cause, Cause::NotAttached(_));
            let step = if is_unattached { VolumeStep::Wait } else { step };
            Box::new(CsiError { step, volume, cause })
        })?;
        Ok(Box::new(move |site| job.mount(site)))
    }

    /// Reads everything that the driver needs from the API server.
    async fn mount_job(self, request: Request<'_>) -> Result<MountJob, Cause> {
        let volumes = request.volumes;
        let driver = driver_spec(&request, &self.record.driver).await?;
        self.check_lifecycle(driver.as_ref())?;
        let uid = request.pod.metadata.uid.clone().unwrap_or_default();
        let name = self.record.unique_name();
        let attachable = !self.is_ephemeral()
            && driver.as_ref().and_then(|driver| driver.attach_required) != Some(false);
        volumes.drivers.add_user(&name, &uid, attachable);
        let held = Layout::new(&volumes.root).pod_volume(&uid, self.record.clone(), self.block);
        let republish = driver.as_ref().and_then(|driver| driver.requires_republish) == Some(true);
        let is_new = !volumes.drivers.is_published(&name, &held.target);
        let publish_context = if attachable && is_new {
            publish_context(&request, &name, &self.record.attachment).await?
        } else {
            Strings::new()
        };
        let caller = if self.block { "blockMapper.MapPodDevice" } else { "mounter.SetUpAt" };
        let acquired = volumes.drivers.acquire(&self.record.driver, caller).await?;
        let mut attributes = self.attributes.clone();
        let mut publish_secrets =
            secret(&request, "NodePublishSecretRef", self.publish_secret.as_ref()).await?;
        if let Some(driver) = &driver {
            if driver.pod_info_on_mount == Some(true) {
                attributes.extend(self.pod_info(&request));
            }
            let tokens = tokens(&request, driver).await?;
            match driver.service_account_token_in_secrets {
                Some(true) => publish_secrets.extend(tokens),
                _ => attributes.extend(tokens),
            }
        }
        let security = request.pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref());
        let policy = security.and_then(|context| context.fs_group_change_policy.as_deref());
        Ok(MountJob {
            drivers: volumes.drivers.clone(),
            runtime: tokio::runtime::Handle::current(),
            reporter: GrowthReporter::of(volumes),
            layout: Layout::new(&volumes.root),
            acquired,
            stage_secrets: secret(&request, "NodeStageSecretRef", self.stage_secret.as_ref())
                .await?,
            expand_secrets: secret(&request, "NodeExpandSecretRef", self.expand_secret.as_ref())
                .await?,
            publish_secrets,
            publish_context,
            stage_attributes: self.attributes,
            publish_attributes: attributes,
            name,
            held,
            read_only: self.read_only,
            fs_type: self.fs_type,
            access_modes: self.access_modes,
            mount_flags: self.mount_flags,
            group: ownership::group(request.pod),
            group_policy: GroupPolicy::of(driver.as_ref()),
            keeps_matching_group: policy == Some("OnRootMismatch"),
            republish,
            growth: self.growth,
        })
    }

    fn check_lifecycle(&self, driver: Option<&CSIDriverSpec>) -> Result<(), Cause> {
        let mode = if self.is_ephemeral() { EPHEMERAL } else { PERSISTENT };
        let declared = match driver {
            None if !self.is_ephemeral() => return Ok(()),
            None => "no CSIDriver object".to_owned(),
            Some(driver) => {
                let modes = driver.volume_lifecycle_modes.clone().unwrap_or_default();
                if modes.iter().any(|allowed| allowed == mode) {
                    return Ok(());
                }
                format!("only supports {modes:?}")
            }
        };
        Err(Cause::Lifecycle { mode, driver: self.record.driver.clone(), declared })
    }

    /// Returns the attributes with information about the Pod (`podInfoOnMount`).
    fn pod_info(&self, request: &Request<'_>) -> Strings {
        let meta = &request.pod.metadata;
        let account = request.pod.spec.as_ref().and_then(|spec| spec.service_account_name.clone());
        [
            ("pod.name", meta.name.clone().unwrap_or_default()),
            ("pod.namespace", request.namespace().to_owned()),
            ("pod.uid", meta.uid.clone().unwrap_or_default()),
            ("serviceAccount.name", account.unwrap_or_default()),
            ("ephemeral", self.is_ephemeral().to_string()),
        ]
        .map(|(key, value)| (format!("csi.storage.k8s.io/{key}"), value))
        .into()
    }
}

async fn driver_spec(request: &Request<'_>, name: &str) -> Result<Option<CSIDriverSpec>, Cause> {
    let Some(client) = request.volumes.objects.client() else {
        return Err(ObjectsError::Standalone { kind: "CSIDriver", name: name.to_owned() }.into());
    };
    let driver: Option<CSIDriver> = client.get(&Resource::CSI_DRIVERS, "", name).await.or_none()?;
    Ok(driver.map(|driver| driver.spec))
}

/// Waits until the volume is attached and returns the attachment's metadata.
async fn publish_context(
    request: &Request<'_>,
    name: &str,
    attachment: &str,
) -> Result<Strings, Cause> {
    let volumes = request.volumes;
    let is_attached = volumes.wait_attached(name).await;
    let Some(client) = volumes.objects.client() else { return Ok(Strings::new()) };
    let object: Option<VolumeAttachment> =
        client.get(&Resource::VOLUME_ATTACHMENTS, "", attachment).await.or_none()?;
    if !is_attached {
        if let Some(object) = object.filter(is_exhausted) {
            volumes.drivers.set_exhausted(&object.spec.attacher);
        }
        return Err(Cause::NotAttached(request.volume.name.clone()));
    }
    let status = object.and_then(|object| object.status).filter(|status| status.attached);
    let status = status.ok_or_else(|| Cause::Attachment(attachment.to_owned()))?;
    Ok(status.attachment_metadata.unwrap_or_default())
}

/// Reports whether the driver did not attach the volume because the node has too many.
fn is_exhausted(attachment: &VolumeAttachment) -> bool {
    /// The gRPC code `RESOURCE_EXHAUSTED`.
    const RESOURCE_EXHAUSTED: i32 = 8;
    let error = attachment.status.as_ref().and_then(|status| status.attach_error.as_ref());
    error.and_then(|error| error.error_code) == Some(RESOURCE_EXHAUSTED)
}

async fn secret(
    request: &Request<'_>,
    kind: &'static str,
    reference: Option<&SecretReference>,
) -> Result<Strings, Cause> {
    let Some(reference) = reference else { return Ok(Strings::new()) };
    let namespace = reference.namespace.clone().unwrap_or_default();
    let name = reference.name.clone().unwrap_or_default();
    let secret = request.volumes.objects.secret(&namespace, &name).await?;
    let secret = secret.ok_or(Cause::Secret { kind, namespace, name })?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let data = secret.data.unwrap_or_default();
    Ok(data.into_iter().map(|(key, value)| (key, text(&value.0))).collect())
}

/// Returns the service account tokens that the driver requests, as one attribute.
async fn tokens(request: &Request<'_>, driver: &CSIDriverSpec) -> Result<Strings, Cause> {
    let mut all = serde_json::Map::new();
    for requested in driver.token_requests.iter().flatten() {
        let projection = ServiceAccountTokenProjection {
            audience: Some(requested.audience.clone()),
            expiration_seconds: requested.expiration_seconds,
            path: String::new(),
        };
        let (token, expires) = request.token(&projection).await?;
        let status = json!({"token": token, "expirationTimestamp": expires.to_string()});
        all.insert(requested.audience.clone(), status);
    }
    if all.is_empty() {
        return Ok(Strings::new());
    }
    let text = serde_json::Value::Object(all).to_string();
    Ok([("csi.storage.k8s.io/serviceAccount.tokens".to_owned(), text)].into())
}
