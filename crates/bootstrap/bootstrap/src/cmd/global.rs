//! The flags of every command.

use std::path::{Path, PathBuf};

use clap::Subcommand;

use super::flags::ClusterFlags;

/// The flags of every command: klog's verbosity flags and the root of the machine's files.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct GlobalFlags {
    /// Number for the log level verbosity
    #[arg(short = 'v', long = "v", global = true, value_name = "LEVEL", default_value_t = 0)]
    pub(super) level: u8,
    /// Comma-separated list of pattern=N settings for file-filtered logging; upstream's files do not exist here
    #[arg(long, global = true, value_name = "PATTERN=N,...", value_delimiter = ',', value_parser = module)]
    pub(super) vmodule: Vec<String>,
    /// The path to the 'real' host root filesystem; files are read and written below it
    #[arg(long, global = true)]
    pub(super) rootfs: Option<PathBuf>,
}

/// The flags of one command, and those of every command.
#[derive(Debug, clap::Args)]
pub(super) struct WithGlobal<A: clap::Args> {
    #[command(flatten)]
    pub(super) own: A,
    #[command(flatten)]
    pub(super) global: GlobalFlags,
}

/// The subcommands of a command, and the flags of every command.
#[derive(Debug, clap::Args)]
pub(super) struct Subcommands<C: Subcommand> {
    #[command(subcommand)]
    pub(super) command: C,
    #[command(flatten)]
    pub(super) global: GlobalFlags,
}

/// The error of a setting of `--vmodule`.
#[derive(Debug, thiserror::Error)]
#[error("syntax error: expect comma-separated list of filename=N")]
struct ModuleError;

/// Parses one setting of `--vmodule`.
fn module(text: &str) -> Result<String, ModuleError> {
    match text.split_once('=') {
        Some((pattern, level)) if !pattern.is_empty() && level.parse::<u8>().is_ok() => {
            Ok(text.to_owned())
        }
        _ => Err(ModuleError),
    }
}

impl GlobalFlags {
    /// Adds these flags to a command's cluster flags.
    pub(super) fn add_to(&self, mut flags: ClusterFlags) -> ClusterFlags {
        flags.rootfs.clone_from(&self.rootfs);
        flags
    }

    /// Returns a path below the root of the machine.
    pub(super) fn path(&self, path: &Path) -> PathBuf {
        match &self.rootfs {
            Some(root) => root.join(path.strip_prefix("/").unwrap_or(path)),
            None => path.to_owned(),
        }
    }
}
