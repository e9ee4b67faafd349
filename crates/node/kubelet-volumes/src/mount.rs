//! Mounts and unmounts all volumes of a Pod. Each type of volume is listed in [`PLUGINS`].

use std::{collections::BTreeMap, path::Path, sync::Arc};

use k8s_openapi::api::core::v1::{Pod, Volume};
use pod_core::fields::NodeFacts;
use sys::mount::Mounts;

use crate::{
    claim, config_map, csi, downward_api, empty_dir,
    error::{Error, MountError},
    host_path, iscsi, nfs,
    operations::EarlierResult,
    plugin::{Plugin, Request, Site, VolumePath},
    projected, secret,
    token::Tokens,
    volumes::Volumes,
};

/// The paths of a Pod's volumes by volume name.
#[derive(Clone, Debug, Default)]
pub struct MountedVolumes(BTreeMap<String, VolumePath>);

impl MountedVolumes {
    /// Returns the path of a volume, if the Pod has it.
    pub fn path(&self, name: &str) -> Option<&VolumePath> {
        self.0.get(name)
    }
}

const PLUGINS: [&dyn Plugin; 10] = [
    &empty_dir::EmptyDir,
    &host_path::HostPath,
    &config_map::ConfigMaps,
    &secret::Secrets,
    &projected::Projected,
    &downward_api::DownwardApi,
    &claim::Claims,
    &csi::Inline,
    &nfs::Inline,
    &iscsi::Inline,
];

fn may_change_one(volume: &Volume) -> bool {
    PLUGINS.iter().any(|plugin| plugin.may_change(volume))
}

impl Volumes {
    /// Mounts or updates all volumes of a Pod, except for images, which the container runtime mounts. Tries all of them
    /// and returns the first error.
    pub async fn mount<'a>(
        &'a self,
        pod: &'a Arc<Pod>,
        node: &'a (dyn Fn() -> NodeFacts<'a> + Sync),
        tokens: &'a Tokens,
    ) -> Result<MountedVolumes, MountError> {
        let mut mounted = Ok(MountedVolumes::default());
        let volumes = pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
        for volume in volumes.filter(|volume| volume.image.is_none()) {
            let request = Request { volumes: self, pod, volume, node, tokens };
            match (self.mount_one(pod, request).await, &mut mounted) {
                (Ok(at), Ok(mounted)) => drop(mounted.0.insert(volume.name.clone(), at)),
                (Err(source), Ok(_)) => {
                    mounted = Err(MountError { volume: volume.name.clone(), source });
                }
                (_, Err(_)) => {}
            }
        }
        mounted
    }

    async fn mount_one(&self, pod: &Arc<Pod>, request: Request<'_>) -> Result<VolumePath, Error> {
        let volume = request.volume;
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        self.space.add(uid, &volume.name)?;
        let prepared = PLUGINS.iter().find_map(|plugin| plugin.prepare(request));
        let work = prepared.ok_or(Error::Unsupported)?.await?;
        let site = Site {
            pod: pod.clone(),
            space: self.space.clone(),
            pod_dir: self.pod_dir(uid),
            volume: volume.name.clone(),
            mounts: self.mounts.clone(),
            now: self.now(),
            programs: self.programs.clone(),
            runtime: tokio::runtime::Handle::current(),
        };
        let earlier =
            if may_change_one(volume) { EarlierResult::Discard } else { EarlierResult::Reuse };
        self.operations.run((uid, &volume.name), earlier, move || work(&site)).await?
    }

    /// Unmounts and removes the Pod's directory with its volumes. Logs are not in it.
    pub async fn unmount(&self, uid: &str) -> Result<(), Error> {
        // A running mount would create the directory again.
        self.operations.wait_idle(uid).await?;
        self.certificates.forget(uid);
        iscsi::unmount(self, uid).await?;
        // Drivers unmount their own volumes. After that, the Pod is no user of any volume.
        csi::unmount(self, uid).await?;
        let (dir, mounts) = (self.pod_dir(uid), self.mounts.clone());
        self.operations
            .run((uid, ""), EarlierResult::Discard, move || remove(&dir, mounts.as_ref()))
            .await??;
        self.space.release(uid);
        Ok(())
    }
}

/// Reports whether any volume's content can change while the Pod runs.
pub fn may_change(pod: &Pod) -> bool {
    pod.spec.iter().flat_map(|s| s.volumes.iter().flatten()).any(may_change_one)
}

fn remove(dir: &Path, mounts: &dyn Mounts) -> Result<(), Error> {
    mounts.unmount_below(dir)?;
    // If a mount remained, the removal would delete the mounted content.
    if !mounts.below(dir)?.is_empty() {
        let busy = std::io::Error::from(std::io::ErrorKind::ResourceBusy);
        return Err(Error::file("unmount everything below", dir)(busy));
    }
    match std::fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::file("remove", dir)(error))
        }
        _ => Ok(()),
    }
}
