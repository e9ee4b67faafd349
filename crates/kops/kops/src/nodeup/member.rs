//! This machine's etcd member: whether it continues with the data on its volume, joins a running cluster or starts a
//! new one. [`kops_core::member`] decides; this module gathers its inputs and carries the decision out.

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
    snapshot::InitialCluster,
};
use pki::Authority;
use tokio::time::sleep;
use vfs::{Precondition, Secrecy, Version};

use super::NodeContext;
use crate::{
    Error,
    backups::{Backups, NAME},
    leave::etcd_client,
};

/// Directories on the volume: data from before a restoration, and unpacked backups.
const TRASH: &str = "data-trashcan";
const RESTORED: &str = "restored";
const PAUSE: Duration = Duration::from_secs(1);
/// The time limit for a change of etcd's members.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(60);
/// The time for a learner to start and to catch up.
const PROMOTION_TIMEOUT: Duration = Duration::from_secs(300);

/// A member, with its initial cluster.
pub(super) struct Member {
    pub(super) name: String,
    pub(super) data: PathBuf,
    /// The members for `--initial-cluster`.
    pub(super) members: Vec<(String, String)>,
    /// `true` to join an existing cluster, `false` to start one.
    pub(super) joins: bool,
    /// The promotion of a learner, after it has started.
    pub(super) promotion: Option<Promotion>,
}

/// A learner to be promoted.
pub(super) struct Promotion {
    etcd: Etcd,
    peer_url: String,
}

impl Promotion {
    /// Promotes the learner once it has caught up.
    pub(super) async fn grant(&self) -> Result<(), Error> {
        Ok(self.etcd.promote(&self.peer_url, PROMOTION_TIMEOUT).await?)
    }
}

pub(super) fn name(address: &str) -> String {
    format!("etcd-{address}")
}

pub(super) fn peer_url(address: &str) -> String {
    format!("https://{}", net::join_host_port(address, ETCD_PEER_PORT))
}

/// Waits until the member may start, and adds it to a running cluster if necessary.
pub(super) async fn prepare(
    known: &NodeContext,
    base: &str,
    authority: &Authority,
) -> Result<Member, Error> {
    let own = known.machine.address.to_string();
    let mut addresses: Vec<_> =
        known.boot.texts("APIServerIPs").into_iter().map(str::to_owned).collect();
    if !addresses.contains(&own) {
        addresses.push(own.clone());
    }
    let place = MemberVolume {
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
    let etcd = etcd_client(&others, "nodeup", authority)?;
    let founders = place.founders.clone();
    let member = |members, joins, promotion| Member {
        name: place.member.clone(),
        data: place.volume.join("data"),
        members,
        joins,
        promotion,
    };
    let mut last_reason = String::new();
    loop {
        let tag = place.tag()?;
        let known = place.stored_state()?;
        // A cluster without a quorum does not answer, so it is queried only if the member has no data.
        let has_data = place.content()? == Content::Data && known.is_current(&tag);
        let needs_quorum = !has_data && !others.is_empty();
        let quorum = if needs_quorum { etcd.members().await.ok() } else { None };
        match place.decide(&tag, &known, quorum.as_deref())? {
            Start::Run => {
                // Write the mark, so that the cluster is known to exist even if the volume is lost.
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
                    tracing::info!(
                        member = lost.name,
                        "removing the etcd member whose data is lost"
                    );
                    etcd.remove(&lost.id, CHANGE_TIMEOUT).await?;
                }
                let members =
                    etcd.add_learner(&place.member, &place.peer_url, CHANGE_TIMEOUT).await?;
                let members = members.into_iter().map(|m| (m.name, m.peer_url)).collect();
                let promotion = Promotion { etcd, peer_url: place.peer_url.clone() };
                return Ok(member(members, true, Some(promotion)));
            }
            Start::Mark(mark) => {
                // Unpack first: a damaged backup is then reported while the old data still exists.
                if !mark.backup.is_empty() {
                    place.unpack(&mark)?;
                }
                place.mark(&mark, &known)?;
            }
            Start::Wait(reason) => {
                if last_reason != reason {
                    tracing::info!(reason, "the etcd member cannot start yet");
                }
                last_reason = reason;
                sleep(PAUSE).await;
            }
            Start::Refuse(reason) => {
                let volume = place.volume.display();
                return Err(Error::Usage(format!("etcd's volume {volume}: {reason}")));
            }
        }
    }
}

/// A volume, and the store through which members report their volumes.
struct MemberVolume {
    backups: Backups,
    volume: PathBuf,
    cluster: String,
    member: String,
    peer_url: String,
    members: Vec<String>,
    /// The names and peer URLs of the members.
    founders: Vec<(String, String)>,
}

/// The cluster's state in the store.
struct StoredState {
    begun: Option<(Mark, Version)>,
    restore: Option<Restore>,
}

impl StoredState {
    fn mark(&self) -> Option<&Mark> {
        self.begun.as_ref().map(|(mark, _)| mark)
    }

