//! The part of systemd-logind's API that delays a shutdown of the machine (<https://systemd.io/INHIBITOR_LOCKS>).

use std::{
    fs, io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    time::Duration,
};

use super::{
    bus::{Bus, BusError, DBUS, Method},
    message::Body,
};

const LOGIND: &str = "org.freedesktop.login1";
const LOGIND_PATH: &str = "/org/freedesktop/login1";
const MANAGER: &str = "org.freedesktop.login1.Manager";
const SIGNAL: &str = "PrepareForShutdown";
const OWNER_CHANGED: &str = "NameOwnerChanged";
const GET_OWNER: Method = Method::of_bus("GetNameOwner");

const GET: Method = Method {
    destination: LOGIND,
    path: LOGIND_PATH,
    interface: "org.freedesktop.DBus.Properties",
    member: "Get",
};
const INHIBIT: Method =
    Method { destination: LOGIND, path: LOGIND_PATH, interface: MANAGER, member: "Inhibit" };
const KILL_UNIT: Method = Method {
    destination: "org.freedesktop.systemd1",
    path: "/org/freedesktop/systemd1",
    interface: "org.freedesktop.systemd1.Manager",
    member: "KillUnit",
};

/// The error of an operation of logind.
#[derive(Debug, thiserror::Error)]
pub(super) enum LogindError {
    #[error(transparent)]
    Bus(#[from] BusError),
    #[error("write logind's setting {}: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error(
        "node shutdown manager was unable to update logind InhibitDelayMaxSec to {wanted:?} (ShutdownGracePeriod), \
         current value of InhibitDelayMaxSec ({actual:?}) is less than requested ShutdownGracePeriod"
    )]
    Delay { wanted: Duration, actual: Duration },
}

/// The paths of the machine that lead to logind.
#[derive(Clone, Debug)]
pub(super) struct Paths {
    /// The socket of the system bus.
    pub(super) bus: PathBuf,
    /// The directory of logind's settings.
    pub(super) settings: PathBuf,
}

impl Default for Paths {
    fn default() -> Self {
        Self {
            bus: "/run/dbus/system_bus_socket".into(),
            settings: "/etc/systemd/logind.conf.d".into(),
        }
    }
}

/// A connection to logind, and the lock that delays a shutdown while it is held.
pub(super) struct Logind {
    bus: Bus,
    lock: Option<OwnedFd>,
}

impl Logind {
    /// Connects, makes sure that logind waits for `delay`, and takes the lock.
    pub(super) async fn connect(paths: &Paths, delay: Duration) -> Result<Self, LogindError> {
        let mut logind = Self { bus: Bus::connect(&paths.bus).await?, lock: None };
        if logind.delay().await? < delay {
            raise_delay(&paths.settings, delay)?;
            logind.reload().await?;
            let actual = logind.delay().await?;
            if actual < delay {
                return Err(LogindError::Delay { wanted: delay, actual });
            }
        }
        logind.follow_owner().await?;
        let rule = format!(
            "type='signal',sender='{LOGIND}',interface='{MANAGER}',member='{SIGNAL}',path='{LOGIND_PATH}'"
        );
        logind.bus.call(Method::of_bus("AddMatch"), Body::texts(&[&rule])).await?;
        logind.inhibit().await?;
        Ok(logind)
    }

    /// Receives the signals of the process that owns logind's name, also after it was started again.
    async fn follow_owner(&mut self) -> Result<(), LogindError> {
        let rule = format!(
            "type='signal',sender='{DBUS}',interface='{DBUS}',member='{OWNER_CHANGED}',arg0='{LOGIND}'"
        );
        self.bus.call(Method::of_bus("AddMatch"), Body::texts(&[&rule])).await?;
        let owner = self.bus.call(GET_OWNER, Body::texts(&[LOGIND])).await?;
        let expected = "name";
        let owner = owner.texts().next().map(str::to_owned);
        let owner = owner.ok_or(BusError::Answer { member: GET_OWNER.member, expected })?;
        self.bus.receive_from(owner);
        Ok(())
    }

    /// Returns the longest time for which logind delays a shutdown.
    async fn delay(&mut self) -> Result<Duration, LogindError> {
        let name = Body::texts(&[MANAGER, "InhibitDelayMaxUSec"]);
        let answer = self.bus.call(GET, name).await?;
        let expected = "number";
        let delay = answer.variant_number();
        let delay = delay.ok_or(BusError::Answer { member: GET.member, expected })?;
        Ok(Duration::from_micros(delay))
    }

    /// Makes logind read its settings again. Only systemd can send it a signal by the name of its unit.
    async fn reload(&mut self) -> Result<(), LogindError> {
        let signal = nix::sys::signal::Signal::SIGHUP as i32;
        let unit = Body::texts(&["systemd-logind.service", "all"]).int(signal);
        self.bus.call(KILL_UNIT, unit).await?;
        Ok(())
    }

    /// Takes the lock that delays a shutdown.
    pub(super) async fn inhibit(&mut self) -> Result<(), LogindError> {
        let reason = "Kubelet needs time to handle node shutdown";
        let request = Body::texts(&["shutdown", "kubelet", reason, "delay"]);
        let answer = self.bus.call(INHIBIT, request).await?;
        let lock = answer.descriptors.into_iter().next();
        let expected = "file descriptor";
        self.lock = Some(lock.ok_or(BusError::Answer { member: INHIBIT.member, expected })?);
        Ok(())
    }

    /// Releases the lock, which lets the machine shut down.
    pub(super) fn release(&mut self) {
        self.lock = None;
    }

    /// Waits for the next event. Returns `true` when a shutdown begins, and `false` when it is cancelled.
    pub(super) async fn event(&mut self) -> Result<bool, LogindError> {
        loop {
            let signal = self.bus.signal().await?;
            let header = &signal.header;
            if (header.interface.as_str(), header.member.as_str()) == (DBUS, OWNER_CHANGED) {
                // The texts are the name, its former owner and its new one.
                let texts: Vec<&str> = signal.texts().collect();
                if let [LOGIND, _, owner] = texts[..] {
                    self.bus.receive_from(owner.to_owned());
                }
                continue;
            }
            let is_it = (header.interface.as_str(), header.member.as_str()) == (MANAGER, SIGNAL);
            if let Some(begins) = signal.boolean().filter(|_| is_it) {
                return Ok(begins);
            }
        }
    }
}

/// Writes the setting of logind, as upstream's kubelet names it.
fn raise_delay(settings: &Path, delay: Duration) -> Result<(), LogindError> {
    let path = settings.join("99-kubelet.conf");
    let text =
        format!("# Kubelet logind override\n[Login]\nInhibitDelayMaxSec={}\n", delay.as_secs());
    let written = fs::create_dir_all(settings).and_then(|()| fs::write(&path, text));
    written.map_err(|source| LogindError::Write { path, source })
}
