//! This machine's member of etcd: whose its volume is, whether a cluster lives that it joins, and whether one may begin.
//! [`kops_core::member`] decides; here is looked, and done.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use bootstrap::etcd::Etcd;
use bootstrap_core::{
    constants::{ETCD_CLIENT_PORT, ETCD_PEER_PORT},
    net,
};
use instances::machine::VOLUMES;
use kops_api::Spec as _;
use kops_core::{
    backup::Restore,
    member::{self, Content, Mark, Start, Tag, Volume},
    snapshot::Founders,
};
use pki::Authority;
use tokio::time::sleep;
use vfs::{Secrecy, Since, Version};

use super::Known;
use crate::{
    Error,
    backups::{Backups, NAME},
    leave::asker,
};

/// On the volume: what etcd had before a backup was restored, and what is made of one.
const TRASH: &str = "data-trashcan";
const RESTORED: &str = "restored";
const PAUSE: Duration = Duration::from_secs(1);
/// How long etcd has to change its members.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a learner has to start and to catch up.
const PROMOTED: Duration = Duration::from_secs(300);

/// A member, and all those that it begins with.
pub(super) struct Member {
    pub(super) name: String,
    pub(super) data: PathBuf,
    /// What `--initial-cluster` says.
    pub(super) members: Vec<(String, String)>,
    /// Whether it joins others, and begins no cluster.
    pub(super) joins: bool,
    /// What is left to do once it runs.
    pub(super) promotion: Option<Promotion>,
}

/// A learner that is to vote.
pub(super) struct Promotion {
    etcd: Etcd,
    peer_url: String,
}

impl Promotion {
    /// Lets it vote once it has caught up.
    pub(super) async fn grant(&self) -> Result<(), Error> {
        Ok(self.etcd.promote(&self.peer_url, PROMOTED).await?)
    }
}

pub(super) fn name(address: &str) -> String {
    format!("etcd-{address}")
}

pub(super) fn peer_url(address: &str) -> String {
    format!("https://{}", net::join_host_port(address, ETCD_PEER_PORT))
}

/// Waits until it is known how the member may begin, and has it expected where others live.
pub(super) async fn prepare(
    known: &Known,
    base: &str,
    authority: &Authority,
) -> Result<Member, Error> {
    let own = known.machine.address.to_string();
    let mut addresses: Vec<_> =
        known.boot.texts("APIServerIPs").into_iter().map(str::to_owned).collect();
    if !addresses.contains(&own) {
        addresses.push(own.clone());
    }
    let place = Place {
        backups: Backups::of_base(base)?,
        volume: PathBuf::from(format!("{VOLUMES}/{}--{NAME}--0", known.machine.cluster)),
        cluster: known.machine.cluster.clone(),
        member: name(&own),
        peer_url: peer_url(&own),
        members: addresses.iter().map(|address| name(address)).collect(),
        founders: addresses.iter().map(|address| (name(address), peer_url(address))).collect(),
    };
    let others: Vec<_> = addresses
        .iter()
        .filter(|address| **address != own)
        .map(|address| format!("https://{}", net::join_host_port(address, ETCD_CLIENT_PORT)))
        .collect();
    let etcd = asker(&others, "nodeup", authority)?;
    let founders = place.founders.clone();
    let member = |members, joins, promotion| Member {
        name: place.member.clone(),
        data: place.volume.join("data"),
        members,
        joins,
        promotion,
    };
    let mut told = String::new();
    loop {
        let tag = place.tag()?;
        let known = place.known()?;
        // Who asks a cluster without a quorum gets no answer; whose data is there need not ask.
        let has_data = place.content()? == Content::Data && known.is_of_now(&tag);
        let asks = !has_data && !others.is_empty();
        let quorum = if asks { etcd.members().await.ok() } else { None };
        match place.decide(&tag, &known, quorum.as_deref())? {
            Start::Run => {
                // From now on nobody takes the cluster for one that never was, whatever becomes of the volume.
                if known.begun.is_none() {
                    let members = [(place.member.clone(), tag.id.clone())].into();
                    let generation = tag.generation.clone();
                    place.mark(&Mark { generation, members, ..Mark::default() }, &known)?;
                }
                place.use_volume(tag, &known)?;
                return Ok(member(founders, false, None));
            }
            Start::Begin => {
                place.set_aside(&tag)?;
                place.restore(&known)?;
                place.use_volume(tag, &known)?;
                return Ok(member(founders, false, None));
            }
            Start::Expected => {
                place.set_aside(&tag)?;
                place.use_volume(tag, &known)?;
                return Ok(member(founders, true, None));
            }
            Start::Join => {
                place.set_aside(&tag)?;
                place.use_volume(tag, &known)?;
                let before = quorum.unwrap_or_default();
                let lost = before.iter().find(|m| {
                    m.peer_urls.contains(&place.peer_url) && !(m.is_learner && m.name.is_empty())
                });
                if let Some(lost) = lost {
                    tracing::info!(member = lost.name, "removing the member whose data is gone");
                    etcd.remove(&lost.id, PATIENCE).await?;
                }
                let members = etcd.add_learner(&place.member, &place.peer_url, PATIENCE).await?;
                let members = members.into_iter().map(|m| (m.name, m.peer_url)).collect();
                let promotion = Promotion { etcd, peer_url: place.peer_url.clone() };
                return Ok(member(members, true, Some(promotion)));
            }
            Start::Mark(mark) => {
                // A backup that cannot be restored is told of while there still is what there was.
                if !mark.backup.is_empty() {
                    place.unpack(&mark)?;
                }
                place.mark(&mark, &known)?;
            }
            Start::Wait(reason) => {
                if told != reason {
                    tracing::info!(reason, "the member of etcd does not begin yet");
                }
                told = reason;
                sleep(PAUSE).await;
            }
            Start::Refuse(reason) => {
                let volume = place.volume.display();
                return Err(Error::Usage(format!("etcd's volume {volume}: {reason}")));
            }
        }
    }
}

