//! Finds the programs that tests run: the binary under test, kubectl, helm and busybox.

use std::path::{Path, PathBuf};

/// Returns cargo's target directory: the workspace's own, unless the environment names another.
fn target_directory() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    root.join(std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}

/// Returns the path of the binary under test: `WINDLASS`, or else the one that was built last.
pub fn binary() -> PathBuf {
    let built = || {
        let host = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
        let builds = [format!("{host}/quick"), format!("{host}/release"), "debug".to_owned()];
        let paths = builds.map(|build| target_directory().join(build).join("windlass"));
        let paths = paths.into_iter().filter(|path| path.is_file());
        paths.max_by_key(|path| path.metadata().and_then(|file| file.modified()).ok())
    };
    let path = std::env::var_os("WINDLASS").map(PathBuf::from).or_else(built);
    path.unwrap_or_else(|| {
        panic!("no windlass binary is built; run the tests with `cargo xtask test`")
    })
}

/// Returns the path of kubectl and helm as fetched by xtask, and the name itself for other programs.
pub fn tool(program: &str) -> String {
    if !["kubectl", "helm"].contains(&program) {
        return program.to_owned();
    }
    let fetched = || target_directory().join("tools");
    let directory = std::env::var_os("WINDLASS_TOOLS").map_or_else(fetched, PathBuf::from);
    let path = directory.join(program);
    assert!(
        path.is_file(),
        "{} does not exist; run the tests with `cargo xtask test`",
        path.display()
    );
    path.display().to_string()
}

/// Returns the path of busybox, which test images contain.
pub fn busybox() -> String {
    let known = ["/bin/busybox", "/usr/bin/busybox"];
    let found = known.into_iter().find(|path| Path::new(path).is_file());
    found
        .unwrap_or_else(|| {
            panic!("busybox is not installed; run the tests with `cargo xtask test`")
        })
        .to_owned()
}
