//! The volume of an etcd member, and the reports about it in the store.
//!
//! Invariant: nodeup may stop between any two writes. The next run continues, because each write leaves the volume and
//! the store in a state that [`kops_core::member`] decides about.

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
use kops_store::Backups;
use vfs::{Precondition, Secrecy, Version};

use super::writes::Writes;
use crate::error::Error;

/// Directories on the volume: data from before a restoration, and unpacked backups.
const TRASH: &str = "data-trashcan";
const RESTORED: &str = "restored";
/// The prefix of files that were being written when a program stopped.
const PARTIAL: &str = ".new-";

/// A volume, and the store through which members report their volumes.
pub(super) struct MemberVolume {
    pub(super) backups: Backups,
    pub(super) volume: PathBuf,
    pub(super) cluster: String,
    /// The name of the etcd cluster.
    pub(super) etcd: String,
    pub(super) member: String,
    pub(super) peer_url: String,
    pub(super) members: Vec<String>,
    /// The names and peer URLs of the members.
    pub(super) founders: Vec<(String, String)>,
    pub(super) writes: Writes,
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

    /// Reports whether the present cluster started with this volume of a member.
    pub(super) fn has_founder(&self, member: &str, tag: &Tag) -> bool {
        self.mark().and_then(|mark| mark.members.get(member)).is_some_and(|id| *id == tag.id)
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
                    etcd: self.etcd.clone(),
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
        self.writes.step("the volume's tag", || {
            let path = self.volume.join("volume.json");
            Ok(pki::write_file(&path, tag.to_text().as_bytes(), pki::PUBLIC_MODE)?)
        })
    }

    /// Assigns the volume to the present cluster, before etcd's data is written.
    pub(super) fn assign(&self, tag: &Tag, stored: &StoredState) -> Result<(), Error> {
        let generation = stored.generation().unwrap_or_else(|| tag.generation.clone());
        let used = tag.used && tag.generation == generation;
        self.write_tag(&Tag { used, generation, ..tag.clone() })
    }

    /// Assigns the volume to a new member of the present cluster. With its new ID, it is no founder any more.
    pub(super) fn assign_new(&self, tag: &Tag, stored: &StoredState) -> Result<(), Error> {
        self.assign(&Tag { id: rt::id(), used: false, ..tag.clone() }, stored)
    }

    /// Records that etcd has run on the volume: from now on, it may hold votes of the present cluster. Returns `false`
    /// if etcd has not written any data yet.
    pub(super) fn record_use(&self) -> Result<bool, Error> {
        if self.content()? != Content::Data {
            return Ok(false);
        }
        let tag = self.tag()?;
        if !tag.used {
            self.write_tag(&Tag { used: true, ..tag })?;
        }
        Ok(true)
    }

    /// Moves the data of an earlier cluster aside. Only the user deletes it.
    pub(super) fn set_aside(&self, tag: &Tag) -> Result<(), Error> {
        if self.content()? == Content::Blank {
            return Ok(());
        }
        let aside =
            self.volume.join(TRASH).join(format!("{}{}", trash_prefix(&tag.generation), rt::id()));
        tracing::info!(aside = %aside.display(), "moving the data of an earlier etcd cluster aside");
        self.rename("the data set aside", &self.data(), &aside)
    }

    /// Returns the data of a generation that was set aside.
    fn aside(&self, generation: &str) -> Result<Option<PathBuf>, Error> {
        let (trash, prefix) = (self.volume.join(TRASH), trash_prefix(generation));
        let name = entries(&trash)?.into_iter().find(|name| name.starts_with(&prefix));
        Ok(name.map(|name| trash.join(name)))
    }

    /// Puts the data of the present cluster back that was set aside.
    pub(super) fn return_data(&self, tag: &Tag, stored: &StoredState) -> Result<(), Error> {
        let generation = stored.generation().unwrap_or_default();
        let Some(aside) = self.aside(&generation)? else { return Ok(()) };
        self.set_aside(tag)?;
        tracing::info!(aside = %aside.display(), "the restoration was undone; putting etcd's data back");
        self.write_tag(&Tag { used: true, generation, ..tag.clone() })?;
        self.rename("the data put back", &aside, &self.data())
    }

    /// Renames a directory. The target's parent is created, and the target must be missing or empty.
    fn rename(&self, step: &'static str, from: &Path, to: &Path) -> Result<(), Error> {
        let shown = to.display().to_string();
        self.writes.step(step, || {
            fs::create_dir_all(to.parent().unwrap_or(to))
                .and_then(|()| fs::rename(from, to))
                .map_err(kops_store::Error::file("moving etcd's data to", &shown))?;
            Ok(())
        })
    }

