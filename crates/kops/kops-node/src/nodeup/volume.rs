//! The volume of an etcd member, and the reports about it in the store.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use kops_core::{
    backup::Restore,
    member::{self, Content, Mark, Start, Tag, Volume},
    snapshot::InitialCluster,
};
use kops_store::{Backups, ETCD};
use vfs::{Precondition, Secrecy, Version};

use crate::error::Error;

/// Directories on the volume: data from before a restoration, and unpacked backups.
const TRASH: &str = "data-trashcan";
const RESTORED: &str = "restored";

/// A volume, and the store through which members report their volumes.
pub(super) struct MemberVolume {
    pub(super) backups: Backups,
    pub(super) volume: PathBuf,
    pub(super) cluster: String,
    pub(super) member: String,
    pub(super) peer_url: String,
    pub(super) members: Vec<String>,
    /// The names and peer URLs of the members.
    pub(super) founders: Vec<(String, String)>,
}

/// The cluster's state in the store.
pub(super) struct StoredState {
    /// The mark of the running cluster, with its version.
    pub(super) mark: Option<(Mark, Version)>,
    restore: Option<Restore>,
}

impl StoredState {
    fn mark(&self) -> Option<&Mark> {
        self.mark.as_ref().map(|(mark, _)| mark)
    }

    /// Returns the generation that a volume is for: that of a pending command, or that of the present cluster.
    fn generation(&self) -> Option<String> {
        let commanded = self.restore.as_ref().map(Restore::generation);
        commanded.or_else(|| self.mark().map(|mark| mark.generation.clone()))
    }

    pub(super) fn is_current(&self, tag: &Tag) -> bool {
        self.generation().is_none_or(|generation| generation == tag.generation)
    }
}

impl MemberVolume {
    /// Returns the data directory.
    pub(super) fn data(&self) -> PathBuf {
        self.volume.join("data")
    }

