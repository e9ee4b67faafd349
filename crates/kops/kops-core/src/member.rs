//! Decides how an etcd member starts on a control plane's volume. If the state is unclear, the member waits or refuses
//! to start: a new cluster beside one that lost its quorum would be a second, empty cluster.

use std::collections::BTreeMap;

use api_meta::Tree as _;
use serde_json::{Value, json};

pub use crate::marks::Mark;
use crate::marks::Restore;

/// The owner of a volume, as recorded on it. It is written once, before anything else on the volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tag {
    /// The cluster's name.
    pub cluster: String,
    /// The etcd cluster, such as `main`.
    pub etcd: String,
    /// The member's name.
    pub member: String,
    /// The unique ID of the volume.
    pub id: String,
    /// `true` if etcd may have run on the volume. A used volume without data has lost its member's votes.
    pub used: bool,
    /// The generation of the etcd cluster: empty for the first cluster, another value after each restoration.
    pub generation: String,
}

impl Tag {
    /// Parses the tag of a volume.
    pub fn read(text: &str) -> Option<Self> {
        let tree: Value = serde_json::from_str(text).ok()?;
        let word = |field: &str| Some(tree.text(field).to_owned()).filter(|text| !text.is_empty());
        Some(Self {
            cluster: word("cluster")?,
            etcd: word("etcd")?,
            member: word("member")?,
            id: word("id")?,
            used: tree.opt_flag("used")?,
            generation: tree.text("generation").to_owned(),
        })
    }

    /// Returns the tag as it is written to a volume.
    pub fn to_text(&self) -> String {
        let Self { cluster, etcd, member, id, used, generation } = self;
        json!({
            "cluster": cluster, "etcd": etcd, "member": member, "id": id, "used": used, "generation": generation,
        })
        .to_string()
    }
}

/// The content of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// The tag only.
    Blank,
    /// etcd's data.
    Data,
    /// Something else.
    Foreign,
}

/// An etcd member, as reported by a quorum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdMember {
    /// The member's peer URL.
    pub peer_url: String,
    /// The member's name; empty until it has started.
    pub name: String,
    /// `true` for a learner.
    pub learner: bool,
}

/// The inputs of the decision for one volume.
#[derive(Clone, Debug)]
pub struct Volume<'a> {
    /// The cluster's name.
    pub cluster: &'a str,
    /// The etcd cluster.
    pub etcd: &'a str,
    /// The member's name.
    pub member: &'a str,
    /// The member's peer URL.
    pub peer_url: &'a str,
    /// The volume's tag; `None` if the volume was never used.
    pub tag: Option<&'a Tag>,
    /// The content of the volume.
    pub content: Content,
    /// All members in the spec.
    pub members: &'a [String],
    /// The members of the cluster, if a quorum answers.
    pub quorum: Option<&'a [EtcdMember]>,
    /// The mark in the store.
    pub mark: Option<&'a Mark>,
    /// A pending command to restore a backup.
    pub restore: Option<&'a Restore>,
    /// The IDs of the volumes that members report as blank or no longer needed, by member.
    pub blank: &'a BTreeMap<String, String>,
    /// `true` if the store holds a backup.
    pub backup: bool,
}

/// The decision for a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Start {
    /// Run etcd with the data on the volume.
    Run,
    /// Run etcd as an existing member that has never started.
    Expected,
    /// Remove the old member, if any, and join as a learner.
    Join,
    /// Write the mark to the store: these volumes start a cluster.
    Mark(Mark),
    /// Start a cluster with the mark's backup and the volumes in the mark.
    Begin,
    /// Wait, for this reason.
    Wait(String),
    /// Refuse to start, for this reason.
    Refuse(String),
}

