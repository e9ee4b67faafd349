//! Mounts disks by the host's programs, and creates a file system on an empty one.

use crate::{error::Error, program::VolumePrograms};

/// The exit code of `blkid` for a device without a known content.
const EMPTY: i32 = 2;

/// The way to mount a disk.
#[derive(Clone, Debug)]
pub(crate) struct DiskMount<'a> {
    pub(crate) device: &'a str,
    pub(crate) at: &'a str,
    pub(crate) fs_type: &'a str,
    pub(crate) read_only: bool,
    pub(crate) options: &'a [String],
}

impl DiskMount<'_> {
    /// Mounts the disk. Creates a file system on an empty one, unless it is read-only.
    pub(crate) async fn run(&self, programs: &VolumePrograms) -> Result<(), Error> {
        let query = ["-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export", self.device];
        match programs.run("blkid", &query).await {
            Ok(_) if self.read_only => {}
            Ok(_) => self.check(programs).await,
            Err(error) if error.code() == Some(EMPTY) && !self.read_only => {
                self.make(programs).await?;
            }
            Err(error) => return Err(error.into()),
        }
        self.mount(programs).await
    }

    /// Mounts the file system that the disk has.
    pub(crate) async fn mount(&self, programs: &VolumePrograms) -> Result<(), Error> {
        let mode = if self.read_only { "ro" } else { "rw" };
        let options = self.options.iter().map(String::as_str).chain([mode, "defaults"]);
        let options = options.collect::<Vec<_>>().join(",");
        let arguments = ["-t", self.fs_type, "-o", &options, self.device, self.at];
        programs.run("mount", &arguments).await?;
        Ok(())
    }

    async fn make(&self, programs: &VolumePrograms) -> Result<(), Error> {
        let program = format!("mkfs.{}", self.fs_type);
        // As upstream: no blocks are reserved for root.
        let flags: &[&str] = match self.fs_type {
            "ext3" | "ext4" => &["-F", "-m0"],
            "xfs" => &["-f"],
            _ => &[],
        };
        programs.run(&program, &[flags, &[self.device]].concat()).await?;
        Ok(())
    }

    /// Repairs the file system, as upstream. The mount reports what cannot be repaired.
    pub(crate) async fn check(&self, programs: &VolumePrograms) {
        if let Err(error) = programs.run("fsck", &["-a", self.device]).await {
            tracing::warn!(device = self.device, %error, "check a file system");
        }
    }
}