    /// Returns the volume's tag, writing one if there is none. A volume with data but no tag belongs to this member,
    /// because no other member gets this directory.
    pub(super) fn tag(&self) -> Result<Tag, Error> {
        let path = self.volume.join("volume.json");
        let shown = path.display().to_string();
        match fs::read_to_string(&path) {
            Ok(text) => Tag::read(&text).ok_or(Error::VolumeOwner { path: shown }),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let tag = Tag {
                    cluster: self.cluster.clone(),
                    etcd: ETCD.to_owned(),
                    member: self.member.clone(),
                    id: rt::id(),
                    used: self.content()? == Content::Data,
                    generation: String::new(),
                };
                self.write_tag(&tag)?;
                Ok(tag)
            }
            Err(error) => Err(kops_store::Error::file("reading", &shown)(error).into()),
        }
    }

    fn write_tag(&self, tag: &Tag) -> Result<(), Error> {
        let shown = self.volume.display().to_string();
        fs::create_dir_all(&self.volume)
            .map_err(kops_store::Error::file("making the directory", &shown))?;
        let path = self.volume.join("volume.json");
        Ok(pki::write_file(&path, tag.to_text().as_bytes(), pki::PUBLIC_MODE)?)
    }

    /// Marks the volume as used: from now on it may hold votes of the present cluster.
    pub(super) fn use_volume(&self, tag: Tag, stored: &StoredState) -> Result<(), Error> {
        let generation = stored.generation().unwrap_or_else(|| tag.generation.clone());
        if tag.used && tag.generation == generation {
            Ok(())
        } else {
            self.write_tag(&Tag { used: true, generation, ..tag })
        }
    }

    /// Moves the data of an earlier cluster aside. Only the user deletes it.
    pub(super) fn set_aside(&self, tag: &Tag) -> Result<(), Error> {
        let data = self.data();
        if self.content()? == Content::Blank {
            return Ok(());
        }
        let trash = self.volume.join(TRASH);
        let shown = trash.display().to_string();
        fs::create_dir_all(&trash)
            .map_err(kops_store::Error::file("making the directory", &shown))?;
        let name = if tag.generation.is_empty() { "first" } else { tag.generation.as_str() };
        let aside = trash.join(format!("{name}-{}", rt::id()));
        tracing::info!(aside = %aside.display(), "moving etcd's data from before the restoration aside");
        fs::rename(&data, &aside)
            .map_err(kops_store::Error::file("setting aside", &data.display().to_string()))?;
        Ok(())
    }

    /// Unpacks a backup as a founder's data, beside the present data.
    pub(super) fn unpack(&self, mark: &Mark) -> Result<PathBuf, Error> {
        let target = self.volume.join(RESTORED);
        let shown = target.display().to_string();
        match fs::remove_dir_all(&target) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(kops_store::Error::file("removing", &shown)(error).into());
            }
            _ => {}
        }
        let founders = self.founders.iter().map(|(name, url)| (name.as_str(), url.as_str()));
        let founders = InitialCluster::new(&mark.generation, founders);
        self.backups.unpack(&mark.backup, &self.cluster, &founders, &self.member, &target)?;
        Ok(target)
    }

    /// Installs the restored data, if the cluster starts from a backup.
    pub(super) fn restore(&self, stored: &StoredState) -> Result<(), Error> {
        let Some(mark) = stored.mark().filter(|mark| !mark.backup.is_empty()) else {
            return Ok(());
        };
        tracing::info!(backup = mark.backup, "restoring a backup");
        let restored = self.unpack(mark)?;
        let data = self.data();
        let shown = data.display().to_string();
        if data.exists() {
            fs::remove_dir(&data).map_err(kops_store::Error::file("removing the empty", &shown))?;
        }
        fs::rename(&restored, &data)
            .map_err(kops_store::Error::file("putting in place", &shown))?;
        Ok(())
    }

    /// Classifies the content of the volume.
    pub(super) fn content(&self) -> Result<Content, Error> {
        let entries = |path: &Path| -> Result<Vec<String>, Error> {
            let shown = path.display().to_string();
            match fs::read_dir(path) {
                Ok(entries) => {
                    let names = entries.filter_map(Result::ok).map(|entry| entry.file_name());
                    Ok(names.map(|name| name.to_string_lossy().into_owned()).collect())
                }
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
                Err(error) => Err(kops_store::Error::file("reading", &shown)(error).into()),
            }
        };
        const KNOWN_ENTRIES: [&str; 5] = ["volume.json", "data", "lost+found", TRASH, RESTORED];
        let other = |name: &String| !KNOWN_ENTRIES.contains(&name.as_str());
        if entries(&self.volume)?.iter().any(other) {
            return Ok(Content::Foreign);
        }
        let data = entries(&self.data())?;
        let content = if data.iter().any(|name| name == "member") {
            Content::Data
        } else if data.is_empty() {
            Content::Blank
        } else {
            Content::Foreign
        };
        Ok(content)
    }

    /// Reads the cluster's state.
    pub(super) fn stored_state(&self) -> Result<StoredState, Error> {
        let mark = self.backups.mark()?;
        let restore = self.backups.pending_restore(mark.as_ref().map(|(mark, _)| mark))?;
        Ok(StoredState { mark, restore })
    }

    /// Decides the start of the member, and reports the volume to the other members if they wait for it.
    pub(super) fn decide(
        &self,
        tag: &Tag,
        stored: &StoredState,
        quorum: Option<&[bootstrap::etcd::Member]>,
    ) -> Result<Start, Error> {
        let content = self.content()?;
        let quorum: Option<Vec<_>> = quorum.map(|members| {
            let members = members.iter().map(|m| member::EtcdMember {
                peer_url: m.peer_urls.first().cloned().unwrap_or_default(),
                name: m.name.clone(),
                learner: m.is_learner,
            });
            members.collect()
        });
        // Blank volumes are reported only for a new cluster; for a restoration, all volumes are.
        let is_new = content == Content::Blank && stored.mark.is_none() && quorum.is_none();
        let generation = stored.restore.as_ref().map(Restore::generation).unwrap_or_default();
        if is_new || (stored.restore.is_some() && content != Content::Foreign) {
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
            etcd: ETCD,
            member: &self.member,
            peer_url: &self.peer_url,
            tag: Some(tag),
            content,
            members: &self.members,
            quorum: quorum.as_deref(),
            mark: stored.mark(),
            restore: stored.restore.as_ref(),
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

    /// Writes the mark of the cluster, and deletes the commands that it carries out.
    pub(super) fn write_mark(&self, mark: &Mark, stored: &StoredState) -> Result<(), Error> {
        let since = stored.mark.as_ref().map(|(_, version)| Precondition::Read(version.clone()));
        self.backups.set_mark(mark, &since.unwrap_or(Precondition::Absent), rt::now().into())?;
        Ok(self.backups.delete_finished_commands(mark)?)
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
        b.write_mark(&mark, &before).unwrap();
        a.write_mark(&Mark::default(), &before).unwrap();
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
        let restore = b.backups.write_command("backup", rt::now().into()).unwrap();
        // A member with data no longer runs it, and a member without data does not start.
        assert!(matches!(decide(&a), Start::Wait(reason) if reason.contains("missing: b")));
        let Start::Mark(mark) = decide(&b) else { panic!("all are known") };
        assert_eq!(
            (mark.generation.clone(), mark.backup.as_str()),
            (restore.generation(), "backup")
        );
        // The backup does not exist: no mark is written, and no data is lost.
        assert!(b.unpack(&mark).is_err() && a.volume.join("data/member").exists());
        b.write_mark(&mark, &b.stored_state().unwrap()).unwrap();
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
