//! What notes about machines come to.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
};

use serde::{Deserialize, Serialize};

use super::{Outcome, Stage};

/// Machines at most; of more, those that came least far and were seen longest ago are forgotten.
pub(super) const MAX_MACHINES: usize = 20_000;
/// Entries of one boot's timeline.
const MAX_ENTRIES: usize = 64;
/// Bytes of any text that a machine says.
const MAX_TEXT: usize = 2048;
/// Bytes of all texts of one boot's timeline.
const MAX_TEXTS: usize = 8192;
/// A boot loader that asks again after so long, in milliseconds, has been started anew.
const FORGOTTEN: u64 = 300_000;

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// In milliseconds since the epoch.
    pub at: u64,
    pub stage: Stage,
    pub outcome: Outcome,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
}

/// The last thing that went wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    pub at: u64,
    pub stage: Stage,
    pub text: String,
}

/// A machine as far as it has been seen; times are in seconds since the epoch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Machine {
    /// The MAC address, or `uuid:` and the UUID of one that told no MAC address.
    pub id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// The name that it or its reservation gave.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// As its firmware tells it to iPXE.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arch: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// The Matchbox group that matched its last request, and the profile of that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// How often it has booted from the network.
    pub boots: u64,
    /// When it was heard of last.
    pub seen: u64,
    /// When it said that it is installed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub installed: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// What has happened in its last boot.
    pub timeline: Vec<Entry>,
    /// What is nobody's business but the server's.
    #[serde(skip_serializing_if = "Private::is_empty")]
    pub(super) private: Private,
}

/// The proof that belongs to the last boot, and what it has been good for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Private {
    /// The hash of the nonce in its boot URL.
    pub(super) nonce: Option<String>,
    /// Whether that nonce went out in its kernel arguments, so that it must come with reports.
    pub(super) told: bool,
    pub(super) served: BTreeSet<String>,
}

impl Private {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl Machine {
    /// Where it stands.
    pub fn last(&self) -> Option<&Entry> {
        self.timeline.last()
    }

    /// The furthest stage of its last boot.
    pub fn furthest(&self) -> Option<Stage> {
        self.timeline.iter().map(|entry| entry.stage).max()
    }

    /// Without what is the server's alone.
    pub fn public(&self) -> Self {
        Self { private: Private::default(), ..self.clone() }
    }
}

/// What a machine says of itself, or we found out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Facts {
    pub uuid: Option<String>,
    pub hostname: Option<String>,
    pub serial: Option<String>,
    pub arch: Option<String>,
    pub address: Option<IpAddr>,
    pub group: Option<String>,
    pub profile: Option<String>,
}

/// One thing that a server saw a machine do.
#[derive(Clone, Debug, PartialEq)]
pub struct Note {
    pub facts: Facts,
    pub stage: Stage,
    pub outcome: Outcome,
    /// What goes with the stage: a file's name, or why it failed.
    pub detail: String,
    /// The firmware itself asks, before any boot loader: whatever was before is over.
    pub power_on: bool,
}

impl Note {
    /// A note that knows no facts and has no detail.
    pub fn new(stage: Stage, outcome: Outcome) -> Self {
        Self { facts: Facts::default(), stage, outcome, detail: String::new(), power_on: false }
    }

    /// The note with a file's name, or a failure's cause.
    pub fn detail(self, detail: impl Into<String>) -> Self {
        Self { detail: detail.into(), ..self }
    }

    /// The note with what was learnt of the machine beside.
    pub fn facts(self, facts: Facts) -> Self {
        Self { facts, ..self }
    }
}

/// The machines by name, and what is known of each. Their number is bounded: to make room, of those that came least far
/// the one that was heard of longest ago goes.
#[derive(Debug, Default)]
pub struct Registry {
    machines: BTreeMap<String, Machine>,
    by_address: HashMap<IpAddr, String>,
}

/// Text of a stranger's, in bounds and without what moves a terminal's cursor.
fn tame(text: &str) -> String {
    let mut out = String::new();
    for character in text.trim().chars() {
        if out.len() + character.len_utf8() > MAX_TEXT {
            break;
        }
        let shown = !character.is_control() || character == '\n';
        out.push(if shown { character } else { ' ' });
    }
    out
}

impl Registry {
    /// A machine by its name in the book.
    pub fn get(&self, id: &str) -> Option<&Machine> {
        self.machines.get(id)
    }

