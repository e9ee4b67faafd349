//! Attaches volumes: image files of the fleet's directory, which machines get as block devices.
//!
//! Invariants:
//! - An image has one device at a time, which one machine knows. The device has no name in `/dev`, which all machines
//!   share. The keeper detaches it after all processes of the machine have ended, and attaches it again to the next.
//! - A missing image is created again, and is blank. The machine decides whether it uses a blank volume.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use sys::HostPrograms;
use tokio::time::{Instant, sleep};

use crate::{
    error::Error,
    fleet::{Fleet, FleetSpec},
    process::END_TIMEOUT,
    volume::{AttachedVolume, Volume},
};

const POLL: Duration = Duration::from_millis(50);
const GIB: u64 = 1 << 30;

impl Fleet {
    /// Returns the path of a volume's image.
    pub fn image(&self, volume: &Volume) -> PathBuf {
        self.volumes(&volume.machine).join(format!("{}.img", volume.id))
    }

    /// Returns a path by which this host sees the mounted volume inside its machine; `None` if the machine does not
    /// run. The machine may not have mounted the volume yet.
    pub fn mounted_volume(&self, machine: &str, volume: &AttachedVolume) -> Option<PathBuf> {
        let pid = self.running(machine)?;
        let below = volume.mount_point();
        let below = below.strip_prefix("/").unwrap_or(&below);
        Some(Path::new(&format!("/proc/{pid}/root")).join(below))
    }
}

/// Attaches the volumes of a machine. Fails if one is attached already: its last machine has not ended.
pub(crate) fn attach(
    fleet: &Fleet,
    spec: &FleetSpec,
    machine: &str,
) -> Result<Vec<AttachedVolume>, Error> {
    let own = spec.volumes.iter().filter(|volume| volume.machine == machine);
    own.map(|volume| {
        let image = fleet.image(volume);
        let directory = fleet.volumes(machine);
        fs::create_dir_all(&directory).map_err(sys::Error::at("creating", &directory))?;
        sys::grow_image(&image, volume.size.saturating_mul(GIB))?;
        let failed = |source| Error::Volume { volume: volume.id.clone(), source };
        let device = sys::attach_image(&image, &HostPrograms).map_err(failed)?;
        tracing::info!(machine, volume = volume.id, device, "attached a volume");
        Ok(AttachedVolume { id: volume.id.clone(), tags: volume.tags.clone(), device })
    })
    .collect()
}

/// Detaches all volumes in a directory, whose users have ended, and waits until the kernel has written them.
pub(crate) async fn detach(directory: PathBuf) -> Result<(), Error> {
    let start = Instant::now();
    let mut used = BTreeSet::new();
    loop {
        let below = directory.clone();
        let work = move || sys::detach_images(&below, &HostPrograms);
        let failed = |source| Error::Volume { volume: directory.display().to_string(), source };
        let left = tokio::task::spawn_blocking(work).await?.map_err(failed)?;
        used.extend(left.iter().map(|device| device.number));
        let Some(device) = left.into_iter().next() else {
            return Ok(used.into_iter().try_for_each(sys::remove_loop_device)?);
        };
        if start.elapsed() > END_TIMEOUT {
            return Err(Error::VolumeInUse { image: device.image, device: device.number });
        }
        sleep(POLL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::Machine;

    fn fleet(dir: &Path) -> (Fleet, FleetSpec) {
        let volume = |id: &str, machine: &str| Volume {
            id: id.to_owned(),
            machine: machine.to_owned(),
            size: 1,
            tags: [("k8s.io/etcd/main".to_owned(), format!("{id}/a,b"))].into(),
        };
        let volumes = vec![volume("a", "cp-a-1"), volume("b", "cp-b-1")];
        (Fleet::at(dir), FleetSpec { volumes, ..FleetSpec::default() })
    }

    #[tokio::test]
    async fn a_volume_is_attached_to_one_machine_at_a_time() {
        if !nix::unistd::geteuid().is_root() || !Path::new("/dev/loop-control").exists() {
            eprintln!("skipped: only root attaches loop devices");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let (fleet, spec) = fleet(dir.path());
        assert_eq!(attach(&fleet, &spec, "nodes-1").unwrap(), []);
        let first = attach(&fleet, &spec, "cp-a-1").unwrap();
        let ids: Vec<_> = first.iter().map(|volume| volume.id.as_str()).collect();
        assert_eq!(ids, ["a"]);
        assert_eq!(first[0].tags["k8s.io/etcd/main"], "a/a,b");
        let image = fleet.image(&spec.volumes[0]);
        assert_eq!(fs::metadata(&image).unwrap().len(), GIB);
        let error = attach(&fleet, &spec, "cp-a-1").unwrap_err().to_string();
        assert!(error.contains("attached") && error.contains("a.img"), "{error}");
        let other = attach(&fleet, &spec, "cp-b-1").unwrap();
        assert_ne!(other[0].device, first[0].device);
        detach(fleet.volumes("cp-a-1")).await.unwrap();
        let again = attach(&fleet, &spec, "cp-a-1").unwrap();
        assert_eq!(again.len(), 1);
        detach(dir.path().join("volumes")).await.unwrap();
        assert_eq!(sys::attached_images(dir.path()).unwrap(), []);
    }

    #[test]
    fn documents_of_earlier_versions_have_no_volumes() {
        let text = r#"{"cluster": "c", "link": "", "groups": [], "addresses": {}, "secret": [], "companions": []}"#;
        let spec: FleetSpec = serde_json::from_str(text).unwrap();
        assert_eq!(spec.volumes, []);
        let (_, spec) = fleet(Path::new("/x"));
        let written = serde_json::to_string(&spec).unwrap();
        assert_eq!(serde_json::from_str::<FleetSpec>(&written).unwrap(), spec);
        let unknown = r#"{"id": "a", "machine": "m", "size": 1, "tags": {}, "x": 1}"#;
        assert!(serde_json::from_str::<Volume>(unknown).is_err());
        let machine = r#"{"cluster": "c", "group": "cp", "name": "cp-1", "id": "x", "made": 1, "address": "10.0.0.2",
            "gateway": "10.0.0.1", "cgroup": "", "trusted": true, "userData": ""}"#;
        assert_eq!(serde_json::from_str::<Machine>(machine).unwrap().volumes, []);
    }
}
