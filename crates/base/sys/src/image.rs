//! Sparse image files of disks and volumes.

use std::{
    fs::{self, File},
    io,
    ops::Range,
    os::unix::fs::PermissionsExt as _,
    path::Path,
};

use rustix::{fs::SeekFrom, io::Errno};

use crate::error::Error;

/// Images have whole blocks of this size, in bytes.
pub const IMAGE_BLOCK: u64 = 4096;

/// The program and the arguments that create an ext4 file system, as upstream. The kernel initializes inode tables
/// later, so that a new file system in a sparse image takes almost no space.
pub const MAKE_EXT4: [&str; 5] =
    ["mkfs.ext4", "-F", "-m0", "-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard"];

/// Creates a sparse file of at least `size` bytes that only its owner may use, or extends it. It takes space only as
/// far as it is written.
pub fn grow_image(path: &Path, size: u64) -> Result<(), Error> {
    let open = || {
        let file = fs::OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
        file.set_permissions(fs::Permissions::from_mode(0o600))?;
        let size = size.next_multiple_of(IMAGE_BLOCK);
        if file.metadata()?.len() < size { file.set_len(size) } else { Ok(()) }
    };
    open().map_err(Error::at("set the size of", path))
}

/// Returns the parts of a file that hold data, in order. The rest reads as zeros.
pub fn data_ranges(file: &File) -> io::Result<Vec<Range<u64>>> {
    let (mut ranges, mut at) = (Vec::new(), 0);
    loop {
        let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            // No data follows.
            Err(Errno::NXIO) => return Ok(ranges),
            start => start?,
        };
        at = rustix::fs::seek(file, SeekFrom::Hole(start))?;
        ranges.push(start..at);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileExt as _, MetadataExt as _};

    use super::*;

    #[test]
    fn images_are_sparse_and_never_shrink() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        grow_image(&path, (1 << 30) + 1).unwrap();
        grow_image(&path, 1).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let meta = file.metadata().unwrap();
        assert_eq!((meta.len(), meta.mode() & 0o777), ((1 << 30) + IMAGE_BLOCK, 0o600));
        assert!(data_ranges(&file).unwrap().is_empty());
        let written = [5 * IMAGE_BLOCK, 1 << 29];
        for at in written {
            file.write_all_at(b"data", at).unwrap();
        }
        let ranges = data_ranges(&file).unwrap();
        for at in written {
            assert!(ranges.iter().any(|range| range.contains(&at)), "{ranges:?}");
        }
        let data: u64 = ranges.iter().map(|range| range.end - range.start).sum();
        assert!(data < 1 << 20, "{ranges:?}");
    }
}
