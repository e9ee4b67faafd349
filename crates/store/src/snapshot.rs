//! Saving a store to one file and making a store from one, for offline commands.

use std::{fs::OpenOptions, io::ErrorKind, path::Path, sync::atomic::AtomicBool};

use crate::{
    Error, Result, Revision,
    disk::{Disk, RealDisk, RealFile},
    embedded::{Embedded, Index, create_segment, snapshot_file},
};

/// What a snapshot file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Snapshot {
    pub revision: Revision,
    pub keys: u64,
    /// The file's length.
    pub bytes: u64,
}

impl Snapshot {
    /// Saves the store as it is now to `path`. The file appears whole or not at all.
    pub fn save(store: &Embedded, path: &Path) -> Result<Self> {
        let io = |source| io("save the snapshot", path, source);
        let (Some(parent), Some(name)) =
            (path.parent(), path.file_name().and_then(|name| name.to_str()))
        else {
            return Err(io(std::io::Error::new(ErrorKind::InvalidInput, "not the path of a file")));
        };
        let disk = RealDisk::unlocked(parent).map_err(io)?;
        snapshot_file::write(&disk, name, &store.dump(), &AtomicBool::new(false)).map_err(io)?;
        Self::inspect(path)
    }

    /// Reads and checks a whole snapshot file.
    pub fn inspect(path: &Path) -> Result<Self> {
        Ok(read(path)?.0)
    }

    /// Makes a store in `directory`, which must be empty or absent, from the snapshot at `path`.
    ///
    /// The store's revision becomes the snapshot's plus `bump`. A bump beyond all that was written after
    /// the snapshot keeps clients that saw later revisions from mistaking new ones for those; older
    /// revisions are then compacted, so that they list again.
    pub fn restore(path: &Path, directory: &Path, bump: u64) -> Result<Self> {
        let (found, index) = read(path)?;
        let io = |source| io("restore the snapshot into", directory, source);
        let disk = RealDisk::open(directory).map_err(io)?;
        if !disk.list().map_err(io)?.is_empty() {
            let detail = "the directory is not empty; name one that is, or empty it";
            return Err(io(std::io::Error::new(ErrorKind::AlreadyExists, detail)));
        }
        let mut dump = index.dump();
        if bump > 0 {
            dump.bump(bump);
        }
        // Until both files are there, opening the directory reports that one is missing.
        create_segment(&disk, 1, dump.revision + 1, 0).map_err(|failure| failure.to_error())?;
        let name = snapshot_file::name(dump.revision);
        snapshot_file::write(&disk, &name, &dump, &AtomicBool::new(false)).map_err(io)?;
        Ok(Self { revision: dump.revision, ..found })
    }
}

fn read(path: &Path) -> Result<(Snapshot, Index)> {
    let open = |source| io("open the snapshot", path, source);
    let file = OpenOptions::new().read(true).open(path).map_err(open)?;
    let bytes = file.metadata().map_err(open)?.len();
    let index = snapshot_file::read(&RealFile(file), &path.display().to_string())?;
    let snapshot = Snapshot { revision: index.revision(), keys: index.live_keys(), bytes };
    Ok((snapshot, index))
}

fn io(operation: &'static str, path: &Path, source: std::io::Error) -> Error {
    Error::Io { operation, path: path.display().to_string(), source }
}
