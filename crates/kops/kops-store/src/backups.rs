//! The backups and commands of one etcd cluster, in the state store in etcd-manager's layout.

use std::{
    fs::{self, File, OpenOptions},
    io::{Read, Write},
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use api_meta::Timestamp;
use flate2::{Compression, GzBuilder, read::MultiGzDecoder};
use kops_core::{
    backup::{self, COMMAND, DATA, Info, META, Restore, Retention},
    member::Mark,
    snapshot::{self, InitialCluster},
};
use serde_json::Value;
use vfs::{Precondition, Secrecy, Store, Version};

use crate::{
    error::{Error, RestoreError},
    layout::ETCD,
};

/// The prefix of the owner in an archive's gzip comment, which upstream's programs ignore.
const OWNER: &str = "kops.k8s.io/cluster=";
/// The longest comment that is read.
const LONGEST_COMMENT: usize = 1024;

/// The location of one etcd cluster's backups.
#[derive(Clone, Debug)]
pub struct Backups {
    /// The store.
    pub store: Store,
    /// The directory of the backups within the store; empty for the root.
    pub directory: String,
}

/// A writer with a limit on the bytes written.
struct Bounded<W> {
    inner: W,
    left: u64,
}

impl<W: Write> Write for Bounded<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.left = self
            .left
            .checked_sub(bytes.len() as u64)
            .ok_or_else(|| std::io::Error::other("it is longer than its database says"))?;
        self.inner.write_all(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.inner.flush()
    }
}

impl Backups {
    /// Returns the backups of an etcd cluster. The root of `store` is the cluster's directory.
    pub fn of_cluster(store: Store, etcd: &str) -> Self {
        Self { store, directory: format!("backups/etcd/{etcd}") }
    }

    /// Returns the path of an object of the backups' directory in the store.
    pub fn path(&self, inner: &str) -> String {
        match self.directory.as_str() {
            "" => inner.to_owned(),
            directory => format!("{directory}/{inner}"),
        }
    }

    fn control(&self, inner: &str) -> String {
        self.path(&format!("control/{inner}"))
    }

    /// Returns the subdirectories that contain a file of this name.
    fn directories_with(&self, directory: &str, file: &str) -> Result<Vec<String>, Error> {
        let directory = self.path(directory);
        let directory = directory.trim_end_matches('/');
        let mut found = Vec::new();
        for (name, is_directory) in self.store.entries(directory)? {
            let within = format!("{directory}/{name}");
            let within = within.trim_start_matches('/');
            if is_directory && self.store.entries(within)?.iter().any(|(own, _)| own == file) {
                found.push(name);
            }
        }
        Ok(found)
    }

    /// Returns the names of all complete backups, the oldest first.
    pub fn list(&self) -> Result<Vec<String>, Error> {
        self.directories_with("", META)
    }

    /// Returns the metadata of a backup, which must exist.
    pub fn info(&self, name: &str) -> Result<Info, Error> {
        let path = self.path(&format!("{name}/{META}"));
        let (text, _) = self
            .store
            .read(&path)?
            .ok_or_else(|| Error::MissingBackup { name: name.to_owned() })?;
        Info::read(&text).ok_or(Error::Malformed { path, expected: "the metadata of a backup" })
    }

    /// Returns the commands to restore a backup, with their directories. Other commands are skipped.
    pub fn commands(&self) -> Result<Vec<(String, Restore)>, Error> {
        let mut found = Vec::new();
        for name in self.directories_with("control", COMMAND)? {
            let read = self.store.read(&self.control(&format!("{name}/{COMMAND}")))?;
            match read.map(|(text, _)| Restore::read(&text)) {
                Some(Some(command)) => found.push((name, command)),
                Some(None) => tracing::warn!(name, "ignoring an unknown command for etcd"),
                None => {}
            }
        }
        Ok(found)
    }

    /// Writes a command to restore a backup.
    pub fn write_command(&self, backup: &str, now: Timestamp) -> Result<Restore, Error> {
        let restore = Restore { backup: backup.to_owned(), timestamp: nanoseconds(now) };
        let name = backup::name(now, "000000");
        let text = restore.to_text(&self.spec()?);
        let path = self.control(&format!("{name}/{COMMAND}"));
        self.store.write(&path, text.as_bytes(), &Precondition::Absent, Secrecy::Open)?;
        Ok(restore)
    }

