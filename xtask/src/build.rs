//! The release binary: static, so that it runs on any distribution and can be the whole content of an image.

use std::path::PathBuf;

use crate::run::{cargo, output, pass, program, target_directory};

/// Builds the binary and says where it is.
pub(crate) fn release() -> Result<PathBuf, String> {
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let version = output(&mut program(rustc, ["-vV"]))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    let host = host.ok_or_else(|| format!("`rustc -vV` names no host in: {version}"))?;
    // Naming the target keeps the flag off build scripts and procedural macros, which cannot be static.
    let mut build =
        cargo(["build", "--locked", "--release", "--package", "windlass", "--target", host]);
    pass(build.env("RUSTFLAGS", "-C target-feature=+crt-static"))?;
    Ok(target_directory().join(host).join("release/windlass"))
}
