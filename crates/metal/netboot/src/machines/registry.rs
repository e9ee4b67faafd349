//! Applies events of machines to their records.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
};

use serde::{Deserialize, Serialize};

use super::stage::{Outcome, Stage};

/// The maximum number of machines. Beyond it, [`Registry`] drops the least advanced and longest unseen ones.
pub(super) const MAX_MACHINES: usize = 20_000;
/// The maximum number of entries of a timeline.
const MAX_ENTRIES: usize = 64;
/// The maximum length of a text from a machine, in bytes.
const MAX_TEXT: usize = 2048;
/// The maximum total length of a timeline's texts, in bytes.
const MAX_TEXTS: usize = 8192;
/// The time in milliseconds after which a repeated boot loader request counts as a new boot.
const REBOOT_INTERVAL: u64 = 300_000;

/// An entry of a boot's timeline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The time in milliseconds since the epoch.
    pub at: u64,
    /// The stage of the boot.
    pub stage: Stage,
    /// The outcome of the stage.
    pub outcome: Outcome,
    /// The file name or the cause of a failure.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
}

/// The last failure of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The time in milliseconds since the epoch.
    pub at: u64,
    /// The stage that failed.
    pub stage: Stage,
    /// The cause.
    pub text: String,
}

/// The record of a machine. Times are in milliseconds since the epoch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Machine {
    /// The MAC address, or `uuid:` and the UUID of a machine that sent no MAC address.
    pub id: String,
    /// The SMBIOS UUID.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// The host name that the machine or its reservation set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// The serial number that the firmware passes to iPXE.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// The CPU architecture.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arch: Option<String>,
    /// The last known address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// The Matchbox group that matched the last request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The profile of that group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// The number of network boots.
    pub boots: u64,
    /// The time of the last contact.
    pub seen: u64,
    /// The time at which the machine reported that it is installed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub installed: Option<u64>,
    /// The last failure, until the machine is installed or Ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// The events of the last boot.
    pub timeline: Vec<Entry>,
    /// Data that only the server may read.
    #[serde(skip_serializing_if = "Private::is_empty")]
    pub(super) private: Private,
}

/// The nonce of the last boot and the secrets served for it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Private {
    /// The SHA-256 hash of the nonce in the boot URL.
    pub(super) nonce: Option<String>,
    /// `true` if the kernel arguments contain the nonce, so that reports must have it.
    #[serde(rename = "told")]
    pub(super) nonce_in_arguments: bool,
    /// The names of the secrets already served to this boot.
    pub(super) served: BTreeSet<String>,
}

impl Private {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl Machine {
    /// Returns the last entry of the timeline.
    pub fn last(&self) -> Option<&Entry> {
        self.timeline.last()
    }

    /// Returns the furthest stage of the last boot.
    pub fn furthest(&self) -> Option<Stage> {
        self.timeline.iter().map(|entry| entry.stage).max()
    }

    /// Returns a copy without the private data.
    pub fn public(&self) -> Self {
        Self { private: Private::default(), ..self.clone() }
    }
}

/// Facts about a machine that it sent or the server observed. `None` leaves the record unchanged.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Facts {
    /// The SMBIOS UUID.
    pub uuid: Option<String>,
    /// The host name.
    pub hostname: Option<String>,
    /// The serial number.
    pub serial: Option<String>,
    /// The CPU architecture.
    pub arch: Option<String>,
    /// The address.
    pub address: Option<IpAddr>,
    /// The Matchbox group that matched the request.
    pub group: Option<String>,
    /// The profile of that group.
    pub profile: Option<String>,
}

/// An event of a machine that a server observed.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Facts to add to the record.
    pub facts: Facts,
    /// The stage of the boot.
    pub stage: Stage,
    /// The outcome of the stage.
    pub outcome: Outcome,
    /// The file name or the cause of a failure.
    pub detail: String,
    /// `true` if the firmware sent the request, which starts a new boot.
    pub power_on: bool,
}

impl Event {
    /// Creates an event without facts and detail.
    pub fn new(stage: Stage, outcome: Outcome) -> Self {
        Self { facts: Facts::default(), stage, outcome, detail: String::new(), power_on: false }
    }

    /// Returns the event with a file name or a failure's cause.
    pub fn detail(self, detail: impl Into<String>) -> Self {
        Self { detail: detail.into(), ..self }
    }

    /// Returns the event with facts about the machine.
    pub fn facts(self, facts: Facts) -> Self {
        Self { facts, ..self }
    }
}

/// The records of machines by id. Their number is bounded: a new machine replaces the least advanced, longest unseen
/// one.
#[derive(Debug, Default)]
pub struct Registry {
    machines: BTreeMap<String, Machine>,
    by_address: HashMap<IpAddr, String>,
}

/// Truncates a text from a machine and replaces control characters, which could move a terminal's cursor.
fn sanitize(text: &str) -> String {
    let mut out = String::new();
    for character in text.trim().chars() {
        if out.len() + character.len_utf8() > MAX_TEXT {
            break;
        }
        let is_printable = !character.is_control() || character == '\n';
        out.push(if is_printable { character } else { ' ' });
    }
    out
}

impl Registry {
    /// Returns a machine by its id.
    pub fn get(&self, id: &str) -> Option<&Machine> {
        self.machines.get(id)
    }

    /// Returns all machines, in the order of their ids.
    pub fn iter(&self) -> impl Iterator<Item = &Machine> {
        self.machines.values()
    }

