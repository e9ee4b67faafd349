//! `etcd-manager-ctl`: shows etcd's spec and backups, and writes commands to restore one.

use std::io::Write;

use kops_api::Spec as _;
use kops_store::Backups;
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
            let (members, version) =
                (spec.int("memberCount").unwrap_or(0), spec.text("etcdVersion"));
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
            // A command for a missing backup would stop the cluster for nothing.
            backups.info(backup)?;
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
