//! `etcd-manager-ctl`: shows etcd's spec and backups, and writes commands to restore one.

use std::io::Write;

use api_meta::Tree as _;
use kops_store::{Backups, ETCD};
use vfs::Store;

use crate::error::Error;

/// Shows etcd's backups in a state store, and restores one
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The backups of one etcd cluster: file:///path/CLUSTER/backups/etcd/main, or s3://bucket/...
    #[arg(long, global = true, default_value = "/backups")]
    backup_store: String,
    #[command(subcommand)]
    command: Option<Action>,
}

#[derive(clap::Subcommand, Debug)]
enum Action {
    /// Shows the spec of the etcd cluster
    Get,
    /// Lists the backups
    ListBackups,
    /// Lists the pending commands
    ListCommands,
    /// Deletes the commands to restore a backup
    DeleteCommand { backup: String },
    /// Restores a backup: all control planes are terminated, and their replacements start from the backup
    RestoreBackup { backup: String },
}

/// Runs a command.
pub fn run(args: &Args, now: std::time::SystemTime, out: &mut dyn Write) -> Result<(), Error> {
    let location = &args.backup_store;
    let url =
        if location.starts_with('/') { format!("file://{location}") } else { location.clone() };
    let backups =
        Backups { store: Store::open(url.trim_end_matches('/'))?, directory: String::new() };
    writeln!(out, "Backup Store: {location}")?;
    match args.command.as_ref().unwrap_or(&Action::Get) {
        Action::Get => {
            let spec = backups.spec()?;
            let (members, version) = (spec.int("memberCount"), spec.text("etcdVersion"));
            writeln!(out, "member_count:{members} etcd_version:\"{version}\"")?;
        }
        Action::ListBackups => {
            for name in backups.list()? {
                writeln!(out, "{name}")?;
            }
        }
        Action::ListCommands => {
            for (_, command) in backups.commands()? {
                let (timestamp, backup) = (command.timestamp, command.backup);
                writeln!(out, "timestamp:{timestamp} restore_backup:<backup:\"{backup}\">")?;
            }
        }
        Action::DeleteCommand { backup } => {
            for (name, command) in backups.commands()? {
                if command.backup == *backup {
                    backups.delete_command(&name)?;
                }
            }
        }
        Action::RestoreBackup { backup } => {
            // Machines read the commands of the main cluster only.
            let place = BackupLocation::of(location);
            if let Some(etcd) = place.etcd.filter(|etcd| *etcd != ETCD) {
                return Err(Error::RestoredCluster { name: etcd.to_owned() });
            }
            // A command for a backup that is missing or damaged would stop the cluster for nothing.
            backups.verify(backup, place.cluster)?;
            let command = backups.write_command(backup, now.into())?;
            let timestamp = command.timestamp;
            writeln!(
                out,
                "added restore-backup command: timestamp:{timestamp} restore_backup:<backup:\"{backup}\">"
            )?;
        }
    }
    Ok(())
}

/// The clusters that a location in the state store names.
#[derive(Debug, PartialEq, Eq)]
struct BackupLocation<'a> {
    /// The Kubernetes cluster; `None` if the location does not tell.
    cluster: Option<&'a str>,
    /// The etcd cluster; `None` if the location does not tell.
    etcd: Option<&'a str>,
}

impl<'a> BackupLocation<'a> {
    /// Parses `.../CLUSTER/backups/etcd/NAME`.
    fn of(location: &'a str) -> Self {
        let mut parts = location.split('/').rev().filter(|part| !part.is_empty());
        let (etcd, directory, root) = (parts.next(), parts.next(), parts.next());
        if (directory, root) != (Some("etcd"), Some("backups")) {
            return Self { cluster: None, etcd: None };
        }
        Self { cluster: parts.next(), etcd }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_unusable_backups_without_a_command() {
        let dir = tempfile::tempdir().unwrap();
        let root = format!("{}/c.local/backups/etcd/main", dir.path().display());
        let owner = |location| BackupLocation::of(location).cluster;
        assert_eq!(owner(&root), Some("c.local"));
        assert_eq!(owner("s3://bucket/c.local/backups/etcd/main/"), Some("c.local"));
        assert_eq!((owner("/backups"), owner("/backups/etcd/main")), (None, None));
        let backups = format!("{root}/2026-11-23T10:00:00Z-000000");
        std::fs::create_dir_all(&backups).unwrap();
        std::fs::create_dir_all(format!("{root}/control")).unwrap();
        std::fs::write(format!("{root}/control/etcd-cluster-spec"), "{}").unwrap();
        let meta = r#"{"etcdVersion": "3.4.23", "timestamp": "5"}"#;
        std::fs::write(format!("{backups}/_etcd_backup.meta"), meta).unwrap();
        let restore = |backup: &str| {
            let command = Some(Action::RestoreBackup { backup: backup.to_owned() });
            let args = Args { backup_store: root.clone(), command };
            run(&args, rt::now(), &mut Vec::new()).unwrap_err().to_string()
        };
        let archive = |content: &[u8]| {
            std::fs::write(format!("{backups}/etcd.backup.gz"), content).unwrap();
            restore("2026-11-23T10:00:00Z-000000")
        };
        assert!(restore("2026-11-23T10:00:00Z-000000").contains("etcd.backup.gz is missing"));
        assert!(restore("other").contains("does not exist"));
        assert!(restore("../../../x").contains("state store"));
        let foreign = archive(b"photo");
        assert!(foreign.contains("damaged") && foreign.contains("list-backups"), "{foreign}");
        let mut zeros = Backups::create_archive(Vec::new(), "c.local");
        zeros.write_all(&[0; 8192]).unwrap();
        assert!(archive(&zeros.finish().unwrap()).contains("does not begin as an etcd database"));
        let mut other = Backups::create_archive(Vec::new(), "d.local");
        other.write_all(&[0; 8192]).unwrap();
        assert!(archive(&other.finish().unwrap()).contains("it is of \"d.local/main\""));
        let entries = std::fs::read_dir(format!("{root}/control")).unwrap();
        assert_eq!(entries.count(), 1, "a command was written");
    }

    #[test]
    fn restores_only_the_main_etcd_cluster() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("c.local/backups/etcd/events");
        std::fs::create_dir_all(&root).unwrap();
        for end in ["", "/", "//"] {
            let command = Some(Action::RestoreBackup { backup: "a".to_owned() });
            let args = Args { backup_store: format!("{}{end}", root.display()), command };
            let error = run(&args, rt::now(), &mut Vec::new()).unwrap_err().to_string();
            assert!(error.contains("etcd cluster \"events\""), "{error}");
        }
        assert!(!root.join("control").exists(), "a command was written");
    }
}
