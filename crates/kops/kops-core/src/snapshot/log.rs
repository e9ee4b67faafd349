//! The first files of a member that starts from a database: the log (WAL) with the entries that add the initial
//! members, and Raft's snapshot directly after them. A member that joins later is sent the database, because the log
//! does not reach back before the snapshot.

use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

pub(super) const TERM: u64 = 1;

/// An initial member of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InitialMember {
    /// The member's ID.
    pub(super) id: u64,
    /// The member's name.
    pub(super) name: String,
    /// The member's peer URL.
    pub(super) peer_url: String,
}

impl InitialMember {
    /// Returns the member in etcd's form.
    pub(super) fn to_json(&self) -> Value {
        json!({"id": self.id, "peerURLs": [self.peer_url], "name": self.name})
    }
}

/// All initial members of a cluster. Every member assigns them the same IDs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitialCluster {
    cluster: u64,
    all: Vec<InitialMember>,
}

fn number(parts: &[&[u8]]) -> u64 {
    let mut sum = Sha256::new();
    for part in parts {
        sum.update((part.len() as u64).to_be_bytes());
        sum.update(part);
    }
    let sum = sum.finalize();
    let first = sum.get(..8).and_then(|part| part.try_into().ok()).unwrap_or([1; 8]);
    // Raft reserves zero for no member.
    u64::from_be_bytes(first).max(1)
}

impl InitialCluster {
    /// Creates the cluster from names and peer URLs. The token is unique per cluster, so members of an earlier cluster
    /// are never mistaken for these.
    pub fn new<'a>(token: &str, all: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let member = |(name, peer_url): (&str, &str)| InitialMember {
            id: number(&[token.as_bytes(), peer_url.as_bytes()]),
            name: name.to_owned(),
            peer_url: peer_url.to_owned(),
        };
        let mut all: Vec<_> = all.into_iter().map(member).collect();
        all.sort_by_key(|member| member.id);
        let ids: Vec<u8> = all.iter().flat_map(|member| member.id.to_be_bytes()).collect();
        Self { cluster: number(&[token.as_bytes(), &ids]), all }
    }

    pub(super) fn members(&self) -> impl Iterator<Item = &InitialMember> {
        self.all.iter()
    }

    /// Returns the number of entries at the start of the log: one per member.
    pub(super) fn index(&self) -> u64 {
        self.all.len() as u64
    }

    fn state(&self) -> Vec<u8> {
        self.all.iter().flat_map(|member| Message::default().number(1, member.id).0).collect()
    }
}

/// A protobuf message.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push((number & 0x7F) as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    fn number(mut self, field: u64, number: u64) -> Self {
        self.varint(field << 3);
        self.varint(number);
        self
    }

    fn bytes(mut self, field: u64, bytes: &[u8]) -> Self {
        self.varint(field << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
        self
    }
}

/// Returns the CRC-32C of `bytes`, continued from an earlier sum.
pub(super) fn sum(before: u32, bytes: &[u8]) -> u32 {
    let step = |sum: u32, byte: &u8| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| (sum >> 1) ^ (0x82F6_3B78 * (sum & 1)))
    };
    !bytes.iter().fold(!before, step)
}

#[derive(Default)]
struct Log {
    bytes: Vec<u8>,
    sum: u32,
}

impl Log {
    fn record(&mut self, kind: u64, data: Option<&[u8]>) {
        self.sum = sum(self.sum, data.unwrap_or_default());
        let mut record = Message::default().number(1, kind).number(2, u64::from(self.sum));
        if let Some(data) = data {
            record = record.bytes(3, data);
        }
        // Records are padded to multiples of eight; the length field encodes the padding.
        let length = record.0.len() as u64;
        let added = (8 - length % 8) % 8;
        let mark = if added > 0 { (0x80 | added) << 56 } else { 0 };
        self.bytes.extend_from_slice(&(length | mark).to_le_bytes());
        self.bytes.extend_from_slice(&record.0);
        self.bytes.resize(self.bytes.len() + added as usize, 0);
    }
}

