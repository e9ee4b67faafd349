//! Tells systemd that the kubelet has started and that it is healthy, by the protocol of sd_notify(3) and
//! sd_watchdog_enabled(3).

use std::{
    ffi::{OsStr, OsString},
    io,
    os::{
        linux::net::SocketAddrExt as _,
        unix::{
            ffi::OsStrExt as _,
            net::{SocketAddr, UnixDatagram},
        },
    },
    time::Duration,
};

use rt::Tasks;
use tokio::{sync::watch, time::Instant};

/// The error for an invalid watchdog of the kubelet's unit, which stops the start as upstream's does.
#[derive(Debug, thiserror::Error)]
#[error(
    "configure watchdog: {variable} is {value:?}, {must}; correct WatchdogSec in the kubelet's unit"
)]
pub struct WatchdogError {
    variable: &'static str,
    value: OsString,
    must: &'static str,
}

/// The shortest time limit that upstream accepts.
const SHORTEST: Duration = Duration::from_secs(1);
/// The time for which the runtime may fail before systemd restarts the kubelet, which is that of upstream's sync loop.
const PATIENCE: Duration = Duration::from_secs(300);
/// The longest pause after a check or a message that failed.
const RETRY: Duration = Duration::from_secs(1);

/// The service manager that started this process. The default is none.
#[derive(Clone, Debug, Default)]
pub struct ServiceManager {
    /// The address of the socket that receives messages.
    socket: Option<OsString>,
    /// The time without a sign of life after which the process is killed.
    watchdog: Option<Duration>,
}

impl ServiceManager {
    /// Reads the environment that systemd sets.
    pub(crate) fn from_environment() -> Result<Self, WatchdogError> {
        Self::new(|name| std::env::var_os(name), std::process::id())
    }

    fn new(
        variable: impl Fn(&str) -> Option<OsString>,
        process: u32,
    ) -> Result<Self, WatchdogError> {
        let variable = |name| variable(name).filter(|value| !value.is_empty());
        let socket = variable("NOTIFY_SOCKET");
        let Some(time) = variable("WATCHDOG_USEC") else {
            return Ok(Self { socket, watchdog: None });
        };
        let error =
            |variable, value: &OsStr, must| WatchdogError { variable, value: value.into(), must };
        let micros = number(&time).filter(|micros| *micros > 0).ok_or_else(|| {
            error("WATCHDOG_USEC", &time, "not a positive number of microseconds")
        })?;
        if let Some(owner) = variable("WATCHDOG_PID") {
            let id =
                number(&owner).ok_or_else(|| error("WATCHDOG_PID", &owner, "not a process ID"))?;
            if id != i64::from(process) {
                return Ok(Self { socket, watchdog: None });
            }
        }
        let watchdog = Duration::from_micros(micros.unsigned_abs());
        if watchdog < SHORTEST {
            return Err(error("WATCHDOG_USEC", &time, "less than a second"));
        }
        Ok(Self { socket, watchdog: Some(watchdog) })
    }

    /// Reports that the start is complete.
    pub(crate) fn ready(&self) {
        self.send("READY=1");
    }

    /// Sends signs of life while all of `tasks` run and the runtime answers. Returns at once without a watchdog.
    pub(crate) async fn feed_watchdog(
        self,
        tasks: Tasks,
        listing_error: watch::Receiver<Option<String>>,
    ) {
        let (Some(watchdog), true) = (self.watchdog, self.socket.is_some()) else { return };
        tracing::info!(?watchdog, "systemd restarts the kubelet if it is not healthy");
        let interval = watchdog / 2;
        let mut failing_since = None;
        loop {
            let failure = failure(&tasks, &listing_error.borrow(), &mut failing_since);
            if let Some(cause) = &failure {
                tracing::error!(
                    cause,
                    "the kubelet is not healthy, so systemd gets no sign of life"
                );
            }
            let alive = failure.is_none() && self.send("WATCHDOG=1");
            tokio::time::sleep(if alive { interval } else { RETRY.min(interval) }).await;
        }
    }

    /// Sends a message and returns `true` if systemd has it.
    fn send(&self, message: &str) -> bool {
        let Some(socket) = &self.socket else { return false };
        let sent = send(socket, message.as_bytes());
        if let Err(error) = &sent {
            tracing::warn!(%error, socket = %socket.display(), message, "notify systemd");
        }
        sent.is_ok()
    }
}

fn number(value: &OsStr) -> Option<i64> {
    value.to_str()?.parse().ok()
}

/// Returns the cause for which the kubelet must be restarted. `failing_since` is the state of earlier calls.
fn failure(
    tasks: &Tasks,
    listing_error: &Option<String>,
    failing_since: &mut Option<Instant>,
) -> Option<String> {
    if let Some(task) = tasks.missing().first() {
        return Some(task.to_string());
    }
    let Some(error) = listing_error else {
        *failing_since = None;
        return None;
    };
    let since = *failing_since.get_or_insert_with(Instant::now);
    (since.elapsed() > PATIENCE).then(|| format!("sync Loop took longer than expected: {error}"))
}

