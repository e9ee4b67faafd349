//! Lets one `up` of a cluster work at a time: two would make the same files, such as a certificate and another one's
//! key.

use std::{
    fs::{self, File, TryLockError},
    path::Path,
    time::Duration,
};

use telemetry::Progress;

use crate::error::Error;

/// The delay before the lock is tried again.
const AGAIN: Duration = Duration::from_millis(100);

/// The lock of one `up`. It ends with the process.
pub(crate) struct Turn {
    _directory: File,
    /// `true` if another `up` had the lock before. It may have changed the cluster.
    pub(crate) waited: bool,
}

impl Turn {
    /// Waits until no other `up` has locked the directory.
    pub(crate) async fn wait(directory: &Path, progress: &Progress) -> Result<Self, Error> {
        fs::create_dir_all(directory).map_err(Error::file("creating", directory))?;
        let locked = File::open(directory).map_err(Error::file("opening", directory))?;
        let mut waited = false;
        loop {
            match locked.try_lock() {
                Ok(()) => return Ok(Self { _directory: locked, waited }),
                Err(TryLockError::WouldBlock) if waited => {}
                Err(TryLockError::WouldBlock) => {
                    progress.note("another `up` works on this cluster; waiting for its end");
                    waited = true;
                }
                Err(TryLockError::Error(error)) => {
                    return Err(Error::file("locking", directory)(error));
                }
            }
            tokio::time::sleep(AGAIN).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use telemetry::Recorder;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn second_up_waits_for_the_first() {
        let dir = tempfile::tempdir().unwrap();
        let progress = Progress::silent(Recorder::new(dir.path(), "up"));
        let run = dir.path().join("run");
        let first = Turn::wait(&run, &progress).await.unwrap();
        assert!(!first.waited);
        let mut second = Box::pin(Turn::wait(&run, &progress));
        let early = tokio::time::timeout(10 * AGAIN, &mut second).await;
        assert!(early.is_err());
        drop(first);
        assert!(second.await.unwrap().waited);
    }
}
