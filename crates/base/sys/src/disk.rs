use std::path::Path;

use crate::error::Error;

/// The usage of a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskUse {
    /// The capacity, in bytes.
    pub capacity: u64,
    /// The free space for users other than root, in bytes.
    pub available: u64,
    /// The number of inodes.
    pub inodes: u64,
    /// The number of free inodes.
    pub inodes_free: u64,
}

impl DiskUse {
    /// Returns the used share in percent, rounded up; 0 for a file system without a capacity.
    pub fn used_percent(&self) -> u64 {
        let free = (self.available.min(self.capacity) * 100).checked_div(self.capacity);
        free.map_or(0, |free| 100 - free)
    }
}

/// Returns the usage of the file system that contains `path`.
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

/// Makes the kernel read a disk's partition table again. This fails while a partition is in use.
pub fn read_partitions_again(disk: &std::fs::File) -> std::io::Result<()> {
    use std::os::fd::AsRawFd;
    // SAFETY: the descriptor is open during the call, and the kernel accesses no memory of this process.
    #[expect(unsafe_code, reason = "see above")]
    let result = unsafe { ioctl::read_partitions_again(disk.as_raw_fd()) };
    result.map(|_| ()).map_err(std::io::Error::from)
}
