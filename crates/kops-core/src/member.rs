//! How a member of etcd begins on a control plane's volume. What is not known is not guessed: a cluster that begins anew
//! beside one whose quorum is away would be another one, empty.

use std::collections::BTreeMap;

use kops_api::Spec as _;
use serde_json::{Map, Value, json};

use crate::backup::Restore;

/// What a volume says of itself: whose it is. It is written once, before anything else is put on the volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tag {
    pub cluster: String,
    /// The etcd cluster, as `main`.
    pub etcd: String,
    pub member: String,
    /// Another for each volume.
    pub id: String,
    /// Whether etcd may have run on it: without data it has lost what it had promised others.
    pub used: bool,
    /// Which of the clusters that there were one after the other that was: empty for the first, another after each restoration.
    pub generation: String,
}

impl Tag {
    /// Reads what stands on a volume.
    pub fn read(text: &str) -> Option<Self> {
        let tree: Value = serde_json::from_str(text).ok()?;
        let word = |field: &str| Some(tree.text(field).to_owned()).filter(|text| !text.is_empty());
        Some(Self {
            cluster: word("cluster")?,
            etcd: word("etcd")?,
            member: word("member")?,
            id: word("id")?,
            used: tree.flag("used")?,
            generation: tree.text("generation").to_owned(),
        })
    }

    /// As it stands on a volume.
    pub fn to_text(&self) -> String {
        let Self { cluster, etcd, member, id, used, generation } = self;
        json!({
            "cluster": cluster, "etcd": etcd, "member": member, "id": id, "used": used, "generation": generation,
        })
        .to_string()
    }
}

/// The store's mark: that a cluster was begun, with what, and with which volumes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// As a [`Tag`] has it.
    pub generation: String,
    /// The backup that it began with; empty if it began with nothing.
    pub backup: String,
    /// The volumes' ids, by members.
    pub members: BTreeMap<String, String>,
}

impl Mark {
    /// Reads the mark. Upstream's says no more than that there is one: whoever is not named began nothing.
    pub fn read(text: &[u8]) -> Option<Self> {
        let tree: Map<String, Value> = serde_json::from_slice(text).ok()?;
        let tree = Value::from(tree);
        let members = tree.at("members").and_then(Value::as_object).into_iter().flatten();
        let members = members.map(|(name, id)| Some((name.clone(), id.as_str()?.to_owned())));
        Some(Self {
            generation: tree.text("generation").to_owned(),
            backup: tree.text("backup").to_owned(),
            members: members.collect::<Option<_>>()?,
        })
    }

    /// As it lies in the store; the moment, in nanoseconds, is what upstream's says.
    pub fn to_text(&self, timestamp: u64) -> String {
        let Self { generation, backup, members } = self;
        json!({"timestamp": timestamp, "generation": generation, "backup": backup, "members": members})
            .to_string()
    }
}

/// What lies on a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Nothing but the tag.
    Blank,
    /// etcd's data.
    Data,
    /// Something else.
    Foreign,
}

/// A member as those know it that have a quorum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    pub peer_url: String,
    /// Empty until it has started.
    pub name: String,
    pub learner: bool,
}

/// All that is looked at.
#[derive(Clone, Debug)]
pub struct Volume<'a> {
    pub cluster: &'a str,
    pub etcd: &'a str,
    pub member: &'a str,
    pub peer_url: &'a str,
    /// What its tag says; nothing of one that was never used.
    pub tag: Option<&'a Tag>,
    pub content: Content,
    /// All members that the spec names.
    pub members: &'a [String],
    /// The members, if a quorum answers.
    pub quorum: Option<&'a [Known]>,
    /// The store's mark.
    pub begun: Option<&'a Mark>,
    /// A command to restore a backup that nobody has begun to carry out.
    pub restore: Option<&'a Restore>,
    /// The volumes that members have told of, blank ones or those of which nothing is wanted any more: their ids by members.
    pub blank: &'a BTreeMap<String, String>,
    /// Whether the store holds a backup.
    pub backup: bool,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Start {
    /// Run it: its data says the rest.
    Run,
    /// Run it as a member that is expected and has never run.
    Expected,
    /// Remove the member that it was, if there is one, and have it join as a learner.
    Join,
    /// Mark the store: with these volumes a cluster begins.
    Mark(Mark),
    /// Begin a cluster with what the mark says, and with the other volumes that it names.
    Begin,
    /// Not yet; says what is waited for.
    Wait(String),
    /// Never; says why.
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
        let text = "what lies on the volume is neither etcd's nor nothing: move it away";
        return Start::Refuse(text.to_owned());
    }
    if let Some(restore) = volume.restore {
        // Whatever the volumes hold, and whoever lives: a restoration begins anew, when nobody is left who runs.
        return gather(volume, restore.generation(), &restore.backup);
    }
    if volume.content == Content::Data && volume.is_of_now() {
        return Start::Run;
    }
    if let Some(quorum) = volume.quorum {
        return join(volume, quorum);
    }
    let id = volume.tag.map(|tag| tag.id.as_str());
    if let Some(begun) = volume.begun {
        let is_founder = begun.members.get(volume.member).map(String::as_str) == id && id.is_some();
        return match is_founder && !volume.is_used() {
            true => Start::Begin,
            false => Start::Wait(
                "the volume is blank, the cluster was begun before, and no quorum of its members answers: if too few are left, \
                 restore a backup"
                    .to_owned(),
            ),
        };
    }
    if volume.backup {
        let text = "the store holds a backup, and no mark of a cluster: restore it (etcd-manager-ctl restore-backup), or \
                    move it away to begin anew";
        return Start::Refuse(text.to_owned());
    }
    gather(volume, String::new(), "")
}