    /// Returns the number of machines.
    pub fn len(&self) -> usize {
        self.machines.len()
    }

    /// Returns `true` if there are no machines.
    pub fn is_empty(&self) -> bool {
        self.machines.is_empty()
    }

    /// Returns the machine that used an address last.
    pub fn at(&self, address: IpAddr) -> Option<&Machine> {
        self.machines.get(self.by_address.get(&address)?)
    }

    /// Returns the machine with this UUID. It identifies machines that send no MAC address in later requests.
    pub(crate) fn with_uuid(&self, uuid: &str) -> Option<&Machine> {
        self.iter().find(|machine| machine.uuid.as_deref() == Some(uuid))
    }

    /// Inserts a machine that was read from the file.
    pub(super) fn restore(&mut self, machine: Machine) {
        if let Some(address) = machine.address {
            self.by_address.insert(address, machine.id.clone());
        }
        self.machines.insert(machine.id.clone(), machine);
    }

    /// Returns the machine with this id, and creates it if it is new.
    pub(super) fn entry(&mut self, id: &str) -> &mut Machine {
        if !self.machines.contains_key(id) {
            self.make_room();
        }
        self.machines
            .entry(id.to_owned())
            .or_insert_with(|| Machine { id: id.to_owned(), ..Machine::default() })
    }

    /// Forgets many machines at once, because a search for each new machine would let many false machines keep the
    /// server busy.
    fn make_room(&mut self) {
        if self.machines.len() < MAX_MACHINES {
            return;
        }
        let worth = |machine: &&Machine| {
            (machine.installed.is_some(), machine.furthest() > Some(Stage::Dhcp), machine.seen)
        };
        let mut machines: Vec<&Machine> = self.iter().collect();
        machines.sort_by_cached_key(worth);
        let forgotten = machines.iter().take(MAX_MACHINES / 16);
        let forgotten: Vec<String> = forgotten.map(|machine| machine.id.clone()).collect();
        for id in &forgotten {
            self.machines.remove(id);
        }
        self.by_address.retain(|_, id| self.machines.contains_key(id));
    }

    /// Records an event of a machine. Returns `false` if only the time of the last contact changed.
    pub fn record(&mut self, id: &str, now: u64, event: Event) -> bool {
        let machine = self.entry(id);
        machine.seen = now;
        let mut new = update_facts(machine, &event.facts);
        if is_new_boot(machine, &event, now) {
            machine.timeline.clear();
            machine.boots += 1;
        }
        let detail = sanitize(&event.detail);
        let same = |entry: &&Entry| {
            (entry.stage, entry.outcome) == (event.stage, event.outcome) && entry.detail == detail
        };
        if machine.last().filter(same).is_none() {
            if machine.timeline.len() >= MAX_ENTRIES {
                machine.timeline.remove(MAX_ENTRIES / 2);
            }
            if event.outcome == Outcome::Failed {
                let text = detail.clone();
                machine.failure = Some(Failure { at: now, stage: event.stage, text });
            }
            let (stage, outcome) = (event.stage, event.outcome);
            machine.timeline.push(Entry { at: now, stage, outcome, detail });
            trim_texts(&mut machine.timeline);
            new = true;
        }
        if event.outcome == Outcome::Succeeded
            && matches!(event.stage, Stage::Installed | Stage::Ready)
        {
            machine.failure = None;
            if event.stage == Stage::Installed {
                machine.installed = Some(now);
            }
        }
        if let Some(address) = event.facts.address {
            self.by_address.insert(address, id.to_owned());
            // Addresses are reused. The table is cleared once it has four addresses per machine.
            if self.by_address.len() > 4 * MAX_MACHINES {
                self.by_address.clear();
                self.by_address.insert(address, id.to_owned());
            }
        }
        new
    }
}

/// Keeps the newest texts whole and clears older ones once the total is too long.
fn trim_texts(timeline: &mut [Entry]) {
    let mut room = MAX_TEXTS;
    for entry in timeline.iter_mut().rev() {
        match room.checked_sub(entry.detail.len()) {
            Some(left) => room = left,
            None => entry.detail = String::new(),
        }
    }
}

fn update_facts(machine: &mut Machine, facts: &Facts) -> bool {
    let mut new = false;
    let pairs = [
        (&mut machine.uuid, &facts.uuid),
        (&mut machine.hostname, &facts.hostname),
        (&mut machine.serial, &facts.serial),
        (&mut machine.arch, &facts.arch),
        (&mut machine.group, &facts.group),
        (&mut machine.profile, &facts.profile),
    ];
    for (recorded, reported) in pairs {
        let reported = reported.as_deref().map(sanitize).filter(|text| !text.is_empty());
        if reported.is_some() && *recorded != reported {
            *recorded = reported;
            new = true;
        }
    }
    if facts.address.is_some() && machine.address != facts.address {
        machine.address = facts.address;
        new = true;
    }
    new
}

/// Returns `true` if an event starts a new boot. In one boot the firmware requests an address, then the boot loader,
/// then the system.
fn is_new_boot(machine: &Machine, event: &Event, now: u64) -> bool {
    let (Some(last), Some(furthest)) = (machine.last(), machine.furthest()) else { return true };
    let before = match event.stage {
        Stage::Dhcp if event.power_on => Stage::Dhcp,
        Stage::Dhcp => Stage::Firmware,
        Stage::Firmware | Stage::Ipxe => Stage::Ipxe,
        _ => return false,
    };
    furthest > before || now.saturating_sub(last.at) > REBOOT_INTERVAL
}
