//! Processes that are kept running, by whoever supervises them.

use std::{fmt::Display, process::Child, time::Duration};

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::{
    io::unix::AsyncFd,
    time::{Instant, sleep, timeout},
};

use crate::process::{PidFile, kill, terminate};

/// A process that lived this long has come up: its next end starts a new back-off.
const SETTLED: Duration = Duration::from_secs(30);

/// A process that is started where it does not run, adopted where it does, and started again when it ends.
pub struct Kept {
    name: String,
    file: PidFile,
    backoff: rt::Backoff,
}

impl Kept {
    /// `file` is where the pid is written; `name` is what logs call the process.
    pub fn new(name: &str, file: PidFile) -> Self {
        let backoff = rt::Backoff::new(Duration::from_millis(50), Duration::from_secs(5));
        Self { name: name.to_owned(), file, backoff }
    }

    /// One life of the process: comes back when it has ended, or could not be started, and may be started again. `start`
    /// writes the pid file; `up` is told the pid.
    pub async fn live<E: Display>(
        &mut self,
        start: impl FnOnce() -> Result<Child, E>,
        up: impl AsyncFnOnce(i32),
    ) {
        let started = Instant::now();
        let mut child = None;
        let pid = match self.file.running() {
            Some(pid) => Some(pid),
            None => match start() {
                Ok(started) => Some(child.insert(started).id().cast_signed()),
                Err(error) => {
                    tracing::error!(process = self.name, %error, "cannot be started; trying again");
                    None
                }
            },
        };
        if let Some(pid) = pid {
            up(pid).await;
            exited(pid).await;
            // Of one that another supervisor started nobody can tell.
            let how = child.and_then(|mut child| child.wait().ok());
            let how = how.map_or_else(|| "unknown".to_owned(), |status| status.to_string());
            tracing::warn!(process = self.name, %how, "ended; starting it again");
        }
        if started.elapsed() > SETTLED {
            self.backoff.reset();
        }
        sleep(self.backoff.next(0.0)).await;
    }
}

/// Waits for the end of a process that need not be ours.
pub async fn exited(pid: i32) {
    let Some(pid) = Pid::from_raw(pid) else { return };
    let Ok(descriptor) = pidfd_open(pid, PidfdFlags::empty()) else { return };
    // The descriptor is owned, so that the lack of I/O safety that the deprecation is about cannot arise.
    #[expect(deprecated)]
    let descriptor = AsyncFd::new(descriptor);
    if let Ok(descriptor) = descriptor {
        drop(descriptor.readable().await);
    }
}

/// Asks a process to end, and ends it after `grace`; whether it did end.
pub async fn stop(pid: i32, grace: Duration) -> bool {
    for end in [terminate, kill] {
        end(pid);
        if timeout(grace, exited(pid)).await.is_ok() {
            return true;
        }
    }
    false
}