    /// All machines, in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = &Machine> {
        self.machines.values()
    }

    /// How many machines are known.
    pub fn len(&self) -> usize {
        self.machines.len()
    }

    /// Whether no machine has been seen.
    pub fn is_empty(&self) -> bool {
        self.machines.is_empty()
    }

    /// Who was seen last at an address.
    pub fn at(&self, address: IpAddr) -> Option<&Machine> {
        self.machines.get(self.by_address.get(&address)?)
    }

    /// The machine with this UUID: who tells no MAC address later is known by it.
    pub(crate) fn with_uuid(&self, uuid: &str) -> Option<&Machine> {
        self.iter().find(|machine| machine.uuid.as_deref() == Some(uuid))
    }

    /// Takes a machine over as it was written down.
    pub(super) fn restore(&mut self, machine: Machine) {
        if let Some(address) = machine.address {
            self.by_address.insert(address, machine.id.clone());
        }
        self.machines.insert(machine.id.clone(), machine);
    }

    /// The machine of this name, made if it is new.
    pub(super) fn entry(&mut self, id: &str) -> &mut Machine {
        if !self.machines.contains_key(id) {
            self.make_room();
        }
        self.machines
            .entry(id.to_owned())
            .or_insert_with(|| Machine { id: id.to_owned(), ..Machine::default() })
    }

    fn make_room(&mut self) {
        if self.machines.len() < MAX_MACHINES {
            return;
        }
        let worth = |machine: &&Machine| {
            (machine.installed.is_some(), machine.furthest() > Some(Stage::Dhcp), machine.seen)
        };
        if let Some(id) = self.iter().min_by_key(worth).map(|machine| machine.id.clone()) {
            self.machines.remove(&id);
            self.by_address.retain(|_, other| *other != id);
        }
    }

    /// Notes something of a machine. `false`: nothing is new but that it was heard of.
    pub fn note(&mut self, id: &str, now: u64, note: Note) -> bool {
        let machine = self.entry(id);
        machine.seen = now;
        let mut new = learn(machine, &note.facts);
        if begins_anew(machine, &note, now) {
            machine.timeline.clear();
            machine.boots += 1;
        }
        let detail = tame(&note.detail);
        let same = |entry: &&Entry| {
            (entry.stage, entry.outcome) == (note.stage, note.outcome) && entry.detail == detail
        };
        if machine.last().filter(same).is_none() {
            if machine.timeline.len() >= MAX_ENTRIES {
                machine.timeline.remove(MAX_ENTRIES / 2);
            }
            if note.outcome == Outcome::Failed {
                let text = detail.clone();
                machine.failure = Some(Failure { at: now, stage: note.stage, text });
            }
            let (stage, outcome) = (note.stage, note.outcome);
            machine.timeline.push(Entry { at: now, stage, outcome, detail });
            shorten(&mut machine.timeline);
            new = true;
        }
        if note.outcome == Outcome::Succeeded
            && matches!(note.stage, Stage::Installed | Stage::Ready)
        {
            machine.failure = None;
            if note.stage == Stage::Installed {
                machine.installed = Some(now);
            }
        }
        if let Some(address) = note.facts.address {
            self.by_address.insert(address, id.to_owned());
            // Addresses are given again and again; machines bound the table, each with a few.
            if self.by_address.len() > 4 * MAX_MACHINES {
                self.by_address.clear();
                self.by_address.insert(address, id.to_owned());
            }
        }
        new
    }
}

/// Who says much again and again is heard last and no longer shown whole before.
fn shorten(timeline: &mut [Entry]) {
    let mut room = MAX_TEXTS;
    for entry in timeline.iter_mut().rev() {
        match room.checked_sub(entry.detail.len()) {
            Some(left) => room = left,
            None => entry.detail = String::new(),
        }
    }
}

fn learn(machine: &mut Machine, facts: &Facts) -> bool {
    let mut new = false;
    let pairs = [
        (&mut machine.uuid, &facts.uuid),
        (&mut machine.hostname, &facts.hostname),
        (&mut machine.serial, &facts.serial),
        (&mut machine.arch, &facts.arch),
        (&mut machine.group, &facts.group),
        (&mut machine.profile, &facts.profile),
    ];
    for (known, told) in pairs {
        let told = told.as_deref().map(tame).filter(|text| !text.is_empty());
        if told.is_some() && *known != told {
            *known = told;
            new = true;
        }
    }
    if facts.address.is_some() && machine.address != facts.address {
        machine.address = facts.address;
        new = true;
    }
    new
}

/// Whether this is the first that is heard of another boot. Of one boot, firmware asks for an address, then the
/// boot loader that it fetched, and then the system.
fn begins_anew(machine: &Machine, note: &Note, now: u64) -> bool {
    let (Some(last), Some(furthest)) = (machine.last(), machine.furthest()) else { return true };
    let before = match note.stage {
        Stage::Dhcp if note.power_on => Stage::Dhcp,
        Stage::Dhcp => Stage::Firmware,
        Stage::Firmware | Stage::Ipxe => Stage::Ipxe,
        _ => return false,
    };
    furthest > before || now.saturating_sub(last.at) > FORGOTTEN
}
