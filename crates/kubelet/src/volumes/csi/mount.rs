//! What a driver is asked for to give a volume to a Pod. All of this runs on a thread of its own.

use std::{path::Path, sync::Arc};

use client::{PatchKind, Patched, Resource};
use csi::{
    Capabilities,
    v1::{
        self, VolumeCapability,
        volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume, access_mode::Mode},
    },
};
use k8s_openapi::{
    api::{
        core::v1::{PersistentVolume, PersistentVolumeClaim},
        storage::v1::CSIDriverSpec,
    },
    apimachinery::pkg::api::resource::Quantity,
};
use pod_core::resources::whole;
use serde_json::{Value, json};

use super::{
    super::{At, Error, Site, ownership},
    Csi, Doing, Failed, Strings, Why,
    files::{EPHEMERAL, Held, Layout},
};

/// When the kubelet gives a volume to the Pod's group (`fsGroupPolicy`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GroupPolicy {
    ReadWriteOnceWithFsType,
    File,
    None,
}

impl GroupPolicy {
    pub(super) fn of(driver: Option<&CSIDriverSpec>) -> Self {
        match driver.and_then(|driver| driver.fs_group_policy.as_deref()) {
            Some("File") => Self::File,
            Some("None") => Self::None,
            _ => Self::ReadWriteOnceWithFsType,
        }
    }

    pub(super) fn gives(self, fs_type: &str, access_modes: &[String]) -> bool {
        let once = |mode: &String| matches!(mode.as_str(), "ReadWriteOnce" | "ReadWriteOncePod");
        match self {
            Self::File => true,
            Self::None => false,
            Self::ReadWriteOnceWithFsType => !fs_type.is_empty() && access_modes.iter().any(once),
        }
    }
}

/// A claim that has been given less than its volume holds by now.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Grow {
    namespace: String,
    claim: String,
    to: Quantity,
    bytes: i64,
    conditions: Vec<Value>,
}

/// What a claim says of its growth until the node has done its part.
const OF_GROWTH: [&str; 4] =
    ["Resizing", "FileSystemResizePending", "ControllerResizeError", "NodeResizeError"];

impl Grow {
    pub(super) fn of(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Option<Self> {
        let to = volume.spec.as_ref()?.capacity.as_ref()?.get("storage")?;
        let status = claim.status.as_ref()?;
        let has = status.capacity.as_ref()?.get("storage")?;
        let (to_bytes, has) = (whole(to), whole(has));
        let conditions = status.conditions.iter().flatten();
        let conditions = conditions.filter(|c| !OF_GROWTH.contains(&c.type_.as_str()));
        (to_bytes > has).then(|| Self {
            namespace: claim.metadata.namespace.clone().unwrap_or_default(),
            claim: claim.metadata.name.clone().unwrap_or_default(),
            to: to.clone(),
            bytes: to_bytes,
            conditions: conditions.map(|condition| json!(condition)).collect(),
        })
    }

    /// What the claim's status becomes.
    fn patch(&self) -> Value {
        json!({"status": {
            "capacity": {"storage": self.to.0},
            "conditions": self.conditions,
            "allocatedResourceStatuses": {"storage": null},
        }})
    }
}

/// One volume for one Pod, with all that the driver is to be told.
pub(super) struct Mount {
    pub(super) csi: Arc<Csi>,
    pub(super) runtime: tokio::runtime::Handle,
    pub(super) api: Option<client::Client>,
    pub(super) events: crate::events::Events,
    pub(super) layout: Layout,
    pub(super) client: csi::Driver,
    /// Kept until the driver has answered.
    pub(super) seat: tokio::sync::OwnedSemaphorePermit,
    pub(super) stage_secrets: Strings,
    pub(super) publish_secrets: Strings,
    pub(super) expand_secrets: Strings,
    pub(super) publish_context: Strings,
    pub(super) stage_attributes: Strings,
    pub(super) publish_attributes: Strings,
    /// The volume's name in a Node's status.
    pub(super) name: String,
    pub(super) held: Held,
    pub(super) read_only: bool,
    pub(super) fs_type: String,
    pub(super) access_modes: Vec<String>,
    pub(super) mount_flags: Vec<String>,
    pub(super) group: Option<u32>,
    pub(super) group_policy: GroupPolicy,
    pub(super) keeps_matching_group: bool,
    /// The driver wants to be asked again while the Pod runs.
    pub(super) republish: bool,
    pub(super) grow: Option<Grow>,
}

impl Mount {
    pub(super) fn set_up(self, site: &Site) -> Result<At, Error> {
        let runtime = self.runtime.clone();
        let done = runtime.block_on(self.bring_about(site));
        let volume = &self.held.record.spec_name;
        done.map_err(|(doing, why)| Box::new(Failed { doing, volume: volume.clone(), why }))?;
        drop(self.seat);
        if !self.held.block {
            return Ok(At { read_only: self.read_only, ..At::new(self.held.target) });
        }
        // A runtime takes the device itself, not what leads to it.
        let device = std::fs::canonicalize(&self.held.in_pod)
            .map_err(Error::file("follow the link", &self.held.in_pod))?;
        Ok(At { read_only: self.read_only, block: true, ..At::new(device) })
    }

