//! Calls a driver to stage, publish and expand a volume for a Pod. All of this runs in a thread of its own.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use csi::{
    Capabilities,
    v1::{
        self, VolumeCapability,
        volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume, access_mode::Mode},
    },
};
use k8s_openapi::api::storage::v1::CSIDriverSpec;

use super::files::{EPHEMERAL, Layout, PodVolume};
use crate::{
    drivers::{AcquiredDriver, Drivers},
    error::{Cause, CsiError, Error, VolumeStep},
    growth::{Growth, GrowthReporter},
    ownership,
    plugin::{Site, VolumePath},
};

pub(crate) type Strings = BTreeMap<String, String>;

/// The driver's `fsGroupPolicy`: when the kubelet changes the group of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GroupPolicy {
    ReadWriteOnceWithFsType,
    File,
    None,
}

impl GroupPolicy {
    pub(crate) fn of(driver: Option<&CSIDriverSpec>) -> Self {
        match driver.and_then(|driver| driver.fs_group_policy.as_deref()) {
            Some("File") => Self::File,
            Some("None") => Self::None,
            _ => Self::ReadWriteOnceWithFsType,
        }
    }

    pub(crate) fn sets_group(self, fs_type: &str, access_modes: &[String]) -> bool {
        let once = |mode: &String| matches!(mode.as_str(), "ReadWriteOnce" | "ReadWriteOncePod");
        match self {
            Self::File => true,
            Self::None => false,
            Self::ReadWriteOnceWithFsType => !fs_type.is_empty() && access_modes.iter().any(once),
        }
    }
}

/// A volume for a Pod, with everything that the driver needs.
pub(crate) struct MountJob {
    pub(crate) drivers: Arc<Drivers>,
    pub(crate) runtime: tokio::runtime::Handle,
    pub(crate) reporter: GrowthReporter,
    pub(crate) layout: Layout,
    /// The driver, held until it has answered.
    pub(crate) acquired: AcquiredDriver,
    pub(crate) stage_secrets: Strings,
    pub(crate) publish_secrets: Strings,
    pub(crate) expand_secrets: Strings,
    pub(crate) publish_context: Strings,
    pub(crate) stage_attributes: Strings,
    pub(crate) publish_attributes: Strings,
    /// The volume's name in a Node's status.
    pub(crate) name: String,
    pub(crate) held: PodVolume,
    pub(crate) read_only: bool,
    pub(crate) fs_type: String,
    pub(crate) access_modes: Vec<String>,
    pub(crate) mount_flags: Vec<String>,
    pub(crate) group: Option<u32>,
    pub(crate) group_policy: GroupPolicy,
    pub(crate) keeps_matching_group: bool,
    /// `true` if the driver is called periodically while the Pod runs.
    pub(crate) republish: bool,
    pub(crate) growth: Option<Growth>,
}

impl MountJob {
    pub(crate) fn mount(self, site: &Site) -> Result<VolumePath, Error> {
        let runtime = self.runtime.clone();
        runtime.block_on(self.stage_and_publish(site))?;
        drop(self.acquired);
        let read_only = self.read_only;
        if !self.held.block {
            return Ok(VolumePath { read_only, ..VolumePath::new(self.held.target) });
        }
        // The runtime needs the device itself and not the link to it.
        let device = std::fs::canonicalize(&self.held.in_pod)
            .map_err(Error::file("follow the link", &self.held.in_pod))?;
        Ok(VolumePath { read_only, block: true, ..VolumePath::new(device) })
    }

    async fn stage_and_publish(&self, site: &Site) -> Result<(), Box<CsiError>> {
        let _turn = self.drivers.lock_volume(&self.name).await;
        let is_new = !self.drivers.is_published(&self.name, &self.held.target);
        if !is_new && !self.republish && self.growth.is_none() {
            return Ok(());
        }
        let (stage, publish) =
            (VolumeStep::stage(self.held.block), VolumeStep::publish(self.held.block));
        if is_new {
            self.check_exclusive().map_err(|cause| self.failed(publish, cause))?;
        }
        let can = self.acquired.driver.capabilities().await;
        let can = can.map_err(|error| self.failed(publish, error.into()))?;
        let stages = can.stage && self.held.record.lifecycle != EPHEMERAL;
        if is_new && stages {
            self.stage(&can).await.map_err(|cause| self.failed(stage, cause))?;
        }
        if is_new || self.republish {
            let published = self.publish(&can, stages, is_new).await;
            published.map_err(|cause| self.failed(publish, cause))?;
        }
        if is_new {
            self.set_group(&can, site).map_err(|cause| self.failed(publish, cause))?;
            self.drivers.set_published(&self.name, self.held.target.clone(), true);
        }
        let Some(growth) = &self.growth else { return Ok(()) };
        let expanded = self.expand(growth, &can, stages, site).await;
        expanded.map_err(|cause| self.failed(VolumeStep::Expand, cause))
    }

    /// Returns an error if the volume is for one Pod, and another Pod of this node has it. The scheduler prevents that,
    /// but a Pod may name its node.
    fn check_exclusive(&self) -> Result<(), Cause> {
        if !self.access_modes.iter().any(|mode| mode == "ReadWriteOncePod") {
            return Ok(());
        }
        let is_other = |held: &PodVolume| {
            held.record.unique_name() == self.held.record.unique_name()
                && held.target != self.held.target
        };
        if self.layout.of_all_pods()?.iter().any(is_other) { Err(Cause::InUse) } else { Ok(()) }
    }

    fn failed(&self, step: VolumeStep, cause: Cause) -> Box<CsiError> {
        Box::new(CsiError { step, volume: self.held.record.spec_name.clone(), cause })
    }

