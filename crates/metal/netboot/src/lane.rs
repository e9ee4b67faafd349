//! A thread with its own runtime, so that small answers do not wait behind downloads.

use std::{io, thread};

use rt::Shutdown;
use tokio::runtime::{Builder, EnterGuard, Handle};

/// The nice value of an [`Urgency::High`] lane's thread.
const HIGH_PRIORITY: i32 = -10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// Few and small answers, which take precedence over all other work.
    High,
    Usual,
}

pub(crate) struct Lane(Handle);

impl Lane {
    /// Starts the thread, which ends at shutdown.
    pub(crate) fn start(name: &str, urgency: Urgency, shutdown: &Shutdown) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (handle, shutdown) = (runtime.handle().clone(), shutdown.clone());
        thread::Builder::new().name(name.to_owned()).spawn(move || {
            // Without CAP_SYS_NICE the thread keeps the default priority.
            if urgency == Urgency::High
                && let Err(error) = rustix::process::setpriority_process(None, HIGH_PRIORITY)
            {
                tracing::debug!(%error, "cannot raise the priority of small answers");
            }
            runtime.block_on(shutdown.stopping());
        })?;
        Ok(Self(handle))
    }

    /// Enters the lane's runtime: tasks and sockets created while the guard lives belong to the lane.
    pub(crate) fn enter(&self) -> EnterGuard<'_> {
        self.0.enter()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn lane_runs_tasks_while_caller_blocks() {
        let tasks = rt::Tasks::new(Shutdown::new());
        let (sender, receiver) = std::sync::mpsc::channel();
        let busy = Builder::new_current_thread().enable_all().build().unwrap();
        busy.block_on(async {
            let lane = Lane::start("lane", Urgency::High, tasks.shutdown()).unwrap();
            let guard = lane.enter();
            tasks.spawn_until_shutdown("answers", async move {
                tokio::time::sleep(Duration::from_millis(1)).await;
                sender.send(thread::current().name().map(str::to_owned)).unwrap();
            });
            drop(guard);
            // The caller's runtime is blocked here.
            assert_eq!(receiver.recv().unwrap().as_deref(), Some("lane"));
            let drained = tasks.drain(Duration::from_secs(5)).await;
            assert!(drained.unfinished.is_empty(), "{drained:?}");
        });
    }
}