    async fn bring_about(&self, site: &Site) -> Result<(), (Doing, Why)> {
        let _turn = self.csi.turn(&self.name).await;
        let is_new = !self.csi.is_published(&self.name, &self.held.target);
        if !is_new && !self.republish && self.grow.is_none() {
            return Ok(());
        }
        let (stage, publish) = (Doing::stage(self.held.block), Doing::set_up(self.held.block));
        let can = self.client.capabilities().await.map_err(|error| (publish, error.into()))?;
        let stages = can.stage && self.held.record.lifecycle != EPHEMERAL;
        if is_new && stages {
            self.stage(&can).await.map_err(|why| (stage, why))?;
        }
        if is_new || self.republish {
            self.publish(&can, stages, is_new).await.map_err(|why| (publish, why))?;
        }
        if is_new {
            self.give_to_group(&can, site).map_err(|why| (publish, why))?;
            self.csi.set_published(&self.name, self.held.target.clone(), true);
        }
        match &self.grow {
            Some(grow) => self.expand(grow, &can, stages, site).await,
            None => Ok(()),
        }
        .map_err(|why| (Doing::Expand, why))
    }

    fn capability(&self, can: &Capabilities) -> VolumeCapability {
        let mode = access_mode(self.access_modes.first(), can.single_node_multi_writer);
        let access_type = match self.held.block {
            true => AccessType::Block(BlockVolume {}),
            false => AccessType::Mount(MountVolume {
                fs_type: self.fs_type.clone(),
                mount_flags: self.mount_flags.clone(),
                volume_mount_group: self
                    .group
                    .filter(|_| can.mount_group)
                    .map(|group| group.to_string())
                    .unwrap_or_default(),
            }),
        };
        VolumeCapability {
            access_mode: Some(AccessMode { mode: mode.into() }),
            access_type: Some(access_type),
        }
    }

    async fn stage(&self, can: &Capabilities) -> Result<(), Why> {
        let at = self.layout.remember_staged(&self.held)?;
        self.csi.set_staged(&self.name, true);
        let request = v1::NodeStageVolumeRequest {
            volume_id: self.held.record.handle.clone(),
            publish_context: map(&self.publish_context),
            staging_target_path: text(&at),
            volume_capability: Some(self.capability(can)),
            secrets: map(&self.stage_secrets),
            volume_context: map(&self.stage_attributes),
        };
        let asked = self.client.stage(request).await;
        if asked.as_ref().is_err_and(csi::Error::is_final) {
            // Nothing is staged for this Pod; another's was before, and then the driver did not refuse.
            drop(self.layout.forget_staged(&self.held));
            self.csi.set_staged(&self.name, false);
        }
        Ok(asked?)
    }

    async fn publish(&self, can: &Capabilities, staged: bool, is_new: bool) -> Result<(), Why> {
        if is_new {
            self.layout.remember(&self.held)?;
        }
        let (at, _) = self.layout.staging(&self.held.record, self.held.block);
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
        let asked = self.client.publish(request).await;
        if is_new && asked.as_ref().is_err_and(csi::Error::is_final) {
            drop(self.layout.forget(&self.held));
        }
        Ok(asked?)
    }

    fn give_to_group(&self, can: &Capabilities, site: &Site) -> Result<(), Why> {
        let gives = self.group_policy.gives(&self.fs_type, &self.access_modes);
        let Some(group) = self.group.filter(|_| gives && !self.read_only && !can.mount_group)
        else {
            return Ok(());
        };
        let target = &self.held.target;
        // What a driver left without a mount there is the node's own disk.
        let is_there = !self.held.block && site.mounts.is_mount_point(target)?;
        if !is_there || self.keeps_matching_group && ownership::has_group(target, group) {
            return Ok(());
        }
        let (Some(parent), Some(name)) = (target.parent(), target.file_name()) else {
            return Ok(());
        };
        let held = sys::hold_beneath(parent, Path::new(name))?;
        Ok(sys::give_tree(&held, group, target)?)
    }

    /// The node's part of a volume's growth, and the word of it to its claim.
    async fn expand(
        &self,
        grow: &Grow,
        can: &Capabilities,
        staged: bool,
        site: &Site,
    ) -> Result<(), Why> {
        if can.expand {
            let (at, _) = self.layout.staging(&self.held.record, self.held.block);
            let request = v1::NodeExpandVolumeRequest {
                volume_id: self.held.record.handle.clone(),
                volume_path: text(&self.held.target),
                capacity_range: Some(v1::CapacityRange {
                    required_bytes: grow.bytes,
                    limit_bytes: 0,
                }),
                staging_target_path: if staged { text(&at) } else { String::new() },
                volume_capability: Some(self.capability(can)),
                secrets: map(&self.expand_secrets),
            };
            self.client.expand(request).await?;
        }
        let Some(api) = &self.api else { return Ok(()) };
        let at = Patched { namespace: &grow.namespace, name: &grow.claim, subresource: "status" };
        let resource = &Resource::PERSISTENT_VOLUME_CLAIMS;
        api.patch::<Value>(resource, at, PatchKind::Merge, &grow.patch()).await?;
        let volume = &self.held.record.spec_name;
        let told = format!("MountVolume.NodeExpandVolume succeeded for volume {volume:?}");
        self.events.normal(&site.pod, "FileSystemResizeSuccessful", told);
        Ok(())
    }
}

/// A driver that does not tell one Pod from one node is told of the node alone.
pub(super) fn access_mode(mode: Option<&String>, tells_pods: bool) -> Mode {
    match (mode.map_or("ReadWriteOnce", String::as_str), tells_pods) {
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