/// A volume, and the store in which members tell each other of theirs.
struct Place {
    backups: Backups,
    volume: PathBuf,
    cluster: String,
    member: String,
    peer_url: String,
    members: Vec<String>,
    /// The members' names and peer URLs.
    founders: Vec<(String, String)>,
}

/// What the store says of the cluster.
struct InStore {
    begun: Option<(Mark, Version)>,
    restore: Option<Restore>,
}

impl InStore {
    fn mark(&self) -> Option<&Mark> {
        self.begun.as_ref().map(|(mark, _)| mark)
    }

    /// Which cluster a volume is for: the one that a command makes, or the one that there is.
    fn generation(&self) -> Option<String> {
        let commanded = self.restore.as_ref().map(Restore::generation);
        commanded.or_else(|| self.mark().map(|mark| mark.generation.clone()))
    }

    fn is_of_now(&self, tag: &Tag) -> bool {
        self.generation().is_none_or(|generation| generation == tag.generation)
    }
}

impl Place {
    /// The volume's tag, which is written if there is none. A volume of etcd's without one is its place's: nobody else has
    /// been given the directory.
    fn tag(&self) -> Result<Tag, Error> {
        let path = self.volume.join("volume.json");
        let shown = path.display().to_string();
        match fs::read_to_string(&path) {
            Ok(text) => Tag::read(&text).ok_or_else(|| {
                Error::Usage(format!("{shown} says not whose volume this is; move the volume away"))
            }),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let tag = Tag {
                    cluster: self.cluster.clone(),
                    etcd: NAME.to_owned(),
                    member: self.member.clone(),
                    id: rt::id(),
                    used: self.content()? == Content::Data,
                    generation: String::new(),
                };
                self.write_tag(&tag)?;
                Ok(tag)
            }
            Err(error) => Err(Error::file("reading", &shown)(error)),
        }
    }

    fn write_tag(&self, tag: &Tag) -> Result<(), Error> {
        let shown = self.volume.display().to_string();
        fs::create_dir_all(&self.volume).map_err(Error::file("making the directory", &shown))?;
        let path = self.volume.join("volume.json");
        Ok(pki::write_file(&path, tag.to_text().as_bytes(), pki::PUBLIC_MODE)?)
    }

    /// From now on the volume may hold what etcd has promised, in the cluster that there is now.
    fn use_volume(&self, tag: Tag, known: &InStore) -> Result<(), Error> {
        let generation = known.generation().unwrap_or_else(|| tag.generation.clone());
        match tag.used && tag.generation == generation {
            true => Ok(()),
            false => self.write_tag(&Tag { used: true, generation, ..tag }),
        }
    }

    /// Puts away what is of a cluster that is no more. Nobody but the user takes that away for good.
    fn set_aside(&self, tag: &Tag) -> Result<(), Error> {
        let data = self.volume.join("data");
        if self.content()? == Content::Blank {
            return Ok(());
        }
        let trash = self.volume.join(TRASH);
        let shown = trash.display().to_string();
        fs::create_dir_all(&trash).map_err(Error::file("making the directory", &shown))?;
        let name = if tag.generation.is_empty() { "first" } else { tag.generation.as_str() };
        let aside = trash.join(format!("{name}-{}", rt::id()));
        tracing::info!(aside = %aside.display(), "setting aside what etcd had before a backup was restored");
        fs::rename(&data, &aside).map_err(Error::file("setting aside", &data.display().to_string()))
    }

    /// Makes of a backup what its founder begins with, beside what there is.
    fn unpack(&self, mark: &Mark) -> Result<PathBuf, Error> {
        let made = self.volume.join(RESTORED);
        let shown = made.display().to_string();
        match fs::remove_dir_all(&made) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(Error::file("removing", &shown)(error));
            }
            _ => {}
        }
        let founders = self.founders.iter().map(|(name, url)| (name.as_str(), url.as_str()));
        let founders = Founders::new(&mark.generation, founders);
        self.backups.unpack(&mark.backup, &self.cluster, &founders, &self.member, &made)?;
        Ok(made)
    }

    /// Puts in place what the cluster begins with, if it begins with a backup.
    fn restore(&self, known: &InStore) -> Result<(), Error> {
        let Some(mark) = known.mark().filter(|mark| !mark.backup.is_empty()) else { return Ok(()) };
        tracing::info!(backup = mark.backup, "restoring a backup");
        let made = self.unpack(mark)?;
        let data = self.volume.join("data");
        let shown = data.display().to_string();
        if data.exists() {
            fs::remove_dir(&data).map_err(Error::file("removing the empty", &shown))?;
        }
        fs::rename(&made, &data).map_err(Error::file("putting in place", &shown))
    }

    fn content(&self) -> Result<Content, Error> {
        let entries = |path: &Path| -> Result<Vec<String>, Error> {
            let shown = path.display().to_string();
            match fs::read_dir(path) {
                Ok(entries) => {
                    let names = entries.filter_map(Result::ok).map(|entry| entry.file_name());
                    Ok(names.map(|name| name.to_string_lossy().into_owned()).collect())
                }
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
                Err(error) => Err(Error::file("reading", &shown)(error)),
            }
        };
        const OWN: [&str; 5] = ["volume.json", "data", "lost+found", TRASH, RESTORED];
        let other = |name: &String| !OWN.contains(&name.as_str());
        if entries(&self.volume)?.iter().any(other) {
            return Ok(Content::Foreign);
        }
        let data = entries(&self.volume.join("data"))?;
        Ok(match data.iter().any(|name| name == "member") {
            true => Content::Data,
            false if data.is_empty() => Content::Blank,
            false => Content::Foreign,
        })
    }

    fn known(&self) -> Result<InStore, Error> {
        let begun = self.backups.mark()?;
        let restore = self.backups.pending(begun.as_ref().map(|(mark, _)| mark))?;
        Ok(InStore { begun, restore })
    }

    fn decide(
        &self,
        tag: &Tag,
        known: &InStore,
        quorum: Option<&[bootstrap::etcd::Member]>,
    ) -> Result<Start, Error> {
        let content = self.content()?;
        let quorum: Option<Vec<_>> = quorum.map(|members| {
            let known = members.iter().map(|m| member::Known {
                peer_url: m.peer_urls.first().cloned().unwrap_or_default(),
                name: m.name.clone(),
                learner: m.is_learner,
            });
            known.collect()
        });
        // Only a cluster that has never been needs to hear of blank volumes, and one that is to begin anew of all.
        let is_new = content == Content::Blank && known.begun.is_none() && quorum.is_none();
        let generation = known.restore.as_ref().map(Restore::generation).unwrap_or_default();
        if is_new || (known.restore.is_some() && content != Content::Foreign) {
            self.tell(&generation, &tag.id)?;
        }
        let mut told = BTreeMap::new();
        for member in &self.members {
            let read = self.backups.store.read(&self.backups.told(&generation, member))?;
            if let Some((id, _)) = read {
                told.insert(member.clone(), String::from_utf8_lossy(&id).into_owned());
            }
        }
        Ok(member::start(&Volume {
            cluster: &self.cluster,
            etcd: NAME,
            member: &self.member,
            peer_url: &self.peer_url,
            tag: Some(tag),
            content,
            members: &self.members,
            quorum: quorum.as_deref(),
            begun: known.mark(),
            restore: known.restore.as_ref(),
            blank: &told,
            backup: !self.backups.list()?.is_empty(),
        }))
    }

    fn tell(&self, generation: &str, id: &str) -> Result<(), Error> {
        let name = self.backups.told(generation, &self.member);
        let since = match self.backups.store.read(&name)? {
            Some((old, _)) if old == id.as_bytes() => return Ok(()),
            Some((_, version)) => Since::Read(version),
            None => Since::Absent,
        };
        self.backups.store.write(&name, id.as_bytes(), &since, Secrecy::Open)?;
        Ok(())
    }

    fn mark(&self, mark: &Mark, known: &InStore) -> Result<(), Error> {
        let since = known.begun.as_ref().map(|(_, version)| Since::Read(version.clone()));
        self.backups.set_mark(mark, &since.unwrap_or(Since::Absent), rt::now().into())?;
        self.backups.forget_commands(mark)
    }
}

