//! How a member of etcd begins on a control plane's volume. What is not known is not guessed: a cluster that begins anew
//! beside one whose quorum is away would be another one, empty.

use std::collections::BTreeMap;

use kops_api::Spec as _;
use serde_json::{Value, json};

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
        })
    }

    /// As it stands on a volume.
    pub fn to_text(&self) -> String {
        let Self { cluster, etcd, member, id, used } = self;
        json!({"cluster": cluster, "etcd": etcd, "member": member, "id": id, "used": used})
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
    /// The volumes that the cluster began with, by the store's mark: their ids by members.
    pub begun: Option<&'a BTreeMap<String, String>>,
    /// The blank volumes that members have told of: their ids by members.
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
    /// Mark the store: these volumes, all of them blank, begin a cluster.
    Mark(BTreeMap<String, String>),
    /// Begin a cluster, with the other volumes that the mark names.
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
    match volume.content {
        Content::Data => return Start::Run,
        Content::Foreign => {
            let text = "what lies on the volume is neither etcd's nor nothing: move it away";
            return Start::Refuse(text.to_owned());
        }
        Content::Blank => {}
    }
    if let Some(quorum) = volume.quorum {
        return join(volume, quorum);
    }
    let id = volume.tag.map(|tag| tag.id.as_str());
    if let Some(begun) = volume.begun {
        let is_founder = begun.get(volume.member).map(String::as_str) == id && id.is_some();
        return match is_founder && !volume.tag.is_some_and(|tag| tag.used) {
            true => Start::Begin,
            false => Start::Wait(
                "the volume is blank, the cluster was begun before, and no quorum of its members answers".to_owned(),
            ),
        };
    }
    if volume.backup {
        let text = "the store holds a backup, and no mark of a cluster: restore it, or move it away to begin anew";
        return Start::Refuse(text.to_owned());
    }
    let missing: Vec<_> = volume
        .members
        .iter()
        .filter(|member| !volume.blank.contains_key(*member))
        .cloned()
        .collect();
    match missing.is_empty() {
        true => Start::Mark(volume.blank.clone()),
        false => Start::Wait(format!(
            "a cluster begins when the volumes of all members are known to be blank; not yet of {}",
            missing.join(", ")
        )),
    }
}

/// A blank volume in a cluster that lives.
fn join(volume: &Volume<'_>, quorum: &[Known]) -> Start {
    let own = quorum.iter().find(|member| member.peer_url == volume.peer_url);
    let used = volume.tag.is_some_and(|tag| tag.used);
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
        }
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
            blank: &all,
            backup: false,
        };
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
            (Volume { begun: Some(&all), backup: true, ..v() }, "begin"),
            // It was one of those that began, and has lost what it had; it is another volume; it was none of them.
            (Volume { begun: Some(&all), tag: Some(&used), ..v() }, "wait"),
            (Volume { begun: Some(&all), tag: None, ..v() }, "wait"),
            (Volume { begun: Some(&none), ..v() }, "wait"),
            // A living cluster.
            (Volume { quorum: Some(&others), begun: Some(&all), ..v() }, "join"),
            (Volume { quorum: Some(&lost), begun: Some(&all), tag: Some(&used), ..v() }, "join"),
            (Volume { quorum: Some(&joining), begun: Some(&all), ..v() }, "join"),
            (Volume { quorum: Some(&expected), begun: Some(&all), ..v() }, "expected"),
            (Volume { quorum: Some(&expected), tag: Some(&used), ..v() }, "join"),
            (Volume { quorum: Some(&busy), ..v() }, "wait"),
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
            let mut begun: Option<BTreeMap<String, String>> = None;
            let mut blank = BTreeMap::new();
            let (mut started_ever, mut marks) = (false, 0);
            for moment in 0..60 {
                let who = random.random_range(0..3);
                match random.random_range(0..10) {
                    // The machine ends; its volume stays, or is lost.
                    0 | 1 => runs[who] = false,
                    2 if started_ever && random.random_bool(0.3) => {
                        (runs[who], data[who], tags[who]) = (false, false, None);
                    }
                    _ if !runs[who] => {
                        let tag = tags[who].get_or_insert_with(|| Tag {
                            id: format!("{moment}-{who}"),
                            ..tag(NAMES[who], false)
                        });
                        if !data[who] {
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
                            blank: &blank,
                            backup: false,
                        });
                        match step {
                            Start::Mark(ids) => {
                                assert!(!started_ever, "seed {seed}: a second cluster");
                                marks += 1;
                                begun.get_or_insert(ids);
                            }
                            Start::Begin => {
                                let tag = tags[who].as_mut().unwrap();
                                assert!(!tag.used, "seed {seed}: it forgot what it had promised");
                                (tag.used, data[who], runs[who], started_ever) =
                                    (true, true, true, true);
                            }
                            Start::Join | Start::Expected => {
                                assert!(living, "seed {seed}: joined without a quorum");
                                tags[who].as_mut().unwrap().used = true;
                                (data[who], runs[who]) = (true, true);
                            }
                            Start::Run => {
                                assert!(data[who]);
                                runs[who] = true;
                            }
                            Start::Wait(_) => {}
                            Start::Refuse(why) => panic!("seed {seed}: {why}"),
                        }
                    }
                    _ => {}
                }
            }
            assert!(marks <= 1, "seed {seed}");
        }
    }
}
