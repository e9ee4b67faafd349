//! Volumes of PersistentVolumeClaims. The kubelet checks at the API server that the volume is bound to the Pod's claim.

use std::path::{Path, PathBuf};

use client::Resource;
use k8s_openapi::api::core::v1::{
    LocalVolumeSource, PersistentVolume, PersistentVolumeClaim, Volume,
};
use pod_core::{admit::volume_reaches, resources::whole};

use crate::{
    csi,
    error::{ClaimError, Error},
    growth::{Growth, GrowthReporter},
    host_path,
    image::FILE_SYSTEM,
    iscsi,
    local::{DeviceFileSystem, Local, OwnVolume},
    nfs::{Nfs, mount_options},
    plugin::{MountWork, Plugin, Prepared, Request, VolumePath},
    provision::PROVISIONER,
};

/// The annotation with a volume's provisioner. Volumes with our provisioner belong to the kubelet.
const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";

pub(crate) struct Claims;

impl Plugin for Claims {
    fn may_change(&self, volume: &Volume) -> bool {
        // Claims can be expanded.
        volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some()
    }

    fn prepare<'a>(&self, request: Request<'a>) -> Option<Prepared<'a>> {
        let volume = request.volume;
        let source = volume.persistent_volume_claim.as_ref();
        if source.is_none() && volume.ephemeral.is_none() {
            return None;
        }
        let read_only = source.is_some_and(|source| source.read_only == Some(true));
        Some(Box::pin(async move {
            let claim = claim_of(&request, volume).await?;
            let volume = volume_of(&request, &claim).await?;
            let spec = volume.spec.as_ref();
            if let Some(source) = spec.and_then(|spec| spec.csi.as_ref()) {
                return csi::prepare(request, &claim, &volume, source, read_only).await;
            }
            if let Some(source) = spec.and_then(|spec| spec.iscsi.as_ref()) {
                return iscsi::prepare_volume(&request, &volume, source, read_only).await;
            }
            mount_work(&request, &claim, &volume, read_only)
        }))
    }
}

/// Returns the Pod's claim if it is bound. The claim of an ephemeral volume must also be owned by this Pod.
async fn claim_of(request: &Request<'_>, volume: &Volume) -> Result<PersistentVolumeClaim, Error> {
    let pod = &request.pod.metadata;
    let pod_name = pod.name.as_deref().unwrap_or_default();
    let name = match &volume.persistent_volume_claim {
        Some(source) => source.claim_name.clone(),
        None => format!("{pod_name}-{}", volume.name),
    };
    let key = format!("{}/{name}", request.namespace());
    let (objects, resource) = (&request.volumes.objects, &Resource::PERSISTENT_VOLUME_CLAIMS);
    let claim: Option<PersistentVolumeClaim> =
        objects.get(resource, "persistentvolumeclaim", request.namespace(), &name).await?;
    let claim = claim.ok_or(ClaimError::Missing(name))?;
    let mut owners = claim.metadata.owner_references.iter().flatten();
    if volume.ephemeral.is_some()
        && !owners.any(|o| o.controller == Some(true) && Some(&o.uid) == pod.uid.as_ref())
    {
        let pod = format!("{}/{pod_name}", request.namespace());
        return Err(ClaimError::NotOwner { claim: key, pod }.into());
    }
    if claim.metadata.deletion_timestamp.is_some() {
        return Err(ClaimError::Deleting(key).into());
    }
    let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
    if phase != Some("Bound") {
        return Err(ClaimError::Unbound(key).into());
    }
    Ok(claim)
}

/// Returns the claim's volume. The volume must refer back to this claim, because a claim can name any volume.
async fn volume_of(
    request: &Request<'_>,
    claim: &PersistentVolumeClaim,
) -> Result<PersistentVolume, Error> {
    let key = || {
        let name = claim.metadata.name.as_deref().unwrap_or_default();
        format!("{}/{name}", request.namespace())
    };
    let name = claim.spec.as_ref().and_then(|spec| spec.volume_name.clone()).unwrap_or_default();
    if name.is_empty() {
        return Err(ClaimError::Unbound(key()).into());
    }
    let (objects, resource) = (&request.volumes.objects, &Resource::PERSISTENT_VOLUMES);
    let volume: Option<PersistentVolume> =
        objects.get(resource, "persistentvolume", "", &name).await?;
    let volume = volume.ok_or(Error::Missing { kind: "persistentvolume", name: name.clone() })?;
    let spec = volume.spec.as_ref();
    let refers = spec.and_then(|spec| spec.claim_ref.as_ref());
    let own = &claim.metadata;
    if !refers.is_some_and(|r| {
        r.uid.is_some() && (&r.uid, &r.namespace, &r.name) == (&own.uid, &own.namespace, &own.name)
    }) {
        return Err(ClaimError::NotItsVolume { volume: name, claim: key() }.into());
    }
    let required = spec.and_then(|s| s.node_affinity.as_ref()).and_then(|a| a.required.as_ref());
    let node = request.volumes.node.get();
    let no_labels = Default::default();
    let labels = node.as_ref().map_or(&no_labels, |node| node.labels());
    if !volume_reaches(required, &request.volumes.node_name, labels) {
        return Err(ClaimError::OtherNode(name).into());
    }
    Ok(volume)
}