    /// Unpacks a backup as a founder's data, beside the present data.
    pub(super) fn unpack(&self, mark: &Mark) -> Result<PathBuf, Error> {
        let target = self.volume.join(RESTORED);
        let shown = target.display().to_string();
        let founders = self.founders.iter().map(|(name, url)| (name.as_str(), url.as_str()));
        let founders = InitialCluster::new(&mark.generation, founders);
        self.writes.step("the unpacked backup", || {
            match fs::remove_dir_all(&target) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(kops_store::Error::file("removing", &shown)(error).into());
                }
                _ => {}
            }
            self.backups.unpack(&mark.backup, &self.cluster, &founders, &self.member, &target)?;
            Ok(())
        })?;
        Ok(target)
    }

    /// Installs the restored data, if the cluster starts from a backup.
    pub(super) fn restore(&self, stored: &StoredState) -> Result<(), Error> {
        let Some(mark) = stored.mark().filter(|mark| !mark.backup.is_empty()) else {
            return Ok(());
        };
        tracing::info!(backup = mark.backup, "restoring a backup");
        let restored = self.unpack(mark)?;
        self.rename("the restored data", &restored, &self.data())
    }

    /// Cancels the command to restore a backup that cannot be restored. Other errors are returned, because the next
    /// attempt may succeed.
    pub(super) fn cancel_restore(&self, mark: &Mark, error: Error) -> Result<(), Error> {
        match error {
            Error::Object(cause) if cause.is_of_backup() => {
                tracing::error!(%cause, "the backup is not restored; the member keeps its data");
                self.writes.step("the cancelled command", || {
                    Ok(self.backups.delete_finished_commands(mark)?)
                })
            }
            error => Err(error),
        }
    }

    /// Classifies the content of the volume.
    pub(super) fn content(&self) -> Result<Content, Error> {
        const KNOWN_ENTRIES: [&str; 5] = ["volume.json", "data", "lost+found", TRASH, RESTORED];
        let other =
            |name: &String| !KNOWN_ENTRIES.contains(&name.as_str()) && !name.starts_with(PARTIAL);
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
            etcd: &self.etcd,
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
            aside: match stored.mark() {
                Some(mark) => self.aside(&mark.generation)?.is_some(),
                None => false,
            },
        }))
    }

    fn report_volume(&self, generation: &str, id: &str) -> Result<(), Error> {
        let name = self.backups.report_path(generation, &self.member);
        let since = match self.backups.store.read(&name)? {
            Some((old, _)) if old == id.as_bytes() => return Ok(()),
            Some((_, version)) => Precondition::Read(version),
            None => Precondition::Absent,
        };
        self.writes.step("the report of the volume", || {
            self.backups.store.write(&name, id.as_bytes(), &since, Secrecy::Open)?;
            Ok(())
        })
    }

    /// Writes the mark of the cluster, and deletes the commands that it carries out.
    pub(super) fn write_mark(&self, mark: &Mark, stored: &StoredState) -> Result<(), Error> {
        let since = stored.mark.as_ref().map(|(_, version)| Precondition::Read(version.clone()));
        let since = since.unwrap_or(Precondition::Absent);
        self.writes.step("the mark of the cluster", || {
            Ok(self.backups.set_mark(mark, &since, rt::now().into())?)
        })?;
        self.writes
            .step("the end of the command", || Ok(self.backups.delete_finished_commands(mark)?))
    }
}

/// Returns the prefix of the names of a generation's data in the trash.
fn trash_prefix(generation: &str) -> String {
    format!("{}-", if generation.is_empty() { "first" } else { generation })
}

/// Returns the names in a directory; none if it does not exist.
fn entries(path: &Path) -> Result<Vec<String>, Error> {
    let shown = path.display().to_string();
    match fs::read_dir(path) {
        Ok(entries) => {
            let names = entries.filter_map(Result::ok).map(|entry| entry.file_name());
            Ok(names.map(|name| name.to_string_lossy().into_owned()).collect())
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(kops_store::Error::file("reading", &shown)(error).into()),
    }
}

/// Reports whether a volume's directory holds data of a generation, in place or set aside.
pub fn holds_generation(volume: &Path, generation: &str) -> bool {
    let tag = fs::read_to_string(volume.join("volume.json")).ok().and_then(|text| Tag::read(&text));
    let in_place =
        tag.is_some_and(|tag| tag.generation == generation) && volume.join("data/member").exists();
    let prefix = trash_prefix(generation);
    let trash = entries(&volume.join(TRASH)).unwrap_or_default();
    in_place || trash.iter().any(|name| name.starts_with(&prefix))
}

#[cfg(test)]
mod tests;
