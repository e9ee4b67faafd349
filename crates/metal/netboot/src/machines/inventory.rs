//! The registry as the servers use it: shared, with a clock, and saved to a file.

use std::{
    io,
    net::{IpAddr, Ipv4Addr},
    path::{Path, PathBuf},
    sync::Arc,
    time::UNIX_EPOCH,
};

use aws_lc_rs::{constant_time, digest};
use data_encoding::HEXLOWER;
use parking_lot::{Mutex, MutexGuard};
use rt::{Clock, SystemClock};

use super::{
    registry::{Event, Facts, Machine, Registry},
    stage::{Outcome, Stage},
};
use crate::{
    firmware::Firmware,
    journal::{self, Journal},
    labels::Labels,
    metrics::Metrics,
};

/// The reasons to reject a machine's request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    #[error("the request names neither mac nor uuid")]
    Anonymous,
    #[error(
        "the request has no nonce; write nonce={{{{.request.nonce}}}} into the kernel arguments' URL"
    )]
    NoNonce,
    #[error("the nonce is not that of the machine's last boot")]
    WrongNonce,
    #[error("secret {0:?} was served already to this boot of the machine")]
    Served(String),
}

/// The records of all machines. DHCP, TFTP and Matchbox write to it; `metal status` and the web pages read it.
pub struct Inventory {
    registry: Mutex<Registry>,
    journal: Option<Journal>,
    path: Option<PathBuf>,
    clock: Arc<dyn Clock>,
    /// The metrics of the boot server.
    pub metrics: Metrics,
}

fn line(machine: &Machine) -> String {
    // These types have no map keys that JSON cannot represent.
    serde_json::to_string(machine).unwrap_or_default() + "\n"
}

/// Parses a file. The last line about each machine is used.
fn parse(text: &str) -> Registry {
    let mut registry = Registry::default();
    for line in text.lines() {
        match serde_json::from_str::<Machine>(line) {
            Ok(machine) => registry.restore(machine),
            Err(error) => tracing::warn!(%error, "skipping an invalid line of the machines file"),
        }
    }
    registry
}

/// Reads all machines from a file that another process writes.
pub(super) fn read(path: &Path) -> io::Result<Vec<Machine>> {
    Ok(parse(&journal::read(path)?).iter().cloned().collect())
}

/// Returns the path of the marker file with which an operator requests a reinstallation.
fn reinstall_marker(path: &Path, id: &str) -> PathBuf {
    let mut folder = path.as_os_str().to_owned();
    folder.push(".reinstall");
    PathBuf::from(folder).join(id.replace([':', '/'], "-"))
}

/// Requests the reinstallation of a machine from the server that writes the file at `path`.
pub(super) fn reinstall(path: &Path, id: &str) -> io::Result<()> {
    let marker = reinstall_marker(path, id);
    if let Some(folder) = marker.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(marker, "")
}

impl Inventory {
    /// Loads the records of an earlier run from `path`.
    pub fn open(path: PathBuf, clock: Arc<dyn Clock>) -> io::Result<Self> {
        let registry = parse(&journal::read(&path)?);
        let journal = Journal::begin(path.clone(), registry.iter().map(line))?;
        Ok(Self { path: Some(path), ..Self::with(registry, Some(journal), clock) })
    }

    /// Creates an inventory that is not saved.
    pub fn in_memory(clock: Arc<dyn Clock>) -> Self {
        Self::with(Registry::default(), None, clock)
    }

    fn with(registry: Registry, journal: Option<Journal>, clock: Arc<dyn Clock>) -> Self {
        let registry = Mutex::new(registry);
        Self { registry, journal, path: None, clock, metrics: Metrics::default() }
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock()
    }