fn mount_work(
    request: &Request<'_>,
    claim: &PersistentVolumeClaim,
    volume: &PersistentVolume,
    read_only: bool,
) -> Result<MountWork, Error> {
    let name = volume.metadata.name.clone().unwrap_or_default();
    let Some(spec) = &volume.spec else { return Err(ClaimError::Type(name).into()) };
    if let Some(source) = &spec.local {
        let local = local_volume(request, claim, volume, source, read_only)?;
        return Ok(Box::new(move |site| local.mount(site)));
    }
    if spec.volume_mode.as_deref() == Some("Block") {
        return Err(ClaimError::Block(name).into());
    }
    if let Some(source) = spec.host_path.clone() {
        return Ok(Box::new(move |_| {
            let VolumePath { path, .. } = host_path::mount(&source)?;
            Ok(VolumePath { read_only, ..VolumePath::new(path) })
        }));
    }
    let Some(source) = &spec.nfs else { return Err(ClaimError::Type(name).into()) };
    let nfs = Nfs::of_volume(volume, source, read_only)?;
    Ok(Box::new(move |site| nfs.mount(site)))
}

/// Reports whether a path is the entry `name` of a directory. The kubelet's directory may be mounted at two paths, and
/// volumes keep the path that they were created with.
fn is_entry_of(directory: &Path, name: &str, path: &Path) -> bool {
    let Some(parent) = path.parent() else { return false };
    path.file_name().is_some_and(|last| last == name)
        && (parent == directory || sys::is_same_file(parent, directory))
}

fn local_volume(
    request: &Request<'_>,
    claim: &PersistentVolumeClaim,
    volume: &PersistentVolume,
    source: &LocalVolumeSource,
    read_only: bool,
) -> Result<Local, Error> {
    let name = volume.metadata.name.clone().unwrap_or_default();
    let annotations = volume.metadata.annotations.as_ref();
    let provisioner = annotations.and_then(|all| all.get(PROVISIONED_BY));
    let is_own = provisioner.is_some_and(|name| name == PROVISIONER);
    let path = PathBuf::from(&source.path);
    let root = request.volumes.local_directory();
    let spec = volume.spec.as_ref();
    let block = spec.and_then(|spec| spec.volume_mode.as_deref()) == Some("Block");
    // The kubelet only creates volumes in its own directory of local volumes.
    let own = if is_own && is_entry_of(&root, &name, &path) {
        let limited = match source.fs_type.as_deref() {
            Some(FILE_SYSTEM) => true,
            None => block,
            Some(other) => {
                return Err(
                    ClaimError::FileSystem { volume: name, fs_type: other.to_owned() }.into()
                );
            }
        };
        let capacity = spec.and_then(|spec| spec.capacity.as_ref()?.get("storage"));
        let size = u64::try_from(capacity.map_or(0, whole)).unwrap_or_default();
        Some(OwnVolume {
            root,
            size: limited.then_some(size),
            mount_options: mount_options(volume),
            growth: Growth::of(claim, volume),
            drivers: request.volumes.drivers.clone(),
            events: request.volumes.events.clone(),
            reporter: GrowthReporter::of(request.volumes),
        })
    } else {
        None
    };
    let security = request.pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref());
    let policy = security.and_then(|context| context.fs_group_change_policy.as_deref());
    let keeps_matching_group = policy == Some("OnRootMismatch");
    let fs_type = source.fs_type.clone().filter(|fs_type| !fs_type.is_empty());
    let device = DeviceFileSystem {
        fs_type: fs_type.unwrap_or_else(|| FILE_SYSTEM.to_owned()),
        mount_options: mount_options(volume),
        root: request.volumes.local_directory(),
        drivers: request.volumes.drivers.clone(),
    };
    Ok(Local { volume: name, path, device, own, block, read_only, keeps_matching_group })
}