impl Volume<'_> {
    /// Whether what the volume holds is of the cluster that there is now. Without a mark nobody knows of another.
    fn is_of_now(&self) -> bool {
        let generation = self.tag.map_or("", |tag| tag.generation.as_str());
        self.begun.is_none_or(|begun| begun.generation == generation)
    }

    /// Whether the volume may have promised something in the cluster that there is now.
    fn is_used(&self) -> bool {
        self.tag.is_some_and(|tag| tag.used) && self.is_of_now()
    }
}

/// A cluster begins once the volumes of all members are known.
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
            "a cluster begins when the volumes of all members are known to be blank; not yet of {missing}"
        ),
        backup => format!(
            "backup {backup} is restored when all members have ended and their volumes are known; not yet of {missing}"
        ),
    })
}

/// A blank volume in a cluster that lives.
fn join(volume: &Volume<'_>, quorum: &[Known]) -> Start {
    let own = quorum.iter().find(|member| member.peer_url == volume.peer_url);
    let used = volume.is_used();
    // A member that was never started has promised nothing: it may still begin as what it is.
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

    fn known(member: &str, learner: bool, started: bool) -> Known {
        let name = if started { member.to_owned() } else { String::new() };
        Known { peer_url: format!("https://{member}"), name, learner }
    }

    #[test]
    fn each_volume_begins_as_what_is_known_of_it_allows() {
        let members = ["a", "b", "c"].map(str::to_owned);
        let (all, two, none) = (ids(&["a", "b", "c"]), ids(&["a", "b"]), BTreeMap::new());
        let (fresh, used, other) = (tag("a", false), tag("a", true), tag("b", false));
        let foreign = Tag { cluster: "d".to_owned(), ..tag("a", false) };
        let others = [known("b", false, true), known("c", false, true)];
        let with = |own: Known| [others.to_vec(), vec![own]].concat();
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
            begun: None,
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
            // A cluster begins when all are blank, and only then.
            (v(), "mark"),
            (Volume { blank: &two, ..v() }, "wait"),
            (Volume { blank: &none, ..v() }, "wait"),
            (Volume { backup: true, ..v() }, "refuse"),
            (Volume { begun: Some(&founded), backup: true, ..v() }, "begin"),
            // It was one of those that began, and has lost what it had; it is another volume; it was none of them.
            (Volume { begun: Some(&founded), tag: Some(&used), ..v() }, "wait"),
            (Volume { begun: Some(&founded), tag: None, ..v() }, "wait"),
            (Volume { begun: Some(&nobody), ..v() }, "wait"),
            // A living cluster.
            (Volume { quorum: Some(&others), begun: Some(&founded), ..v() }, "join"),
            (
                Volume { quorum: Some(&lost), begun: Some(&founded), tag: Some(&used), ..v() },
                "join",
            ),
            (Volume { quorum: Some(&joining), begun: Some(&founded), ..v() }, "join"),
            (Volume { quorum: Some(&expected), begun: Some(&founded), ..v() }, "expected"),
            (Volume { quorum: Some(&expected), tag: Some(&used), ..v() }, "join"),
            (Volume { quorum: Some(&busy), ..v() }, "wait"),
            // A restoration goes before what there is, and waits for all; then each volume begins once.
            (Volume { restore: Some(&restore), begun: Some(&founded), blank: &two, ..v() }, "wait"),
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
                Volume { begun: Some(&restored), content: Content::Data, tag: Some(&used), ..v() },
                "begin",
            ),
            (
                Volume { begun: Some(&restored), content: Content::Data, tag: Some(&again), ..v() },
                "run",
            ),
            (Volume { begun: Some(&restored), tag: Some(&again), ..v() }, "wait"),
            (
                Volume { begun: Some(&restored), tag: Some(&again), quorum: Some(&lost), ..v() },
                "join",
            ),
            // The mark was lost: who has data has it.
            (Volume { content: Content::Data, tag: Some(&again), ..v() }, "run"),
        ] {
            let said = match start(&volume) {
                Start::Run => "run",
                Start::Expected => "expected",
                Start::Join => "join",
                Start::Mark(_) => "mark",
                Start::Begin => "begin",
                Start::Wait(_) => "wait",
                Start::Refuse(_) => "refuse",
            };
            assert_eq!(said, wanted, "{volume:?}");
        }
    }

    #[test]
    fn marks_come_back_and_upstreams_names_nobody() {
        let own = mark(&ids(&["a", "b"]), "restored-7", "b");
        assert_eq!(Mark::read(own.to_text(5).as_bytes()), Some(own));
        assert_eq!(Mark::read(br#"{"timestamp": 1583942400}"#), Some(Mark::default()));
        for text in ["", "[]", "5", r#"{"members": {"a": 5}}"#] {
            assert_eq!(Mark::read(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn tags_come_back_and_what_is_none_does_not() {
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

    /// Machines and volumes come and go in any order: never do two clusters begin, and no member forgets what it promised.
    #[test]
    fn there_is_one_cluster_whatever_happens() {
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
                    // The machine ends; its volume stays, or is lost.
                    0 | 1 => runs[who] = false,
                    // Somebody has a backup restored; machines end when they end.
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
                            begun: begun.as_ref(),
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
