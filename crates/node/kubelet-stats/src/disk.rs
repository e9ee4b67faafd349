//! The disk usage of files and directories.

use std::{fs, os::unix::fs::MetadataExt, path::Path};

/// The disk usage of a file or a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileUsage {
    /// The occupied bytes.
    pub bytes: u64,
    /// The occupied inodes.
    pub inodes: u64,
}

/// Returns the disk usage of one file, or zero if the file does not exist.
pub fn file_usage(path: &Path) -> FileUsage {
    let meta = fs::symlink_metadata(path);
    meta.map_or_else(
        |_| FileUsage::default(),
        |meta| FileUsage { bytes: meta.blocks() * 512, inodes: 1 },
    )
}

/// Returns the disk usage of the files below a directory. Files that disappear meanwhile count nothing.
pub fn disk_usage(directory: &Path) -> FileUsage {
    let mut usage = FileUsage::default();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let Ok(meta) = entry.metadata() else { continue };
        let below = if meta.is_dir() { disk_usage(&entry.path()) } else { FileUsage::default() };
        usage.bytes += meta.blocks() * 512 + below.bytes;
        usage.inodes += 1 + below.inodes;
    }
    usage
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_files_below_directory_and_no_link_targets() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("below")).unwrap();
        fs::write(dir.path().join("below/file"), vec![1; 100_000]).unwrap();
        std::os::unix::fs::symlink("/usr", dir.path().join("link")).unwrap();
        let size = disk_usage(dir.path()).bytes;
        assert!((100_000..200_000).contains(&size), "{size}");
    }
}