    /// Deletes a command, by its directory.
    pub fn delete_command(&self, name: &str) -> Result<(), Error> {
        Ok(self.store.discard(&self.control(&format!("{name}/{COMMAND}")))?)
    }

    /// Deletes a command in all its directories, because it cannot be carried out.
    pub fn delete_command_of(&self, restore: &Restore) -> Result<(), Error> {
        for (name, command) in self.commands()? {
            if command == *restore {
                self.delete_command(&name)?;
            }
        }
        Ok(())
    }

    /// Returns the spec of the etcd cluster, as written by an update.
    pub fn spec(&self) -> Result<Value, Error> {
        let path = self.control("etcd-cluster-spec");
        let (text, _) = self.store.read(&path)?.ok_or(Error::MissingEtcdSpec)?;
        serde_json::from_slice(&text).map_err(|source| Error::Json { path, source })
    }

    /// Returns the mark of the cluster, with its version in the store.
    pub fn mark(&self) -> Result<Option<(Mark, Version)>, Error> {
        let path = self.control("etcd-cluster-created");
        let Some((text, version)) = self.store.read(&path)? else { return Ok(None) };
        let mark = Mark::read(&text);
        let mark = mark.ok_or(Error::Malformed { path, expected: "the mark of a cluster" })?;
        Ok(Some((mark, version)))
    }