#[cfg(test)]
mod tests {
    use vfs::Store;

    use super::*;

    fn place(directory: &Path, member: &str) -> Place {
        let store = Store::open(&format!("file://{}/store", directory.display())).unwrap();
        Place {
            backups: Backups { store, directory: "backups/etcd/main".to_owned() },
            volume: directory.join(member),
            cluster: "c".to_owned(),
            member: member.to_owned(),
            peer_url: format!("https://{member}"),
            members: ["a", "b"].map(str::to_owned).into(),
            founders: ["a", "b"].map(|name| (name.to_owned(), format!("https://{name}"))).into(),
        }
    }

    fn decide(place: &Place) -> Start {
        place.decide(&place.tag().unwrap(), &place.known().unwrap(), None).unwrap()
    }

    fn run(place: &Place) {
        place.use_volume(place.tag().unwrap(), &place.known().unwrap()).unwrap();
        fs::create_dir_all(place.volume.join("data/member")).unwrap();
    }

    #[test]
    fn a_cluster_begins_once_with_all_blank_volumes() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (place(dir.path(), "a"), place(dir.path(), "b"));
        assert!(matches!(decide(&a), Start::Wait(reason) if reason.contains("not yet of b")));
        let Start::Mark(mark) = decide(&b) else { panic!("all are blank") };
        let before = b.known().unwrap();
        b.mark(&mark, &before).unwrap();
        a.mark(&Mark::default(), &before).unwrap();
        for place in [&a, &b] {
            assert_eq!(decide(place), Start::Begin);
            place.use_volume(place.tag().unwrap(), &place.known().unwrap()).unwrap();
            // It was begun, and may have promised something.
            assert!(matches!(decide(place), Start::Wait(_)));
            run(place);
            assert_eq!(decide(place), Start::Run);
        }
        // The volume is lost: nothing is begun again.
        fs::remove_dir_all(&a.volume).unwrap();
        assert!(matches!(decide(&a), Start::Wait(reason) if reason.contains("begun before")));
    }

    #[test]
    fn a_restoration_waits_for_all_and_keeps_what_was_there() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (place(dir.path(), "a"), place(dir.path(), "b"));
        run(&a);
        let spec = b.backups.path("control/etcd-cluster-spec");
        b.backups.store.write(&spec, b"{}", &Since::Absent, Secrecy::Open).unwrap();
        let restore = b.backups.command("backup", rt::now().into()).unwrap();
        // Whoever has data does not run it any more, whoever has none does not begin.
        assert!(matches!(decide(&a), Start::Wait(reason) if reason.contains("not yet of b")));
        let Start::Mark(mark) = decide(&b) else { panic!("all are known") };
        assert_eq!(
            (mark.generation.clone(), mark.backup.as_str()),
            (restore.generation(), "backup")
        );
        // There is no such backup: nothing is marked, and nothing lost.
        assert!(b.unpack(&mark).is_err() && a.volume.join("data/member").exists());
        b.mark(&mark, &b.known().unwrap()).unwrap();
        assert_eq!(b.backups.commands().unwrap(), []);
        let tag = a.tag().unwrap();
        assert_eq!(decide(&a), Start::Begin);
        a.set_aside(&tag).unwrap();
        a.set_aside(&tag).unwrap();
        assert_eq!(fs::read_dir(a.volume.join(TRASH)).unwrap().count(), 1);
        // Who ends now begins once more; who has run does not.
        assert_eq!(decide(&a), Start::Begin);
        run(&a);
        assert_eq!(decide(&a), Start::Run);
        fs::remove_dir_all(a.volume.join("data")).unwrap();
        assert!(matches!(decide(&a), Start::Wait(_)));
    }

    #[test]
    fn others_volumes_and_what_is_no_volume_are_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (place(dir.path(), "a"), place(dir.path(), "b"));
        a.tag().unwrap();
        fs::rename(&a.volume, &b.volume).unwrap();
        assert!(matches!(decide(&b), Start::Refuse(reason) if reason.contains("member \"a\"")));
        fs::create_dir_all(a.volume.join("photos")).unwrap();
        assert!(matches!(decide(&a), Start::Refuse(_)));
        fs::write(b.volume.join("volume.json"), "{\"cluster\": 5}").unwrap();
        assert!(b.tag().unwrap_err().to_string().contains("says not whose"));
        // A store with a backup and no mark is of a cluster that was.
        let c = place(dir.path(), "c");
        let path = c.backups.path("2026-11-23T10:00:00Z-000000/_etcd_backup.meta");
        c.backups.store.write(&path, b"{}", &Since::Absent, Secrecy::Open).unwrap();
        assert!(matches!(decide(&c), Start::Refuse(reason) if reason.contains("backup")));
    }
}
