//! `cargo xtask test`: everything that must hold before a change lands.

use std::{
    fs, io,
    os::unix::fs::symlink,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use crate::{
    build::{self, Profile},
    machine,
    run::{cargo, on_path, output, pass, step},
    steps, tools,
};

const USAGE: &str = "usage: cargo xtask test [--full]";

pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let full = match args {
        [] => false,
        [flag] if flag == "--full" => true,
        _ => return Err(USAGE.into()),
    };
    let tools = step("what the machine needs", || {
        machine::install_to_test(full)?;
        machine::forward_packets()?;
        tools::directory()
    })?;
    step("format", || pass(&mut cargo(["fmt", "--all", "--check"])))?;
    if full {
        step("licences, sources and bans", deny)?;
    }
    // First, because it downloads no more than 'cargo xtask up' does: what that lacks must not come from the tests.
    let binary = step("build windlass", || build::windlass(Profile::Quick))?;
    step("lints", || {
        pass(&mut cargo([
            "clippy",
            "--locked",
            "--workspace",
            "--all-targets",
            "--",
            "-D",
            "warnings",
        ]))
    })?;
    step("tests", || pass(&mut cargo(["test", "--locked", "--workspace", "--exclude", "e2e"])))?;
    step("steps", || steps::test(full))?;
    if full {
        step("tests that take long", || {
            let test = ["test", "--locked", "--package", "netboot", "--", "--ignored"];
            pass(&mut cargo(test))
        })?;
    }
    // Last, and with nothing printed after it, so that the output ends with what the tests say.
    let mut end_to_end = cargo(["test", "--locked", "--package", "e2e", "--test", "it"]);
    if full {
        end_to_end.args(["--", "--include-ignored"]);
    }
    eprintln!("==> end-to-end tests");
    let result = pass(end_to_end.env("WINDLASS", binary).env("WINDLASS_TOOLS", tools));
    wait_for_take_down();
    result
}

/// Clusters of tests are taken down by processes of their own, their network namespaces last.
fn wait_for_take_down() {
    let deadline = Instant::now() + Duration::from_secs(60);
    let left = || {
        let names = fs::read_dir("/run/netns")
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.file_name());
        names.into_iter().any(|name| name.to_string_lossy().starts_with("windlass-e2e-"))
    };
    while left() && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(100));
    }
}

/// cargo-deny is no part of the toolchain, and takes minutes to build.
fn deny() -> Result<(), String> {
    if !on_path("cargo-deny") && output(&mut cargo(["deny", "--version"])).is_err() {
        pass(&mut cargo(["install", "--locked", "cargo-deny"]))?;
    }
    pass(&mut cargo(["deny", "check", "bans", "licenses", "sources"]))?;
    match std::env::var_os("ADVISORY_DB") {
        Some(database) => advisories(Path::new(&database)),
        None => Ok(()),
    }
}

/// Checks the dependencies against a clone of RustSec's database. cargo-deny finds it below `deny.toml`'s `db-path`, by a
/// name that it makes of the database's address.
fn advisories(database: &Path) -> Result<(), String> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/advisories");
    let link = directory.join("advisory-db-3157b0e258782691");
    let linked = || {
        fs::create_dir_all(&directory)?;
        match fs::remove_file(&link) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => symlink(database.canonicalize()?, &link),
        }
    };
    linked().map_err(|error| {
        format!("linking {} to ADVISORY_DB={}: {error}", link.display(), database.display())
    })?;
    pass(&mut cargo(["deny", "--offline", "check", "advisories"]))
}
