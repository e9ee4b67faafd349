use std::path::Path;

use crate::Error;

/// How full a file system is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskUse {
    /// In bytes.
    pub capacity: u64,
    /// In bytes, for users other than root.
    pub available: u64,
    pub inodes: u64,
    pub inodes_free: u64,
}

impl DiskUse {
    /// Whole percents, rounded up; 0 for a file system that tells no capacity.
    pub fn used_percent(&self) -> u64 {
        let free = (self.available.min(self.capacity) * 100).checked_div(self.capacity);
        free.map_or(0, |free| 100 - free)
    }
}

/// The use of the file system that holds `path`.
pub fn disk_use(path: &Path) -> Result<DiskUse, Error> {
    let stat = nix::sys::statvfs::statvfs(path)
        .map_err(std::io::Error::from)
        .map_err(Error::at("statvfs", path))?;
    let block = stat.fragment_size();
    Ok(DiskUse {
        capacity: stat.blocks().saturating_mul(block),
        available: stat.blocks_available().saturating_mul(block),
        inodes: stat.files(),
        inodes_free: stat.files_available(),
    })
}

mod ioctl {
    // linux/fs.h: BLKRRPART takes no argument.
    nix::ioctl_none!(read_partitions_again, 0x12, 95);
}

/// Makes the kernel read a disk's partition table again; refused while a partition is in use.
pub fn read_partitions_again(disk: &std::fs::File) -> std::io::Result<()> {
    use std::os::fd::AsRawFd;
    // SAFETY: the descriptor is open for the time of the call, and the kernel reads and writes no memory of ours.
    #[expect(unsafe_code, reason = "see above")]
    let result = unsafe { ioctl::read_partitions_again(disk.as_raw_fd()) };
    result.map(|_| ()).map_err(std::io::Error::from)
}
