//! Processes that are kept running, by whoever supervises them.

use std::{fmt::Display, process::Child, time::Duration};

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::{
    io::unix::AsyncFd,
    time::{Instant, sleep, timeout},
};

use crate::{
    liveness,
    process::{PidFile, kill, terminate},
};

/// A process that lived this long has come up: its next end starts a new back-off.
const SETTLED: Duration = Duration::from_secs(30);

/// The time in which a process that does not answer may still end by itself.
const GRACE: Duration = Duration::from_secs(5);

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
    /// writes the pid file; `up` is told the pid. `hung` ends with the reason once the process is known not to answer any
    /// more, which ends it.
    pub async fn live<E: Display>(
        &mut self,
        start: impl FnOnce() -> Result<Child, E>,
        up: impl AsyncFnOnce(i32),
        hung: impl Future<Output = String>,
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
            let reason = tokio::select! {
                () = exited(pid) => None,
                reason = hung => Some(reason),
            };
            if let Some(reason) = reason {
                let doing = liveness::activity(pid).await;
                tracing::error!(process = self.name, reason, doing, "does not answer; ending it");
                stop(pid, GRACE).await;
            }
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

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::process::PidFile;

    #[tokio::test]
    async fn ends_a_process_that_does_not_answer() {
        let directory = tempfile::tempdir().unwrap();
        let file = PidFile(directory.path().join("a.pid"));
        let mut kept = Kept::new("a", file.clone());
        for answers in [true, false] {
            let start = || {
                let child =
                    Command::new("sleep").arg(if answers { "0.1" } else { "600" }).spawn()?;
                file.record(child.id().cast_signed()).unwrap();
                Ok::<_, std::io::Error>(child)
            };
            let stopped = async |pid| {
                // As a process that hangs: it does not heed a request to end.
                let stop = nix::sys::signal::Signal::SIGSTOP;
                nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), stop).unwrap();
            };
            let hung = async { "no answer".to_owned() };
            match answers {
                true => kept.live(start, async |_| {}, std::future::pending()).await,
                false => kept.live(start, stopped, hung).await,
            }
            assert_eq!(file.running(), None);
        }
    }
}