    /// Returns the generation that a volume is for: that of a pending command, or that of the present cluster.
    fn generation(&self) -> Option<String> {
        let commanded = self.restore.as_ref().map(Restore::generation);
        commanded.or_else(|| self.mark().map(|mark| mark.generation.clone()))
    }

    fn is_current(&self, tag: &Tag) -> bool {
        self.generation().is_none_or(|generation| generation == tag.generation)
    }
}

impl MemberVolume {
    /// Returns the volume's tag, writing one if there is none. A volume with data but no tag belongs to this member,
    /// because no other member gets this directory.
    fn tag(&self) -> Result<Tag, Error> {
        let path = self.volume.join("volume.json");
        let shown = path.display().to_string();
        match fs::read_to_string(&path) {
            Ok(text) => Tag::read(&text).ok_or_else(|| {
                Error::Usage(format!(
                    "{shown} does not name the owner of the volume; move the volume away"
                ))
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

    /// Marks the volume as used: from now on it may hold votes of the present cluster.
    fn use_volume(&self, tag: Tag, known: &StoredState) -> Result<(), Error> {
        let generation = known.generation().unwrap_or_else(|| tag.generation.clone());
        if tag.used && tag.generation == generation {
            Ok(())
        } else {
            self.write_tag(&Tag { used: true, generation, ..tag })
        }
    }

    /// Moves the data of an earlier cluster aside. Only the user deletes it.
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
        tracing::info!(aside = %aside.display(), "moving etcd's data from before the restoration aside");
        fs::rename(&data, &aside).map_err(Error::file("setting aside", &data.display().to_string()))
    }

    /// Unpacks a backup as a founder's data, beside the present data.
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
        let founders = InitialCluster::new(&mark.generation, founders);
        self.backups.unpack(&mark.backup, &self.cluster, &founders, &self.member, &made)?;
        Ok(made)
    }

    /// Installs the restored data, if the cluster starts from a backup.
    fn restore(&self, known: &StoredState) -> Result<(), Error> {
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
        const KNOWN_ENTRIES: [&str; 5] = ["volume.json", "data", "lost+found", TRASH, RESTORED];
        let other = |name: &String| !KNOWN_ENTRIES.contains(&name.as_str());
        if entries(&self.volume)?.iter().any(other) {
            return Ok(Content::Foreign);
        }
        let data = entries(&self.volume.join("data"))?;
        let content = if data.iter().any(|name| name == "member") {
            Content::Data
        } else if data.is_empty() {
            Content::Blank
        } else {
            Content::Foreign
        };
        Ok(content)
    }

    fn stored_state(&self) -> Result<StoredState, Error> {
        let begun = self.backups.mark()?;
        let restore = self.backups.pending(begun.as_ref().map(|(mark, _)| mark))?;
        Ok(StoredState { begun, restore })
    }

    fn decide(
        &self,
        tag: &Tag,
        known: &StoredState,
        quorum: Option<&[bootstrap::etcd::Member]>,
    ) -> Result<Start, Error> {
        let content = self.content()?;
        let quorum: Option<Vec<_>> = quorum.map(|members| {
            let known = members.iter().map(|m| member::EtcdMember {
                peer_url: m.peer_urls.first().cloned().unwrap_or_default(),
                name: m.name.clone(),
                learner: m.is_learner,
            });
            known.collect()
        });
        // Blank volumes are reported only for a new cluster; for a restoration, all volumes are.
        let is_new = content == Content::Blank && known.begun.is_none() && quorum.is_none();
        let generation = known.restore.as_ref().map(Restore::generation).unwrap_or_default();
        if is_new || (known.restore.is_some() && content != Content::Foreign) {
            self.report_volume(&generation, &tag.id)?;
        }
        let mut reported = BTreeMap::new();
        for member in &self.members {
            let read = self.backups.store.read(&self.backups.report_path(&generation, member))?;
            if let Some((id, _)) = read {
                reported.insert(member.clone(), String::from_utf8_lossy(&id).into_owned());
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
            mark: known.mark(),
            restore: known.restore.as_ref(),
            blank: &reported,
            backup: !self.backups.list()?.is_empty(),
        }))
    }

    fn report_volume(&self, generation: &str, id: &str) -> Result<(), Error> {
        let name = self.backups.report_path(generation, &self.member);
        let since = match self.backups.store.read(&name)? {
            Some((old, _)) if old == id.as_bytes() => return Ok(()),
            Some((_, version)) => Precondition::Read(version),
            None => Precondition::Absent,
        };
        self.backups.store.write(&name, id.as_bytes(), &since, Secrecy::Open)?;
        Ok(())
    }

    fn mark(&self, mark: &Mark, known: &StoredState) -> Result<(), Error> {
        let since = known.begun.as_ref().map(|(_, version)| Precondition::Read(version.clone()));
        self.backups.set_mark(mark, &since.unwrap_or(Precondition::Absent), rt::now().into())?;
        self.backups.forget_commands(mark)
    }
}

#[cfg(test)]
mod tests {
    use vfs::Store;