    /// Writes the mark if it has not changed since it was read. If several members write at once, the first wins, and
    /// the others read again.
    pub fn set_mark(&self, mark: &Mark, since: &Precondition, now: Timestamp) -> Result<(), Error> {
        let text = mark.to_text(nanoseconds(now));
        let path = self.control("etcd-cluster-created");
        match self.store.write(&path, text.as_bytes(), since, Secrecy::Open) {
            Ok(_) | Err(vfs::Error::Conflict { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the pending command.
    pub fn pending_restore(&self, mark: Option<&Mark>) -> Result<Option<Restore>, Error> {
        let commands = self.commands()?.into_iter().map(|(_, command)| command);
        Ok(backup::pending(commands.collect(), mark))
    }

    /// Deletes the commands that the present cluster has carried out.
    pub fn delete_finished_commands(&self, mark: &Mark) -> Result<(), Error> {
        for (name, command) in self.commands()? {
            if backup::pending(vec![command], Some(mark)).is_none() {
                match self.delete_command(&name) {
                    // Another member deleted it first.
                    Err(error) if self.commands()?.iter().any(|(left, _)| *left == name) => {
                        return Err(error);
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Returns the path where a member reports its volume for a generation.
    pub fn report_path(&self, generation: &str, member: &str) -> String {
        match generation {
            "" => self.control(&format!("blank/{member}")),
            generation => self.control(&format!("{generation}/{member}")),
        }
    }

    /// Creates an archive that names its owner.
    pub fn create_archive<W: Write>(to: W, cluster: &str) -> flate2::write::GzEncoder<W> {
        let owner = format!("{OWNER}{cluster}/{ETCD}");
        GzBuilder::new().comment(owner).write(to, Compression::new(6))
    }

    /// Stores an archive as a backup and returns the backup's name. The metadata is written last.
    pub fn store_archive(
        &self,
        archive: &Path,
        info: &Info,
        sequence: u32,
    ) -> Result<String, Error> {
        let name = backup::name(Timestamp::from_unix(info.timestamp, 0), &format!("{sequence:06}"));
        self.store.keep(&self.path(&format!("{name}/{DATA}")), archive)?;
        let meta = self.path(&format!("{name}/{META}"));
        self.store.write(&meta, info.to_text().as_bytes(), &Precondition::Absent, Secrecy::Open)?;
        Ok(name)
    }

    /// Deletes expired backups and returns their names. Backups that members may still start from stay: those of
    /// commands and of the present cluster's restoration.
    pub fn expire(&self, now: Timestamp, retention: Retention) -> Result<Vec<String>, Error> {
        let names = self.list()?;
        let mut gone = backup::expired(&names, now, retention);
        let commanded = self.commands()?.into_iter().map(|(_, command)| command.backup);
        let restored = self.mark()?.map(|(mark, _)| mark.backup);
        let in_use: Vec<_> = commanded.chain(restored).collect();
        gone.retain(|name| !in_use.iter().any(|used| used == name));
        for name in &gone {
            // Delete the metadata first: an interrupted deletion then leaves no listed backup.
            for file in [META, DATA] {
                let path = self.path(&format!("{name}/{file}"));
                if self.store.entries(&self.path(name))?.iter().any(|(own, _)| own == file) {
                    self.store.discard(&path)?;
                }
            }
        }
        Ok(gone.into_iter().map(str::to_owned).collect())
    }

    /// Restores a backup into a temporary directory, and removes it. A backup that passes can be restored. The owner is
    /// verified if the cluster is known.
    pub fn verify(&self, name: &str, cluster: Option<&str>) -> Result<(), Error> {
        let directory = temporary_directory()?;
        let archive = self.fetch_archive(name, directory.path())?;
        let verified =
            restore_database(&archive, cluster, &any_founders(), &directory.path().join("db"));
        verified.map_err(|cause| Error::Restore { name: name.to_owned(), cause })
    }

    /// Restores an archive into a temporary directory, before it is stored as a backup.
    pub fn verify_archive(archive: &Path, cluster: &str) -> Result<(), Error> {
        let directory = temporary_directory()?;
        let database = directory.path().join("db");
        restore_database(archive, Some(cluster), &any_founders(), &database)
            .map_err(|cause| Error::Archive { cause })
    }

    /// Copies a backup's archive to a directory, if it is of a supported etcd.
    fn fetch_archive(&self, name: &str, to: &Path) -> Result<PathBuf, Error> {
        let info = self.info(name)?;
        let wrong = |cause| Error::Restore { name: name.to_owned(), cause };
        if !info.etcd_version.starts_with("3.") {
            return Err(wrong(RestoreError::EtcdVersion(info.etcd_version)));
        }
        let archive = to.join(DATA);
        if self.store.fetch(&self.path(&format!("{name}/{DATA}")), &archive)?.is_none() {
            return Err(wrong(RestoreError::MissingArchive(DATA)));
        }
        Ok(archive)
    }

    /// Unpacks a backup into the data directory of a founder, which is created.
    pub fn unpack(
        &self,
        name: &str,
        cluster: &str,
        founders: &InitialCluster,
        own: &str,
        to: &Path,
    ) -> Result<(), Error> {
        let (snap, wal) = (to.join("member/snap"), to.join("member/wal"));
        for directory in [&snap, &wal] {
            let shown = directory.display().to_string();
            fs::create_dir_all(directory).map_err(Error::file("making the directory", &shown))?;
        }
        let shown = to.display().to_string();
        fs::set_permissions(to, fs::Permissions::from_mode(0o700))
            .map_err(Error::file("restricting the permissions of", &shown))?;
        let archive = self.fetch_archive(name, to)?;
        restore_database(&archive, Some(cluster), founders, &snap.join("db"))
            .map_err(|cause| Error::Restore { name: name.to_owned(), cause })?;
        let (log, content) = snapshot::log_file(founders, own)
            .ok_or_else(|| Error::Founder { member: own.to_owned() })?;
        pki::write_file(&wal.join(log), &content, pki::KEY_MODE)?;
        let (raft, content) = snapshot::raft_file(founders);
        pki::write_file(&snap.join(raft), &content, pki::KEY_MODE)?;
        fs::remove_file(&archive).map_err(Error::file("removing", &archive.display().to_string()))
    }
}

/// Returns a time in Unix nanoseconds, as in commands and marks.
pub fn nanoseconds(time: Timestamp) -> i64 {
    time.unix().saturating_mul(1_000_000_000).saturating_add(i64::from(time.nanos()))
}

fn temporary_directory() -> Result<tempfile::TempDir, Error> {
    let parent = std::env::temp_dir();
    let shown = parent.display().to_string();
    // In a container, the directory may be missing.
    fs::create_dir_all(&parent).map_err(Error::file("making the directory", &shown))?;
    tempfile::tempdir().map_err(Error::file("making a directory in", &shown))
}

/// Returns founders for a database that is only verified.
fn any_founders() -> InitialCluster {
    InitialCluster::new("verification", [("any", "https://localhost:2380")])
}

/// Unpacks an archive to a new database of founders.
fn restore_database(
    archive: &Path,
    cluster: Option<&str>,
    founders: &InitialCluster,
    to: &Path,
) -> Result<(), RestoreError> {
    let packed = File::open(archive).map_err(RestoreError::Write)?;
    let room = sys::disk_use(to.parent().unwrap_or(to)).map_err(RestoreError::Room)?.available;
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create_new(true).mode(0o600).open(to);
    let mut file = file.map_err(RestoreError::Write)?;
    unpack_archive(packed, cluster, &mut file, room)?;
    let length = snapshot::prepare(&mut file, founders)?;
    file.set_len(length).and_then(|()| file.sync_all()).map_err(RestoreError::Write)
}

/// Unpacks an archive, bounded by the size in the database's header and by the free space.
fn unpack_archive(
    packed: impl Read,
    cluster: Option<&str>,
    to: &mut File,
    room: u64,
) -> Result<(), RestoreError> {
    let mut archive = MultiGzDecoder::new(std::io::BufReader::new(packed));
    let mut head = Vec::new();
    let read = (&mut archive).take(snapshot::HEAD as u64).read_to_end(&mut head);
    read.map_err(RestoreError::Archive)?;
    let comment = archive.header().and_then(|header| header.comment()).unwrap_or_default();
    let comment = String::from_utf8_lossy(comment.get(..LONGEST_COMMENT).unwrap_or(comment));
    if let (Some(owner), Some(cluster)) = (comment.strip_prefix(OWNER), cluster)
        && owner != format!("{cluster}/{ETCD}")
    {
        let (owner, cluster) = (owner.to_owned(), cluster.to_owned());
        return Err(RestoreError::Owner { owner, cluster });
    }
    let size = snapshot::size(&head)?;
    if size > snapshot::LARGEST || size > room {
        return Err(RestoreError::Size { size, limit: snapshot::LARGEST, room });
    }
    // Free pages after the last used one are assumed to be no more than the used ones.
    let mut out = Bounded { inner: to, left: size.saturating_mul(2).max(1 << 20).min(room) };
    out.write_all(&head).map_err(RestoreError::Write)?;
    std::io::copy(&mut archive, &mut out).map_err(RestoreError::Archive)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backups(directory: &Path) -> Backups {
        let store = Store::open(&format!("file://{}/store", directory.display())).unwrap();
        Backups { store, directory: "c/backups/etcd/main".to_owned() }
    }

    fn packed(cluster: &str, content: &[u8]) -> Vec<u8> {
        let mut archive = Backups::create_archive(Vec::new(), cluster);
        archive.write_all(content).unwrap();
        archive.finish().unwrap()
    }

    const INFO: &str = r#"{"etcdVersion": "3.4.23", "timestamp": "5"}"#;

    fn put(backups: &Backups, name: &str, archive: &[u8], meta: &str) {
        for (file, content) in [(DATA, archive), (META, meta.as_bytes())] {
            let path = backups.path(&format!("{name}/{file}"));
            backups.store.write(&path, content, &Precondition::Absent, Secrecy::Open).unwrap();
        }
    }

    #[test]
    fn restores_only_backups_of_the_cluster() {
        let dir = tempfile::tempdir().unwrap();
        let backups = backups(dir.path());
        let zeros = packed("c.local", &vec![0; 64 << 20]);
        assert!(zeros.len() < 1 << 20);
        let cut = packed("c.local", &[7; 4096]);
        let none = r#"{"etcdVersion": "2.2.1"}"#;
        for (name, archive, meta, reason) in [
            ("bomb", &zeros[..], INFO, "does not begin as an etcd database"),
            (
                "other",
                &packed("d.local", b"x"),
                INFO,
                "it is of \"d.local/main\", not of c.local/main",
            ),
            ("cut", &cut[..cut.len() / 2], INFO, "its archive is damaged"),
            ("foreign", b"photo", INFO, "its archive is damaged"),
            ("empty", b"", INFO, "its archive is damaged"),
            ("old", &cut, none, "only 3 can be restored"),
            ("nothing", &cut, "{}", "is not the metadata of a backup"),
        ] {
            put(&backups, name, archive, meta);
            let founders = InitialCluster::new("t", [("a", "https://a")]);
            let to = dir.path().join(name);
            let error = backups.unpack(name, "c.local", &founders, "a", &to).unwrap_err();
            assert!(error.to_string().contains(reason), "{name}: {error}");
            let size = fs::metadata(to.join("member/snap/db")).map_or(0, |meta| meta.len());
            assert!(size <= 1 << 20, "{name}: {size} bytes were written");
            let error = backups.verify(name, Some("c.local")).unwrap_err();
            assert!(error.to_string().contains(reason) && error.is_of_backup(), "{name}: {error}");
        }
        let to = dir.path().join("x");
        let founders = InitialCluster::new("t", [("a", "https://a")]);
        let missing = backups.unpack("missing", "c.local", &founders, "a", &to).unwrap_err();
        assert!(missing.to_string().contains("does not exist"), "{missing}");
        assert!(backups.unpack("../../keys", "c.local", &founders, "a", &to).is_err());
    }

    #[test]
    fn runs_commands_once_and_skips_foreign_objects() {
        let dir = tempfile::tempdir().unwrap();
        let backups = backups(dir.path());
        let now: Timestamp = "2026-11-23T10:00:00.5Z".parse().unwrap();
        assert!(
            backups
                .write_command("b", now)
                .unwrap_err()
                .to_string()
                .contains("is this a new cluster")
        );
        let write = |path: &str, text: &str| {
            let path = backups.path(path);
            backups
                .store
                .write(&path, text.as_bytes(), &Precondition::Absent, Secrecy::Open)
                .unwrap();
        };
        write("control/etcd-cluster-spec", r#"{"memberCount": 1, "etcdVersion": "3.4.23"}"#);
        write("control/x/_command.json", "{");
        write("photo.jpg", "x");
        write("half/etcd.backup.gz", "x");
        assert_eq!(backups.list().unwrap(), [""; 0]);
        let restore = backups.write_command("b", now).unwrap();
        assert_eq!(backups.pending_restore(None).unwrap(), Some(restore.clone()));
        let mark = Mark { generation: restore.generation(), ..Mark::default() };
        backups.set_mark(&mark, &Precondition::Absent, now).unwrap();
        // Another member writes later.
        backups.set_mark(&Mark::default(), &Precondition::Absent, now).unwrap();
        let (read, _) = backups.mark().unwrap().unwrap();
        let written = Mark { timestamp: read.timestamp, ..mark };
        assert_eq!((&read, backups.pending_restore(Some(&read)).unwrap()), (&written, None));
        assert_eq!(read.timestamp, restore.timestamp);
        backups.delete_finished_commands(&read).unwrap();
        backups.delete_finished_commands(&read).unwrap();
        assert_eq!(backups.commands().unwrap(), []);
    }

    #[test]
    fn lists_complete_backups_and_deletes_expired_ones() {
        let dir = tempfile::tempdir().unwrap();
        let backups = backups(dir.path());
        let archive = dir.path().join("a.gz");
        fs::write(&archive, packed("c.local", b"x")).unwrap();
        let info = |timestamp| Info { etcd_version: "3.4.23".to_owned(), members: 1, timestamp };
        let (old, new) = (info(1_700_000_000), info(1_800_000_000));
        let old = backups.store_archive(&archive, &old, 1).unwrap();
        let new = backups.store_archive(&archive, &new, 2).unwrap();
        assert_eq!(backups.list().unwrap(), [old.as_str(), &new]);
        // A backup that cannot be restored is not stored.
        assert!(
            Backups::verify_archive(&archive, "c.local")
                .unwrap_err()
                .to_string()
                .contains("not stored")
        );
        assert_eq!(new, "2027-01-15T08:00:00Z-000002");
        let now = Timestamp::from_unix(1_800_000_060, 0);
        let retention = Retention { daily: std::time::Duration::ZERO, ..Retention::default() };
        // It is being restored.
        let restored = Mark { backup: old.clone(), ..Mark::default() };
        backups.set_mark(&restored, &Precondition::Absent, now).unwrap();
        assert_eq!(backups.expire(now, retention).unwrap(), [""; 0]);
        let (_, version) = backups.mark().unwrap().unwrap();
        backups.set_mark(&Mark::default(), &Precondition::Read(version), now).unwrap();
        assert_eq!(backups.expire(now, retention).unwrap(), [old.as_str()]);
        assert_eq!(backups.list().unwrap(), [new]);
        assert!(backups.store.entries(&backups.path(&old)).unwrap().is_empty());
    }
}
