//! Checkpoint files: they record an allocation before it is used.

use std::{
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use pod_core::paths::DIRECTORY_MODE;
use tokio::sync::Mutex;

/// A checkpoint file. An older content never overwrites a newer one.
#[derive(Clone)]
pub(crate) struct Checkpoint {
    path: PathBuf,
    /// Serializes the writers.
    turn: Arc<Mutex<()>>,
}

impl Checkpoint {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, turn: Arc::default() }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the content of the file, or `None` if the file does not exist.
    pub(crate) fn read(&self) -> io::Result<Option<Vec<u8>>> {
        match fs::read(&self.path) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes the initial content and blocks until it is on the disk.
    pub(crate) fn begin(&self, content: &[u8]) -> io::Result<()> {
        replace(&self.path, content)
    }

    /// Writes the result of `content`, which is called once earlier writes have finished. The content is on the disk
    /// when this returns. If the caller stops waiting, the write still completes, and later writes wait for it.
    pub(crate) async fn write(&self, content: impl FnOnce() -> Vec<u8>) -> io::Result<()> {
        let turn = self.turn.clone().lock_owned().await;
        let (path, bytes) = (self.path.clone(), content());
        let write = move || {
            let _turn = turn;
            replace(&path, &bytes)
        };
        let ended = |_| io::Error::other("the write task panicked; see the kubelet's log");
        tokio::task::spawn_blocking(write).await.map_err(ended)?
    }
}

/// Replaces the content of a file atomically: a killed kubelet leaves either the old or the new content.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if let Some(directory) = path.parent() {
        sys::make_directories(directory, DIRECTORY_MODE)?;
    }
    let new = path.with_extension("new");
    let mut file = fs::File::create(&new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&new, path)
}