    use super::*;

    fn place(directory: &Path, member: &str) -> MemberVolume {
        let store = Store::open(&format!("file://{}/store", directory.display())).unwrap();
        MemberVolume {
            backups: Backups { store, directory: "backups/etcd/main".to_owned() },
            volume: directory.join(member),
            cluster: "c".to_owned(),
            member: member.to_owned(),
            peer_url: format!("https://{member}"),
            members: ["a", "b"].map(str::to_owned).into(),
            founders: ["a", "b"].map(|name| (name.to_owned(), format!("https://{name}"))).into(),
        }
    }

    fn decide(place: &MemberVolume) -> Start {
        place.decide(&place.tag().unwrap(), &place.stored_state().unwrap(), None).unwrap()
    }

    fn run(place: &MemberVolume) {
        place.use_volume(place.tag().unwrap(), &place.stored_state().unwrap()).unwrap();
        fs::create_dir_all(place.volume.join("data/member")).unwrap();
    }

    #[test]
    fn starts_cluster_once_when_all_volumes_are_blank() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (place(dir.path(), "a"), place(dir.path(), "b"));
        assert!(matches!(decide(&a), Start::Wait(reason) if reason.contains("missing: b")));
        let Start::Mark(mark) = decide(&b) else { panic!("all are blank") };
        let before = b.stored_state().unwrap();
        b.mark(&mark, &before).unwrap();
        a.mark(&Mark::default(), &before).unwrap();
        for place in [&a, &b] {
            assert_eq!(decide(place), Start::Begin);
            place.use_volume(place.tag().unwrap(), &place.stored_state().unwrap()).unwrap();
            // It was started, and may have given votes.
            assert!(matches!(decide(place), Start::Wait(_)));
            run(place);
            assert_eq!(decide(place), Start::Run);
        }
        // The volume is lost, but no second cluster starts.
        fs::remove_dir_all(&a.volume).unwrap();
        assert!(matches!(decide(&a), Start::Wait(reason) if reason.contains("started before")));
    }

    #[test]
    fn restoration_waits_for_all_and_keeps_old_data() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (place(dir.path(), "a"), place(dir.path(), "b"));
        run(&a);
        let spec = b.backups.path("control/etcd-cluster-spec");
        b.backups.store.write(&spec, b"{}", &Precondition::Absent, Secrecy::Open).unwrap();
        let restore = b.backups.command("backup", rt::now().into()).unwrap();
        // A member with data no longer runs it, and a member without data does not start.
        assert!(matches!(decide(&a), Start::Wait(reason) if reason.contains("missing: b")));
        let Start::Mark(mark) = decide(&b) else { panic!("all are known") };
        assert_eq!(
            (mark.generation.clone(), mark.backup.as_str()),
            (restore.generation(), "backup")
        );
        // The backup does not exist: no mark is written, and no data is lost.
        assert!(b.unpack(&mark).is_err() && a.volume.join("data/member").exists());
        b.mark(&mark, &b.stored_state().unwrap()).unwrap();
        assert_eq!(b.backups.commands().unwrap(), []);
        let tag = a.tag().unwrap();
        assert_eq!(decide(&a), Start::Begin);
        a.set_aside(&tag).unwrap();
        a.set_aside(&tag).unwrap();
        assert_eq!(fs::read_dir(a.volume.join(TRASH)).unwrap().count(), 1);
        // A member that ends now may start once more; a member that has run may not.
        assert_eq!(decide(&a), Start::Begin);
        run(&a);
        assert_eq!(decide(&a), Start::Run);
        fs::remove_dir_all(a.volume.join("data")).unwrap();
        assert!(matches!(decide(&a), Start::Wait(_)));
    }

    #[test]
    fn leaves_foreign_volumes_alone() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (place(dir.path(), "a"), place(dir.path(), "b"));
        a.tag().unwrap();
        fs::rename(&a.volume, &b.volume).unwrap();
        assert!(matches!(decide(&b), Start::Refuse(reason) if reason.contains("member \"a\"")));
        fs::create_dir_all(a.volume.join("photos")).unwrap();
        assert!(matches!(decide(&a), Start::Refuse(_)));
        fs::write(b.volume.join("volume.json"), "{\"cluster\": 5}").unwrap();
        assert!(b.tag().unwrap_err().to_string().contains("does not name the owner"));
        // A store with a backup but no mark belongs to an earlier cluster.
        let c = place(dir.path(), "c");
        let path = c.backups.path("2026-11-23T10:00:00Z-000000/_etcd_backup.meta");
        c.backups.store.write(&path, b"{}", &Precondition::Absent, Secrecy::Open).unwrap();
        assert!(matches!(decide(&c), Start::Refuse(reason) if reason.contains("backup")));
    }
}