    fn capability(&self, can: &Capabilities) -> VolumeCapability {
        let mode = access_mode(self.access_modes.first(), can.single_node_multi_writer);
        let access_type = if self.held.block {
            AccessType::Block(BlockVolume {})
        } else {
            AccessType::Mount(MountVolume {
                fs_type: self.fs_type.clone(),
                mount_flags: self.mount_flags.clone(),
                volume_mount_group: self
                    .group
                    .filter(|_| can.mount_group)
                    .map(|group| group.to_string())
                    .unwrap_or_default(),
            })
        };
        VolumeCapability {
            access_mode: Some(AccessMode { mode: mode.into() }),
            access_type: Some(access_type),
        }
    }

    async fn stage(&self, can: &Capabilities) -> Result<(), Cause> {
        let at = self.layout.record_staged(&self.held)?;
        self.drivers.set_staged(&self.name, true);
        let request = v1::NodeStageVolumeRequest {
            volume_id: self.held.record.handle.clone(),
            publish_context: map(&self.publish_context),
            staging_target_path: text(&at),
            volume_capability: Some(self.capability(can)),
            secrets: map(&self.stage_secrets),
            volume_context: map(&self.stage_attributes),
        };
        let result = self.acquired.driver.stage(request).await;
        if result.as_ref().is_err_and(csi::Error::is_final) {
            // This call staged nothing. If an earlier call for another Pod had staged the volume, the driver would not
            // have refused.
            drop(self.layout.remove_staged_record(&self.held));
            self.drivers.set_staged(&self.name, false);
        }
        Ok(result?)
    }

    async fn publish(&self, can: &Capabilities, staged: bool, is_new: bool) -> Result<(), Cause> {
        if is_new {
            self.layout.record(&self.held)?;
        }
        let (at, _) = self.layout.staging_paths(&self.held.record, self.held.block);
        let request = v1::NodePublishVolumeRequest {
            volume_id: self.held.record.handle.clone(),
            publish_context: map(&self.publish_context),
            staging_target_path: if staged { text(&at) } else { String::new() },
            target_path: text(&self.held.target),
            volume_capability: Some(self.capability(can)),
            readonly: self.read_only,
            secrets: map(&self.publish_secrets),
            volume_context: map(&self.publish_attributes),
        };
        let result = self.acquired.driver.publish(request).await;
        if is_new && result.as_ref().is_err_and(csi::Error::is_final) {
            drop(self.layout.remove_record(&self.held));
        }
        Ok(result?)
    }

    fn set_group(&self, can: &Capabilities, site: &Site) -> Result<(), Cause> {
        let gives = self.group_policy.sets_group(&self.fs_type, &self.access_modes);
        let Some(group) = self.group.filter(|_| gives && !self.read_only && !can.mount_group)
        else {
            return Ok(());
        };
        let target = &self.held.target;
        // If the driver mounted nothing at the target, that is a directory of the node's own disk.
        let is_mounted = !self.held.block && site.mounts.is_mount_point(target)?;
        if !is_mounted || self.keeps_matching_group && ownership::has_group(target, group) {
            return Ok(());
        }
        let (Some(parent), Some(name)) = (target.parent(), target.file_name()) else {
            return Ok(());
        };
        let held = sys::hold_beneath(parent, Path::new(name))?;
        Ok(sys::give_tree(&held, group, target)?)
    }

    /// Expands the volume on the node and updates the claim's status.
    async fn expand(
        &self,
        growth: &Growth,
        can: &Capabilities,
        staged: bool,
        site: &Site,
    ) -> Result<(), Cause> {
        if can.expand {
            self.reporter.start(growth).await?;
            let (at, _) = self.layout.staging_paths(&self.held.record, self.held.block);
            let request = v1::NodeExpandVolumeRequest {
                volume_id: self.held.record.handle.clone(),
                volume_path: text(&self.held.target),
                capacity_range: Some(v1::CapacityRange {
                    required_bytes: growth.bytes,
                    limit_bytes: 0,
                }),
                staging_target_path: if staged { text(&at) } else { String::new() },
                volume_capability: Some(self.capability(can)),
                secrets: map(&self.expand_secrets),
            };
            if let Err(error) = self.acquired.driver.expand(request).await {
                self.reporter.fail(growth, &error, site.now).await?;
                return Err(error.into());
            }
        }
        Ok(self.reporter.report(growth, &site.pod, &self.held.record.spec_name).await?)
    }
}

/// Returns the access mode for the driver. Without the SINGLE_NODE_MULTI_WRITER capability, ReadWriteOncePod is not
/// distinct from ReadWriteOnce.
pub(crate) fn access_mode(mode: Option<&String>, distinguishes_pods: bool) -> Mode {
    match (mode.map_or("ReadWriteOnce", String::as_str), distinguishes_pods) {
        ("ReadWriteOnce", true) => Mode::SingleNodeMultiWriter,
        ("ReadWriteOncePod", true) => Mode::SingleNodeSingleWriter,
        ("ReadWriteOnce" | "ReadWriteOncePod", false) => Mode::SingleNodeWriter,
        ("ReadOnlyMany", _) => Mode::MultiNodeReaderOnly,
        ("ReadWriteMany", _) => Mode::MultiNodeMultiWriter,
        _ => Mode::Unknown,
    }
}

fn map(from: &Strings) -> std::collections::HashMap<String, String> {
    from.iter().map(|(key, value)| (key.clone(), value.clone())).collect()
}

fn text(path: &Path) -> String {
    path.display().to_string()
}