/// Decides for one volume.
pub fn start(volume: &Volume<'_>) -> Start {
    let own = |tag: &Tag| {
        tag.cluster == volume.cluster && tag.etcd == volume.etcd && tag.member == volume.member
    };
    if let Some(tag) = volume.tag.filter(|tag| !own(tag)) {
        return Start::Refuse(format!(
            "the volume is of member {:?} of etcd {:?} of cluster {:?}, not of {:?} of {:?} of {:?}",
            tag.member, tag.etcd, tag.cluster, volume.member, volume.etcd, volume.cluster
        ));
    }
    if volume.content == Content::Foreign {
        let text = "the volume holds data that is not etcd's: move it away";
        return Start::Refuse(text.to_owned());
    }
    if let Some(restore) = volume.restore {
        // A restoration starts a new cluster whatever the volumes hold, once no member runs any more.
        return gather(volume, restore.generation(), &restore.backup);
    }
    if volume.content == Content::Data && volume.is_current() {
        return Start::Run;
    }
    if let Some(quorum) = volume.quorum {
        return join(volume, quorum);
    }
    let id = volume.tag.map(|tag| tag.id.as_str());
    if let Some(mark) = volume.mark {
        let is_founder = mark.members.get(volume.member).map(String::as_str) == id && id.is_some();
        return if is_founder && !volume.is_used() {
            Start::Begin
        } else {
            Start::Wait(
                "the volume is blank, the cluster was started before, and no quorum of its members answers: if too few \
                 are left, restore a backup"
                    .to_owned(),
            )
        };
    }
    if volume.backup {
        let text = "the store holds a backup, but no mark of a cluster: restore it (etcd-manager-ctl restore-backup), \
                    or move it away to start a new cluster";
        return Start::Refuse(text.to_owned());
    }
    gather(volume, String::new(), "")
}

impl Volume<'_> {
    /// Reports whether the volume's content belongs to the present cluster. Without a mark there is only one cluster.
    fn is_current(&self) -> bool {
        let generation = self.tag.map_or("", |tag| tag.generation.as_str());
        self.mark.is_none_or(|mark| mark.generation == generation)
    }

    /// Reports whether etcd may have run on the volume in the present cluster.
    fn is_used(&self) -> bool {
        self.tag.is_some_and(|tag| tag.used) && self.is_current()
    }
}

/// Starts a cluster once the volumes of all members are known.
fn gather(volume: &Volume<'_>, generation: String, backup: &str) -> Start {
    let missing: Vec<_> = volume
        .members
        .iter()
        .filter(|member| !volume.blank.contains_key(*member))
        .cloned()
        .collect();
    if missing.is_empty() {
        let (backup, members) = (backup.to_owned(), volume.blank.clone());
        return Start::Mark(Mark { generation, backup, members });
    }
    let missing = missing.join(", ");
    Start::Wait(match backup {
        "" => format!(
            "a cluster starts when the volumes of all members are known to be blank; missing: {missing}"
        ),
        backup => format!(
            "backup {backup} is restored when all members have stopped and their volumes are known; missing: {missing}"
        ),
    })
}

/// Decides for a blank volume in a running cluster.
fn join(volume: &Volume<'_>, quorum: &[EtcdMember]) -> Start {
    let own = quorum.iter().find(|member| member.peer_url == volume.peer_url);
    let used = volume.is_used();
    // A member that never started has given no votes, so it may still start under its identity.
    if own.is_some_and(|own| own.name.is_empty() && !own.learner) && !used {
        return Start::Expected;
    }
    let learner = quorum.iter().find(|m| m.learner && m.peer_url != volume.peer_url);
    match learner {
        Some(other) => {
            Start::Wait(format!("the member at {} joins; one joins at a time", other.peer_url))
        }
        None => Start::Join,
    }
}

#[cfg(test)]
mod tests {
    use rand::{Rng as _, SeedableRng as _, rngs::StdRng};

    use super::*;

    fn tag(member: &str, used: bool) -> Tag {
        Tag {
            cluster: "c".to_owned(),
            etcd: "main".to_owned(),
            member: member.to_owned(),
            id: format!("v-{member}"),
            used,
            generation: String::new(),
        }
    }

    fn mark(members: &BTreeMap<String, String>, generation: &str, backup: &str) -> Mark {
        let (generation, backup) = (generation.to_owned(), backup.to_owned());
        Mark { generation, backup, members: members.clone() }
    }

    fn ids(members: &[&str]) -> BTreeMap<String, String> {
        members.iter().map(|member| ((*member).to_owned(), format!("v-{member}"))).collect()
    }

    fn known(member: &str, learner: bool, started: bool) -> EtcdMember {
        let name = if started { member.to_owned() } else { String::new() };
        EtcdMember { peer_url: format!("https://{member}"), name, learner }
    }

