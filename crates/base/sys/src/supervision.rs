//! Supervises processes that must keep running.

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

/// The run time after which a process counts as started: its next end starts a new backoff.
const SETTLED: Duration = Duration::from_secs(30);

/// The time that a hung process gets to exit after SIGTERM.
const GRACE: Duration = Duration::from_secs(5);

/// A supervised process. It is started unless it runs already, and restarted when it ends.
pub struct SupervisedProcess {
    name: String,
    file: PidFile,
    backoff: rt::Backoff,
}

impl SupervisedProcess {
    /// Creates a supervisor. `file` stores the PID, and `name` identifies the process in the log.
    pub fn new(name: &str, file: PidFile) -> Self {
        let backoff = rt::Backoff::new(Duration::from_millis(50), Duration::from_secs(5));
        Self { name: name.to_owned(), file, backoff }
    }

    /// Runs the process once. Returns when the process has ended, or could not be started, and the backoff has passed.
    /// `start` must write the PID file; `up` is called with the PID. `hung` completes with a reason when the process no
    /// longer responds; the process is then killed.
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
                let activity = liveness::activity(pid).await;
                tracing::error!(
                    process = self.name,
                    reason,
                    activity,
                    "does not answer; ending it"
                );
                stop(pid, GRACE).await;
            }
            // The exit status is unknown if another supervisor started the process.
            let status = child.and_then(|mut child| child.wait().ok());
            let status = status.map_or_else(|| "unknown".to_owned(), |status| status.to_string());
            tracing::warn!(process = self.name, %status, "ended; starting it again");
        }
        if started.elapsed() > SETTLED {
            self.backoff.reset();
        }
        sleep(self.backoff.next(0.0)).await;
    }
}

/// Waits for the end of a process, which need not be a child.
pub async fn exited(pid: i32) {
    let Some(pid) = Pid::from_raw(pid) else { return };
    let Ok(descriptor) = pidfd_open(pid, PidfdFlags::empty()) else { return };
    #[expect(deprecated, reason = "it concerns descriptors that are not owned; this one is owned")]
    let descriptor = AsyncFd::new(descriptor);
    if let Ok(descriptor) = descriptor {
        drop(descriptor.readable().await);
    }
}

/// Sends SIGTERM, and SIGKILL after `grace`. Returns `true` if the process ended.
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
    async fn kills_process_that_does_not_answer() {
        let directory = tempfile::tempdir().unwrap();
        let file = PidFile(directory.path().join("a.pid"));
        let mut process = SupervisedProcess::new("a", file.clone());
        for answers in [true, false] {
            let start = || {
                let child =
                    Command::new("sleep").arg(if answers { "0.1" } else { "600" }).spawn()?;
                file.record(child.id().cast_signed()).unwrap();
                Ok::<_, std::io::Error>(child)
            };
            let stopped = async |pid| {
                // A stopped process acts like a hung one: it ignores SIGTERM.
                let stop = nix::sys::signal::Signal::SIGSTOP;
                nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), stop).unwrap();
            };
            let hung = async { "no answer".to_owned() };
            if answers {
                process.live(start, async |_| {}, std::future::pending()).await;
            } else {
                process.live(start, stopped, hung).await;
            }
            assert_eq!(file.running(), None);
        }
    }
}
