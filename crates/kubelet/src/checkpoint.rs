//! Files in which a kubelet writes down what it has given away, before it is used.

use std::{
    fs, io,
    io::Write as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use tokio::sync::Mutex;

use crate::volumes::DIRECTORY_MODE;

/// One such file. A later content is never overwritten by an earlier one.
#[derive(Clone)]
pub(crate) struct Checkpoint {
    path: PathBuf,
    /// Whoever writes.
    turn: Arc<Mutex<()>>,
}

impl Checkpoint {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, turn: Arc::default() }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// What stands in the file, `None` where there is none.
    pub(crate) fn read(&self) -> io::Result<Option<Vec<u8>>> {
        match fs::read(&self.path) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes the first content, before anything else goes on.
    pub(crate) fn begin(&self, content: &[u8]) -> io::Result<()> {
        replace(&self.path, content)
    }

    /// Writes what `content` says when its turn has come; the disk has it when this returns. A write goes on when nobody
    /// waits for it any more, and later ones wait for it.
    pub(crate) async fn write(&self, content: impl FnOnce() -> Vec<u8>) -> io::Result<()> {
        let turn = self.turn.clone().lock_owned().await;
        let (path, bytes) = (self.path.clone(), content());
        let write = move || {
            let _turn = turn;
            replace(&path, &bytes)
        };
        let ended = |_| io::Error::other("it ended without a result; the kubelet's log says why");
        tokio::task::spawn_blocking(write).await.map_err(ended)?
    }
}

/// Puts a content in a file's place; a kubelet that is killed leaves the content before it or this one.
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