/// Sends one datagram, without waiting for a receiver that is behind.
fn send(socket: &OsStr, message: &[u8]) -> io::Result<()> {
    let address = match socket.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(socket)?,
    };
    let sender = UnixDatagram::unbound()?;
    sender.set_nonblocking(true)?;
    sender.send_to_addr(message, &address)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use rt::Shutdown;

    use super::*;

    fn manager(variables: &[(&str, &str)]) -> Result<ServiceManager, WatchdogError> {
        let value = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| v.into());
        ServiceManager::new(value, 7)
    }

    fn receiver(address: &SocketAddr) -> UnixDatagram {
        let socket = UnixDatagram::bind_addr(address).unwrap();
        socket.set_nonblocking(true).unwrap();
        socket
    }

    /// Returns the messages since the last call.
    fn received(socket: &UnixDatagram) -> Vec<String> {
        let mut buffer = [0; 64];
        let next = || {
            let length = socket.recv(&mut buffer).ok()?;
            Some(String::from_utf8_lossy(&buffer[..length]).into_owned())
        };
        std::iter::from_fn(next).collect()
    }

    fn message_socket(directory: &Path) -> (UnixDatagram, String) {
        let path = directory.join("notify");
        (receiver(&SocketAddr::from_pathname(&path).unwrap()), path.display().to_string())
    }

    #[test]
    fn reads_watchdog_of_environment() {
        let watchdog = |variables: &[(&str, &str)]| manager(variables).map(|m| m.watchdog);
        let seconds = |s| Some(Duration::from_secs(s));
        assert_eq!(watchdog(&[]).unwrap(), None);
        assert_eq!(watchdog(&[("WATCHDOG_USEC", "")]).unwrap(), None);
        assert_eq!(watchdog(&[("WATCHDOG_USEC", "1000000")]).unwrap(), seconds(1));
        let own = [("WATCHDOG_USEC", "30000000"), ("WATCHDOG_PID", "7")];
        assert_eq!(watchdog(&own).unwrap(), seconds(30));
        let other = [("WATCHDOG_USEC", "30000000"), ("WATCHDOG_PID", "8")];
        assert_eq!(watchdog(&other).unwrap(), None, "the watchdog of another process");
        let long = "1".repeat(1 << 20);
        for bad in ["0", "-1", "999999", "30s", "1e9", " 1", "99999999999999999999", &long] {
            let error = watchdog(&[("WATCHDOG_USEC", bad)]).unwrap_err().to_string();
            assert!(error.starts_with("configure watchdog: WATCHDOG_USEC is"), "{error:.100}");
        }
        let bad = [("WATCHDOG_USEC", "30000000"), ("WATCHDOG_PID", "me")];
        assert!(watchdog(&bad).unwrap_err().to_string().contains("not a process ID"));
    }

    #[tokio::test(start_paused = true)]
    async fn feeds_watchdog_while_healthy() {
        let directory = tempfile::tempdir().unwrap();
        let (socket, path) = message_socket(directory.path());
        let manager = manager(&[("NOTIFY_SOCKET", &path), ("WATCHDOG_USEC", "30000000")]).unwrap();
        let (errors, listing_error) = watch::channel(None);
        let tasks = Tasks::new(Shutdown::new());
        manager.ready();
        let (own, seen) = (tasks.clone(), listing_error.clone());
        tasks.keep("watchdog", move || manager.clone().feed_watchdog(own.clone(), seen.clone()));
        let after = async |seconds| {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            received(&socket)
        };
        assert_eq!(after(31).await, ["READY=1", "WATCHDOG=1", "WATCHDOG=1", "WATCHDOG=1"]);
        errors.send_replace(Some("connection refused".into()));
        // The socket holds eleven messages.
        for _ in 0..2 {
            assert!(after(140).await.len() > 8, "a runtime that restarts is no reason");
        }
        after(60).await;
        assert_eq!(after(300).await.len(), 0);
        errors.send_replace(None);
        assert!(!after(2).await.is_empty());
        tasks.keep("broken", || async {});
        after(30).await;
        assert_eq!(after(300).await.len(), 0, "a task that ends again and again is a failure");
        tasks.drain(Duration::ZERO).await;
    }

    #[tokio::test(start_paused = true)]
    async fn goes_on_without_receiver() {
        let tasks = Tasks::new(Shutdown::new());
        let (_errors, listing_error) = watch::channel(None);
        let fed = |variables: &[(&str, &str)]| {
            let manager = manager(variables).unwrap();
            manager.ready();
            let feeding = manager.feed_watchdog(tasks.clone(), listing_error.clone());
            tokio::time::timeout(Duration::from_secs(100), feeding)
        };
        let long = "x".repeat(1 << 20);
        for socket in ["/nonexistent/notify", "@", "relative", "vsock:2:1234", &long] {
            let variables = [("NOTIFY_SOCKET", socket), ("WATCHDOG_USEC", "9223372036854775807")];
            assert!(fed(&variables).await.is_err(), "it tries again: {socket:.20}");
        }
        assert!(fed(&[("WATCHDOG_USEC", "2000000")]).await.is_ok(), "nobody receives it");
        assert!(fed(&[("NOTIFY_SOCKET", "@a")]).await.is_ok(), "there is no watchdog");
    }

    #[test]
    fn sends_to_abstract_socket() {
        let name = format!("windlass-notify-{}", std::process::id());
        let socket = receiver(&SocketAddr::from_abstract_name(&name).unwrap());
        manager(&[("NOTIFY_SOCKET", &format!("@{name}"))]).unwrap().ready();
        assert_eq!(received(&socket), ["READY=1"]);
    }
}