    #[test]
    #[allow(clippy::too_many_lines, reason = "one scenario")]
    fn decides_start_by_volume_and_cluster_state() {
        let members = ["a", "b", "c"].map(str::to_owned);
        let (all, two, none) = (ids(&["a", "b", "c"]), ids(&["a", "b"]), BTreeMap::new());
        let (fresh, used, other) = (tag("a", false), tag("a", true), tag("b", false));
        let foreign = Tag { cluster: "d".to_owned(), ..tag("a", false) };
        let others = [known("b", false, true), known("c", false, true)];
        let with = |own: EtcdMember| [others.to_vec(), vec![own]].concat();
        let (lost, expected, joining) = (
            with(known("a", false, true)),
            with(known("a", false, false)),
            with(known("a", true, false)),
        );
        let busy = [known("b", false, true), known("c", true, true)];
        let base = Volume {
            cluster: "c",
            etcd: "main",
            member: "a",
            peer_url: "https://a",
            tag: Some(&fresh),
            content: Content::Blank,
            members: &members,
            quorum: None,
            mark: None,
            restore: None,
            blank: &all,
            backup: false,
        };
        let restore = Restore { backup: "b".to_owned(), timestamp: 7 };
        let (founded, nobody) = (mark(&all, "", ""), mark(&none, "", ""));
        let restored = mark(&all, "restored-7", "b");
        let again = Tag { generation: "restored-7".to_owned(), ..tag("a", true) };
        let v = || base.clone();
        for (volume, wanted) in [
            (Volume { tag: Some(&other), ..v() }, "refuse"),
            (Volume { tag: Some(&foreign), content: Content::Data, ..v() }, "refuse"),
            (Volume { content: Content::Foreign, ..v() }, "refuse"),
            (Volume { content: Content::Data, tag: Some(&used), ..v() }, "run"),
            (Volume { tag: None, content: Content::Data, ..v() }, "run"),
            // A cluster starts only when all volumes are blank.
            (v(), "mark"),
            (Volume { blank: &two, ..v() }, "wait"),
            (Volume { blank: &none, ..v() }, "wait"),
            (Volume { backup: true, ..v() }, "refuse"),
            (Volume { mark: Some(&founded), backup: true, ..v() }, "begin"),
            // A founder that lost its data, another volume, and a volume that was not a founder.
            (Volume { mark: Some(&founded), tag: Some(&used), ..v() }, "wait"),
            (Volume { mark: Some(&founded), tag: None, ..v() }, "wait"),
            (Volume { mark: Some(&nobody), ..v() }, "wait"),
            // A running cluster.
            (Volume { quorum: Some(&others), mark: Some(&founded), ..v() }, "join"),
            (Volume { quorum: Some(&lost), mark: Some(&founded), tag: Some(&used), ..v() }, "join"),
            (Volume { quorum: Some(&joining), mark: Some(&founded), ..v() }, "join"),
            (Volume { quorum: Some(&expected), mark: Some(&founded), ..v() }, "expected"),
            (Volume { quorum: Some(&expected), tag: Some(&used), ..v() }, "join"),
            (Volume { quorum: Some(&busy), ..v() }, "wait"),
            // A restoration overrides the present cluster and waits for all members; then each volume starts once.
            (Volume { restore: Some(&restore), mark: Some(&founded), blank: &two, ..v() }, "wait"),
            (
                Volume {
                    restore: Some(&restore),
                    quorum: Some(&others),
                    content: Content::Data,
                    ..v()
                },
                "mark",
            ),
            (Volume { restore: Some(&restore), content: Content::Foreign, ..v() }, "refuse"),
            (
                Volume { mark: Some(&restored), content: Content::Data, tag: Some(&used), ..v() },
                "begin",
            ),
            (
                Volume { mark: Some(&restored), content: Content::Data, tag: Some(&again), ..v() },
                "run",
            ),
            (Volume { mark: Some(&restored), tag: Some(&again), ..v() }, "wait"),
            (
                Volume { mark: Some(&restored), tag: Some(&again), quorum: Some(&lost), ..v() },
                "join",
            ),
            // The mark was lost: a volume with data runs.
            (Volume { content: Content::Data, tag: Some(&again), ..v() }, "run"),
        ] {
            let outcome = match start(&volume) {
                Start::Run => "run",
                Start::Expected => "expected",
                Start::Join => "join",
                Start::Mark(_) => "mark",
                Start::Begin => "begin",
                Start::Wait(_) => "wait",
                Start::Refuse(_) => "refuse",
            };
            assert_eq!(outcome, wanted, "{volume:?}");
        }
    }

