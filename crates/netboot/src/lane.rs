//! A thread with a runtime of its own, for answers that are not to wait behind those who download.

use std::{io, thread};

use rt::Shutdown;
use tokio::runtime::{Builder, EnterGuard, Handle};

/// What an [`Urgency::High`] lane's thread is before others by, as nice(1) counts.
const AHEAD: i32 = -10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// Its answers are few and small, and go before all else.
    High,
    Usual,
}

pub(crate) struct Lane(Handle);

impl Lane {
    /// Starts the thread, which ends with `shutdown`.
    pub(crate) fn start(name: &str, urgency: Urgency, shutdown: &Shutdown) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (handle, shutdown) = (runtime.handle().clone(), shutdown.clone());
        thread::Builder::new().name(name.to_owned()).spawn(move || {
            // Without the privilege it is as quick as the machine lets it be.
            if urgency == Urgency::High
                && let Err(error) = rustix::process::setpriority_process(None, AHEAD)
            {
                tracing::debug!(%error, "answering with the usual priority");
            }
            runtime.block_on(shutdown.stopping());
        })?;
        Ok(Self(handle))
    }

    /// While the guard lives, tasks that are started and sockets that are opened here belong to the lane.
    pub(crate) fn enter(&self) -> EnterGuard<'_> {
        self.0.enter()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn tasks_go_on_while_the_callers_runtime_is_kept_busy() {
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
            // The runtime that is in charge here waits all the time.
            assert_eq!(receiver.recv().unwrap().as_deref(), Some("lane"));
            let drained = tasks.drain(Duration::from_secs(5)).await;
            assert!(drained.unfinished.is_empty(), "{drained:?}");
        });
    }
}