    /// Returns the time in milliseconds since the epoch.
    pub fn now(&self) -> u64 {
        let since = self.clock.now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    fn save(&self, registry: &Registry, id: &str) {
        let (Some(journal), Some(machine)) = (&self.journal, registry.get(id)) else { return };
        let whole = registry.iter().map(line);
        if let Err(error) = journal.add(&line(machine), registry.len(), whole) {
            tracing::error!(%error, "saving the record of a machine");
        }
    }

    /// Records an event of a machine, and saves the machine if the event changed it.
    pub fn record(&self, id: &str, event: Event) {
        let (mut registry, now) = (self.registry(), self.now());
        if registry.record(id, now, event) {
            self.save(&registry, id);
        }
    }

    /// Returns copies of all machines without their private data.
    pub fn machines(&self) -> Vec<Machine> {
        self.registry().iter().map(Machine::public).collect()
    }

    /// Returns a copy of one machine without its private data.
    pub fn machine(&self, id: &str) -> Option<Machine> {
        self.registry().get(id).map(Machine::public)
    }

    /// Returns the id of a machine, by the labels that it sends or else by its address.
    pub fn id(&self, labels: &Labels, peer: Option<IpAddr>) -> Option<String> {
        let label = |name: &str| labels.get(name).filter(|value| !value.is_empty());
        if let Some(mac) = label("mac") {
            return Some(mac.clone());
        }
        let registry = self.registry();
        if let Some(uuid) = label("uuid") {
            let machine = registry.with_uuid(uuid).map(|machine| machine.id.clone());
            return Some(machine.unwrap_or_else(|| format!("uuid:{uuid}")));
        }
        registry.at(peer?).map(|machine| machine.id.clone())
    }

    /// Records a DHCP reply: an offer or, if `done`, an assigned address or boot file.
    pub(crate) fn record_dhcp(
        &self,
        mac: &str,
        address: Option<Ipv4Addr>,
        firmware: Option<Firmware>,
        done: bool,
    ) {
        let facts = Facts { address: address.map(IpAddr::V4), ..Facts::default() };
        let Some(firmware) = firmware else {
            // The installed system renews a lease. Record the new address of a machine that booted from here.
            let mut registry = self.registry();
            let recorded = registry.get(mac).map(|machine| machine.address);
            if let (Some(old), Some(address)) = (recorded, facts.address)
                && old != Some(address)
            {
                let machine = registry.entry(mac);
                machine.address = Some(address);
                let machine = machine.clone();
                registry.restore(machine);
                self.save(&registry, mac);
            }
            return;
        };
        let outcome = if done { Outcome::Succeeded } else { Outcome::Started };
        let power_on = !done && firmware != Firmware::Ipxe;
        let event = Event::new(Stage::Dhcp, outcome).detail(firmware.name()).facts(facts);
        self.record(mac, Event { power_on, ..event });
    }

    /// Records a file that the machine at an address fetched.
    pub(crate) fn record_fetch(&self, peer: IpAddr, stage: Stage, file: &str) {
        let id = self.registry().at(peer).map(|machine| machine.id.clone());
        if let Some(id) = id {
            self.record(&id, Event::new(stage, Outcome::Succeeded).detail(file));
        }
    }

    /// Returns `true` if the machine has reported that it is installed and no reinstallation is requested.
    pub(crate) fn is_installed(&self, id: &str) -> bool {
        let mut registry = self.registry();
        let installed = registry.get(id).is_some_and(|machine| machine.installed.is_some());
        let marker = self.path.as_deref().map(|path| reinstall_marker(path, id));
        // The marker is removed also for a machine that is not installed yet: this boot installs it anyway.
        let is_requested = marker.is_some_and(|marker| std::fs::remove_file(marker).is_ok());
        if installed && is_requested {
            registry.entry(id).installed = None;
            self.save(&registry, id);
            tracing::info!(machine = id, "reinstalling the machine as requested");
            return false;
        }
        installed
    }

    /// Stores the nonce of a machine's boot URL, which replaces that of its previous boot. `in_arguments` is `true`
    /// if the kernel arguments contain the nonce.
    pub(crate) fn set_nonce(&self, id: &str, nonce: &str, in_arguments: bool) {
        let mut registry = self.registry();
        let private = &mut registry.entry(id).private;
        private.nonce = Some(hash(nonce));
        private.nonce_in_arguments = in_arguments;
        private.served.clear();
        self.save(&registry, id);
    }

    /// Checks that a request has the nonce of the machine's last boot.
    pub(crate) fn verify_nonce(&self, id: &str, labels: &Labels) -> Result<(), AccessError> {
        // An empty nonce never matches.
        let nonce = labels.get("nonce").filter(|nonce| !nonce.is_empty());
        let nonce = nonce.ok_or(AccessError::NoNonce)?;
        let registry = self.registry();
        let expected = registry.get(id).and_then(|machine| machine.private.nonce.as_ref());
        let same = expected.is_some_and(|expected| {
            constant_time::verify_slices_are_equal(expected.as_bytes(), hash(nonce).as_bytes())
                .is_ok()
        });
        if same { Ok(()) } else { Err(AccessError::WrongNonce) }
    }

    /// Like [`Self::verify_nonce`], for a report. A machine that received no nonce may report without one.
    pub(crate) fn verify_report(&self, id: &str, labels: &Labels) -> Result<(), AccessError> {
        let registry = self.registry();
        let has_nonce = registry.get(id).is_some_and(|m| m.private.nonce_in_arguments);
        drop(registry);
        if has_nonce { self.verify_nonce(id, labels) } else { Ok(()) }
    }

    /// Takes a secret for the machine's last boot. Each boot gets a secret once.
    pub(crate) fn claim(&self, id: &str, secret: &str) -> Result<(), AccessError> {
        let mut registry = self.registry();
        if !registry.entry(id).private.served.insert(secret.to_owned()) {
            return Err(AccessError::Served(secret.to_owned()));
        }
        self.save(&registry, id);
        Ok(())
    }

    /// Releases claimed secrets after the answer failed.
    pub(crate) fn release(&self, id: &str, secrets: &[String]) {
        let mut registry = self.registry();
        for secret in secrets {
            registry.entry(id).private.served.remove(secret);
        }
        self.save(&registry, id);
    }
}

impl Default for Inventory {
    fn default() -> Self {
        Self::in_memory(Arc::new(SystemClock))
    }
}

fn hash(nonce: &str) -> String {
    HEXLOWER.encode(digest::digest(&digest::SHA256, nonce.as_bytes()).as_ref())
}