    #[test]
    fn tags_round_trip_and_invalid_ones_are_rejected() {
        let own = tag("a", true);
        assert_eq!(Tag::read(&own.to_text()), Some(own));
        for text in [
            "",
            "{}",
            "[]",
            r#"{"cluster":"c","etcd":"main","member":"a","id":"x"}"#,
            r#"{"used":true}"#,
        ] {
            assert_eq!(Tag::read(text), None, "{text}");
        }
    }

    /// Simulates machines and volumes that come and go in any order. Two clusters never start, and no member forgets
    /// its votes.
    #[test]
    #[allow(clippy::too_many_lines, reason = "one scenario")]
    fn never_starts_two_clusters() {
        const NAMES: [&str; 3] = ["a", "b", "c"];
        for seed in 0..3_000 {
            let random = &mut StdRng::seed_from_u64(seed);
            let members = NAMES.map(str::to_owned);
            let mut tags: [Option<Tag>; 3] = [None, None, None];
            let (mut data, mut runs) = ([false; 3], [false; 3]);
            let mut begun: Option<Mark> = None;
            let mut restore: Option<Restore> = None;
            let mut blank = BTreeMap::new();
            let (mut started_ever, mut marks, mut commands) = (false, 0, 0);
            for moment in 0..60 {
                let who = random.random_range(0..3);
                match random.random_range(0..10) {
                    // The machine ends; its volume stays or is lost.
                    0 | 1 => runs[who] = false,
                    // A backup is restored; machines end at some time.
                    3 if started_ever && random.random_bool(0.2) => {
                        commands += 1;
                        let timestamp = i64::from(moment) + 1;
                        restore = Some(Restore { backup: "b".to_owned(), timestamp });
                        blank.clear();
                    }
                    2 if started_ever && random.random_bool(0.3) => {
                        (runs[who], data[who], tags[who]) = (false, false, None);
                    }
                    _ if !runs[who] => {
                        let tag = tags[who].get_or_insert_with(|| Tag {
                            id: format!("{moment}-{who}"),
                            ..tag(NAMES[who], false)
                        });
                        if !data[who] || restore.is_some() {
                            blank.insert(NAMES[who].to_owned(), tag.id.clone());
                        }
                        let living = (0..3).filter(|n| runs[*n] && data[*n]).count() >= 2;
                        let known: Vec<_> = (0..3)
                            .map(|n| {
                                known(
                                    NAMES[n],
                                    false,
                                    tags[n].as_ref().is_some_and(|t| t.used) || n == who,
                                )
                            })
                            .collect();
                        let content = if data[who] { Content::Data } else { Content::Blank };
                        let tag = tags[who].clone();
                        let step = start(&Volume {
                            cluster: "c",
                            etcd: "main",
                            member: NAMES[who],
                            peer_url: &format!("https://{}", NAMES[who]),
                            tag: tag.as_ref(),
                            content,
                            members: &members,
                            quorum: living.then_some(known.as_slice()),
                            mark: begun.as_ref(),
                            restore: restore.as_ref(),
                            blank: &blank,
                            backup: false,
                        });
                        let now = begun.as_ref().map(|mark| mark.generation.clone());
                        let own = tags[who].as_mut().unwrap();
                        match step {
                            Start::Mark(mark) => {
                                assert!(
                                    !started_ever || restore.is_some(),
                                    "seed {seed}: a second cluster"
                                );
                                assert_eq!(runs, [false; 3], "seed {seed}: two clusters at once");
                                marks += 1;
                                (begun, restore) = (Some(mark), None);
                                blank.clear();
                            }
                            Start::Begin => {
                                let again = own.used && Some(&own.generation) == now.as_ref();
                                assert!(!again, "seed {seed}: it forgot what it had promised");
                                own.generation = now.unwrap_or_default();
                                (own.used, data[who], runs[who], started_ever) =
                                    (true, true, true, true);
                            }
                            Start::Join | Start::Expected => {
                                assert!(living, "seed {seed}: joined without a quorum");
                                own.generation = now.unwrap_or_default();
                                (own.used, data[who], runs[who]) = (true, true, true);
                            }
                            Start::Run => {
                                assert!(data[who] && Some(&own.generation) == now.as_ref());
                                runs[who] = true;
                            }
                            Start::Wait(_) => {}
                            Start::Refuse(why) => panic!("seed {seed}: {why}"),
                        }
                    }
                    _ => {}
                }
            }
            assert!(marks <= 1 + commands, "seed {seed}");
        }
    }
}
