//! The binary: static, so that it runs on any distribution and can be the whole content of an image.

use std::{fs, path::PathBuf};

use crate::run::{cargo, output, pass, program, target_directory};

/// How the binary is built; each is a profile of the workspace's Cargo.toml.
#[derive(Clone, Copy)]
pub(crate) enum Profile {
    /// Soon there: for a cluster on this machine, and for tests.
    Quick,
    /// Small and fast: to hand out, and to measure.
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

/// `cargo xtask dist`.
pub(crate) fn dist() -> Result<(), String> {
    let binary = windlass(Profile::Release)?;
    let size = fs::metadata(&binary).map_err(|e| format!("reading {}: {e}", binary.display()))?;
    println!("{}: {:.1} MB", binary.display(), size.len() as f64 / 1e6);
    Ok(())
}

/// Builds the binary and says where it is.
pub(crate) fn windlass(profile: Profile) -> Result<PathBuf, String> {
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let version = output(&mut program(rustc, ["-vV"]))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    let host = host.ok_or_else(|| format!("`rustc -vV` names no host in: {version}"))?;
    let profile = profile.name();
    // Naming the target keeps the flag off build scripts and procedural macros, which cannot be static.
    let mut build = cargo(["build", "--locked", "--profile", profile, "--package", "windlass"]);
    build.args(["--target", host]).env("RUSTFLAGS", "-C target-feature=+crt-static");
    pass(&mut build)?;
    Ok(target_directory().join(host).join(profile).join("windlass"))
}
