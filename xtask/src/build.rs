//! Builds the binary. It is static, so that it runs on every distribution and can be the only file of an image.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    error::Result,
    run::{cargo, output, pass, program, step, target_directory, workspace_root},
};

/// A build profile of the workspace's Cargo.toml.
#[derive(Clone, Copy)]
pub(crate) enum Profile {
    /// Builds quickly: for a local cluster and for tests.
    Quick,
    /// Builds a small and fast binary: for releases and measurements.
    Release,
}

impl Profile {
    fn name(self) -> &'static str {
        match self {
            Self::Quick => "quick",
            Self::Release => "release",
        }
    }
}

/// A source tree and its target directory.
pub(crate) struct Tree {
    pub(crate) root: PathBuf,
    pub(crate) target: PathBuf,
}

impl Tree {
    /// Returns the workspace.
    pub(crate) fn workspace() -> Self {
        Self { root: workspace_root(), target: target_directory() }
    }
}

/// The commit that a binary is built from.
pub(crate) struct Commit {
    /// The hash, with `-dirty` if files have been changed since.
    pub(crate) hash: String,
    /// The date in RFC 3339 and UTC.
    pub(crate) date: String,
    /// The date in seconds since 1970.
    pub(crate) epoch: String,
}

impl Commit {
    /// Reads the commit that is checked out in the workspace.
    pub(crate) fn current() -> Result<Self> {
        let git = |args: &[&str]| {
            let mut command = program("git", args);
            command.current_dir(workspace_root()).env("TZ", "UTC");
            Ok::<_, crate::error::Error>(output(&mut command)?.trim().to_owned())
        };
        let log = |format: &str| {
            git(&[
                "log",
                "-1",
                "--date=format-local:%Y-%m-%dT%H:%M:%SZ",
                &format!("--format={format}"),
            ])
        };
        let changed = !git(&["status", "--porcelain"])?.is_empty();
        let suffix = if changed { "-dirty" } else { "" };
        Ok(Self { hash: format!("{}{suffix}", log("%H")?), date: log("%cd")?, epoch: log("%ct")? })
    }
}

/// Returns the binary that the environment variable `WINDLASS` names, or else builds the workspace's.
pub(crate) fn given_or_built(profile: Profile) -> Result<PathBuf> {
    match std::env::var_os("WINDLASS") {
        Some(binary) => Ok(PathBuf::from(binary)),
        None => step("build windlass", || windlass(profile)),
    }
}

/// Builds the binary of the workspace and returns its path.
pub(crate) fn windlass(profile: Profile) -> Result<PathBuf> {
    // With an explicit target, the flag does not apply to build scripts and procedural macros, which cannot be static.
    build(&Tree::workspace(), profile, |command| command.env("RUSTFLAGS", STATIC))
}

/// Builds the binary of a release and returns its path. The same commit gives the same bytes in every directory: paths
/// of this machine do not appear in the binary.
pub(crate) fn reproducible(tree: &Tree, profile: Profile, commit: &Commit) -> Result<PathBuf> {
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let cargo_home =
        std::env::var_os("CARGO_HOME").map_or_else(|| home.join(".cargo"), PathBuf::from);
    // Of several matching prefixes, the last applies.
    let prefixes = [(&tree.root, "/windlass"), (&tree.target, "/target"), (&cargo_home, "/cargo")];
    let mut rust: Vec<OsString> = STATIC.split(' ').map(OsString::from).collect();
    let mut c = OsString::new();
    for (path, name) in prefixes {
        rust.push(joined("--remap-path-prefix=", path, name));
        c.push(joined(" -ffile-prefix-map=", path, name));
    }
    build(tree, profile, |command| {
        command
            .env("CARGO_ENCODED_RUSTFLAGS", rust.join(std::ffi::OsStr::new("\x1f")))
            .env("CFLAGS", c)
            .env("CARGO_TARGET_DIR", &tree.target)
            .env("WINDLASS_COMMIT", &commit.hash)
            .env("WINDLASS_BUILD_DATE", &commit.date)
            .env("SOURCE_DATE_EPOCH", &commit.epoch)
    })
}

const STATIC: &str = "-C target-feature=+crt-static";

fn joined(flag: &str, path: &Path, name: &str) -> OsString {
    let mut text = OsString::from(flag);
    text.push(path);
    text.push("=");
    text.push(name);
    text
}

fn build(
    tree: &Tree,
    profile: Profile,
    set: impl FnOnce(&mut Command) -> &mut Command,
) -> Result<PathBuf> {
    let host = host()?;
    let mut command = cargo(["build", "--locked", "--profile", profile.name()]);
    command.args(["--package", "windlass", "--target", &host]).current_dir(&tree.root);
    pass(set(&mut command))?;
    Ok(tree.target.join(host).join(profile.name()).join("windlass"))
}

/// Returns the target triple of this machine.
pub(crate) fn host() -> Result<String> {
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let version = output(&mut program(rustc, ["-vV"]))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.ok_or_else(|| format!("`rustc -vV` names no host in: {version}"))?.to_owned())
}
