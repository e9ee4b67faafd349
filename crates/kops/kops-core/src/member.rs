//! Decides how an etcd member starts on a control plane's volume. If the state is unclear, the member waits or refuses
//! to start: a new cluster beside one that lost its quorum would be a second, empty cluster.

use std::collections::BTreeMap;

use api_meta::Tree as _;
use serde_json::{Value, json};

pub use crate::marks::Mark;
use crate::marks::Restore;

/// The owner of a volume, as recorded on it before anything else.
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
    /// `true` once etcd has run on the volume in its generation. A used volume without data has lost its member's
    /// votes. It becomes `true` after etcd has written its first data: until then, the start may be repeated.
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
    /// `true` if the volume holds data of the present cluster that was set aside for a restoration.
    pub aside: bool,
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
    /// Put the data back that was set aside for a restoration, and run etcd with it.
    Return,
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
    if volume.aside {
        // The restoration was undone.
        return Start::Return;
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
            Start::Wait(volume.lost_reason())
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

    /// Returns the reason why a blank volume starts no cluster, with the ways out.
    fn lost_reason(&self) -> String {
        let way_out = if self.backup {
            "restore a backup (etcd-manager-ctl list-backups, restore-backup)"
        } else {
            "the data of the cluster is lost, and the store holds no backup: delete the cluster, or, to start it anew \
             and empty, delete control/etcd-cluster-created and control/blank of the backup store and the members' \
             volumes"
        };
        format!(
            "the volume is blank, the cluster was started before, and no quorum of its members answers: if too few \
             are left, {way_out}"
        )
    }

    /// Reports whether etcd has run on the volume in the present cluster.
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
        // A restored cluster that has not come up is not returned to, but the cluster before it.
        let previous = volume
            .mark
            .filter(|_| volume.restore.is_some())
            .map(|mark| mark.previous.clone().unwrap_or_else(|| mark.generation.clone()));
        let (backup, members) = (backup.to_owned(), volume.blank.clone());
        return Start::Mark(Mark { generation, backup, members, previous, ..Mark::default() });
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
mod simulation_tests;

#[cfg(test)]
mod tests {
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
        Mark { generation, backup, members: members.clone(), ..Mark::default() }
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
            aside: false,
        };
        let restore = Restore { backup: "b".to_owned(), timestamp: 7 };
        let (founded, nobody) = (mark(&all, "", ""), mark(&none, "", ""));
        let restored = mark(&all, "restored-7", "b");
        let again = Tag { generation: "restored-7".to_owned(), ..tag("a", true) };
        let undone = Mark { undone: 7, ..mark(&none, "", "") };
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
            // The restoration was undone: the data from before it is put back, also if others run already.
            (Volume { mark: Some(&undone), tag: Some(&again), aside: true, ..v() }, "return"),
            (
                Volume {
                    mark: Some(&undone),
                    tag: Some(&again),
                    content: Content::Data,
                    aside: true,
                    quorum: Some(&others),
                    ..v()
                },
                "return",
            ),
            (Volume { mark: Some(&undone), tag: Some(&used), aside: true, ..v() }, "return"),
            (
                Volume {
                    mark: Some(&undone),
                    tag: Some(&used),
                    content: Content::Data,
                    aside: true,
                    ..v()
                },
                "run",
            ),
            (Volume { mark: Some(&undone), tag: Some(&again), ..v() }, "wait"),
            // The mark was lost: a volume with data runs.
            (Volume { content: Content::Data, tag: Some(&again), ..v() }, "run"),
        ] {
            let outcome = match start(&volume) {
                Start::Run => "run",
                Start::Expected => "expected",
                Start::Join => "join",
                Start::Mark(_) => "mark",
                Start::Begin => "begin",
                Start::Return => "return",
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
}