const METADATA: u64 = 1;
const ENTRY: u64 = 2;
const STATE: u64 = 3;
const SUM: u64 = 4;
const SNAPSHOT: u64 = 5;
const CHANGE_OF_MEMBERS: u64 = 1;

/// Returns the log of an initial member: its name below `member/wal` and its content. `None` for other members.
pub fn log_file(initial: &InitialCluster, name: &str) -> Option<(&'static str, Vec<u8>)> {
    let own = initial.all.iter().find(|member| member.name == name)?;
    let mut log = Log::default();
    log.record(SUM, None);
    let metadata = Message::default().number(1, own.id).number(2, initial.cluster);
    log.record(METADATA, Some(&metadata.0));
    log.record(SNAPSHOT, Some(&Message::default().number(1, 0).number(2, 0).0));
    for (member, index) in initial.all.iter().zip(1..) {
        // Kind zero adds a member.
        let change = Message::default()
            .number(1, 0)
            .number(2, 0)
            .number(3, member.id)
            .bytes(4, member.to_json().to_string().as_bytes());
        let entry = Message::default()
            .number(1, CHANGE_OF_MEMBERS)
            .number(2, TERM)
            .number(3, index)
            .bytes(4, &change.0);
        log.record(ENTRY, Some(&entry.0));
    }
    let vote = initial.all.first()?.id;
    let state = Message::default().number(1, TERM).number(2, vote).number(3, initial.index());
    log.record(STATE, Some(&state.0));
    let snapshot = Message::default().number(1, initial.index()).number(2, TERM);
    log.record(SNAPSHOT, Some(&snapshot.bytes(3, &initial.state()).0));
    Some(("0000000000000000-0000000000000000.wal", log.bytes))
}

/// Returns Raft's snapshot: its name below `member/snap` and its content, the members in etcd's v2 format.
pub fn raft_file(initial: &InitialCluster) -> (String, Vec<u8>) {
    let metadata =
        Message::default().bytes(1, &initial.state()).number(2, initial.index()).number(3, TERM);
    let members = members(initial).to_string();
    let snapshot = Message::default().bytes(1, members.as_bytes()).bytes(2, &metadata.0).0;
    let whole = Message::default().number(1, u64::from(sum(0, &snapshot))).bytes(2, &snapshot);
    (format!("{TERM:016x}-{:016x}.snap", initial.index()), whole.0)
}

fn members(initial: &InitialCluster) -> Value {
    let directory = |path: &str, children: Map<String, Value>| {
        json!({
            "Path": path, "CreatedIndex": 0, "ModifiedIndex": 0, "ExpireTime": "0001-01-01T00:00:00Z", "Value": "",
            "Children": children,
        })
    };
    let file = |path: String, value: Value| {
        json!({
            "Path": path, "CreatedIndex": 0, "ModifiedIndex": 0, "ExpireTime": "0001-01-01T00:00:00Z",
            "Value": value.to_string(), "Children": null,
        })
    };
    let of = |pairs: Vec<(String, Value)>| -> Map<String, Value> { pairs.into_iter().collect() };
    let member = |member: &InitialMember| {
        let path = format!("/0/members/{:x}", member.id);
        let raft = json!({"peerURLs": [member.peer_url]});
        let attributes = json!({"name": member.name});
        let content = of(vec![
            ("raftAttributes".to_owned(), file(format!("{path}/raftAttributes"), raft)),
            ("attributes".to_owned(), file(format!("{path}/attributes"), attributes)),
        ]);
        (format!("{:x}", member.id), directory(&path, content))
    };
    let known = directory("/0/members", of(initial.all.iter().map(member).collect()));
    let cluster = directory("/0", of(vec![("members".to_owned(), known)]));
    let both = vec![("0".to_owned(), cluster), ("1".to_owned(), directory("/1", Map::new()))];
    json!({"Root": directory("/", of(both)), "CurrentIndex": initial.index(), "CurrentVersion": 2})
}
