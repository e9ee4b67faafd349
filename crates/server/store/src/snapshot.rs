//! Saves a store to one file and creates a store from one, for offline commands.

use std::{
    fs::OpenOptions,
    io::ErrorKind,
    path::Path,
    sync::atomic::AtomicBool,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use crate::{
    copy::{Keyspace, everything},
    disk::{Disk, RealDisk, RealFile},
    embedded::{
        Embedded, create_segment,
        index::{Dump, Index},
        snapshot_file,
    },
    engine::Store,
    error::{Error, Result},
    key_value::Revision,
};

/// The contents of a snapshot file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The store's revision when it was saved.
    pub revision: Revision,
    /// The number of keys.
    pub keys: u64,
    /// The file's length.
    pub bytes: u64,
}

impl Snapshot {
    /// Saves the store's present state to `path`. The file appears whole or not at all.
    pub fn save(store: &Embedded, path: &Path) -> Result<Self> {
        write(&store.dump(), path)?;
        Self::inspect(path)
    }

    /// Saves the present state of any engine's store to `path`, in the same format. The time to live of expiring keys
    /// restarts.
    pub async fn save_from(
        store: &dyn Store,
        keyspace: Keyspace,
        path: &Path,
        now: SystemTime,
    ) -> Result<Self> {
        let found = store.range(everything(), 0, 0).await?;
        let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let items = found.items.into_iter().map(|item| {
            let ttl = keyspace.ttl(&item.key).map(Duration::from_secs);
            let expires = ttl.map_or(0, |ttl| (now + ttl).as_millis() as u64);
            (item, expires)
        });
        let dump = Dump::from_items(found.revision, items);
        let path = path.to_owned();
        let saved = tokio::task::spawn_blocking(move || {
            write(&dump, &path)?;
            Self::inspect(&path)
        });
        saved.await.unwrap_or_else(|error| {
            Err(Error::Unavailable { operation: "save a snapshot", detail: error.to_string() })
        })
    }

    /// Reads and verifies a whole snapshot file.
    pub fn inspect(path: &Path) -> Result<Self> {
        Ok(read(path)?.0)
    }

    /// Creates a store in `directory`, which must be empty or absent, from the snapshot at `path`.
    ///
    /// The store's revision becomes the snapshot's plus `bump`. Choose a bump larger than the number of writes after
    /// the snapshot. Then a client that saw later revisions never takes a new revision for one of those. Older
    /// revisions are compacted, so clients list again.
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
        // A crash in between is detected: opening a directory with only one of the two files fails.
        create_segment(&disk, 1, dump.revision + 1, 0).map_err(|failure| failure.to_error())?;
        let name = snapshot_file::name(dump.revision);
        snapshot_file::write(&disk, &name, &dump, &AtomicBool::new(false)).map_err(io)?;
        Ok(Self { revision: dump.revision, ..found })
    }
}

fn write(dump: &Dump, path: &Path) -> Result<()> {
    let io = |source| io("save the snapshot", path, source);
    let name = path.file_name().and_then(|name| name.to_str());
    let (Some(parent), Some(name)) = (path.parent(), name) else {
        return Err(io(std::io::Error::new(ErrorKind::InvalidInput, "not the path of a file")));
    };
    // A bare file name is in the current directory.
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let disk = RealDisk::unlocked(parent).map_err(io)?;
    snapshot_file::write(&disk, name, dump, &AtomicBool::new(false)).map_err(io)?;
    Ok(())
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
