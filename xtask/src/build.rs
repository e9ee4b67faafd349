//! Builds the binary. It is static, so that it runs on every distribution and can be the only file of an image.

use std::{fs, path::PathBuf};

use crate::{
    error::{During, Result},
    run::{cargo, output, pass, program, target_directory},
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

/// Runs `cargo xtask dist`.
pub(crate) fn dist() -> Result<()> {
    let binary = windlass(Profile::Release)?;
    let size = fs::metadata(&binary).during("reading", binary.display())?;
    println!("{}: {:.1} MB", binary.display(), size.len() as f64 / 1e6);
    Ok(())
}

/// Builds the binary and returns its path.
pub(crate) fn windlass(profile: Profile) -> Result<PathBuf> {
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let version = output(&mut program(rustc, ["-vV"]))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    let host = host.ok_or_else(|| format!("`rustc -vV` names no host in: {version}"))?;
    let profile = profile.name();
    // With an explicit target, the flag does not apply to build scripts and procedural macros, which cannot be static.
    let mut build = cargo(["build", "--locked", "--profile", profile, "--package", "windlass"]);
    build.args(["--target", host]).env("RUSTFLAGS", "-C target-feature=+crt-static");
    pass(&mut build)?;
    Ok(target_directory().join(host).join(profile).join("windlass"))
}
