//! `cargo xtask test`: runs all checks that must pass before a change is merged.

use std::{
    fs, io,
    num::NonZero,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    thread,
};

use crate::{
    build::{self, Profile},
    conformance, dist,
    error::{During, Result},
    machine,
    run::{cargo, on_path, output, pass, step, target_directory},
    steps, tools,
};

mod repeat;
mod report;
mod teardown;

const USAGE: &str = "usage: cargo xtask test [--full] [--repeat N [--load]]";

/// The arguments of `cargo xtask test`.
#[derive(Debug, Default, PartialEq)]
struct Options {
    full: bool,
    /// The number of runs, if the tests are to be repeated.
    repeat: Option<u32>,
    /// `true` if a load runs beside the repeated tests.
    load: bool,
}

impl Options {
    fn parse(args: &[String]) -> Result<Self> {
        let mut options = Self::default();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--full" => options.full = true,
                "--repeat" => {
                    let times = args.next().and_then(|n| n.parse().ok()).filter(|n| *n > 0);
                    options.repeat = Some(times.ok_or(USAGE)?);
                }
                "--load" => options.load = true,
                _ => return Err(USAGE.into()),
            }
        }
        if options.load && options.repeat.is_none() { Err(USAGE.into()) } else { Ok(options) }
    }
}

pub(crate) fn run(args: &[String]) -> Result<()> {
    let Options { full, repeat, load } = Options::parse(args)?;
    let tools = step("prepare the machine", || {
        machine::install_to_test(full)?;
        machine::forward_packets()?;
        tools::directory()
    })?;
    step("format", || pass(&mut cargo(["fmt", "--all", "--check"])))?;
    if full {
        step("licenses, sources and bans", deny)?;
    }
    // The build comes first, because it downloads only what `cargo xtask up` downloads; the tests must not hide a
    // missing crate.
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
    let mut tests = cargo(["test", "--locked", "--workspace", "--exclude", "e2e"]);
    // The end-to-end tests come last, so that the output ends with their result.
    let mut end_to_end = cargo(["test", "--locked", "--package", "e2e", "--test", "it"]);
    end_to_end.env("WINDLASS", &binary).env("WINDLASS_TOOLS", tools);
    end_to_end.args(["--", "--test-threads", &end_to_end_threads().to_string()]);
    if full {
        end_to_end.arg("--include-ignored");
    }
    if let Some(times) = repeat {
        tests.arg("--no-fail-fast");
        return step("tests, repeated", || repeat::run(times, load, &mut [tests, end_to_end]));
    }
    let log = |name: &str| target_directory().join(format!("{name}.log"));
    step("tests", || report::run(&mut tests, &log("tests")))?;
    step("steps", || steps::test(full))?;
    if full {
        step("long-running tests", || {
            let packages = ["--package", "netboot", "--package", "controllers"];
            pass(cargo(["test", "--locked"]).args(packages).args(["--", "--ignored"]))
        })?;
        step("release, built twice", || dist::run(&["--quick".to_owned(), "--verify".to_owned()]))?;
    }
    eprintln!("==> end-to-end tests");
    let result = report::run(&mut end_to_end, &log("end-to-end"));
    teardown::wait();
    result?;
    let peer = std::env::var_os("WINDLASS_PEER").map(PathBuf::from);
    match peer.filter(|peer| conformance::can_run(peer)) {
        Some(peer) => conformance::run_sample(&peer, &binary),
        None => Ok(()),
    }
}

/// The number of end-to-end tests that run side by side. It exceeds the number of processors, because these tests wait
/// more than they compute.
fn end_to_end_threads() -> usize {
    2 * thread::available_parallelism().map_or(1, NonZero::get)
}

/// Runs cargo-deny, which is not part of the toolchain and takes minutes to build.
fn deny() -> Result<()> {
    if !on_path("cargo-deny") && output(&mut cargo(["deny", "--version"])).is_err() {
        pass(&mut cargo(["install", "--locked", "cargo-deny"]))?;
    }
    pass(&mut cargo(["deny", "check", "bans", "licenses", "sources"]))?;
    match std::env::var_os("ADVISORY_DB") {
        Some(database) => advisories(Path::new(&database)),
        None => Ok(()),
    }
}

/// Checks the dependencies against a clone of RustSec's database. cargo-deny expects it below `deny.toml`'s `db-path`,
/// under a name that it derives from the database's URL.
fn advisories(database: &Path) -> Result<()> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/advisories");
    let link = directory.join("advisory-db-3157b0e258782691");
    let linked = || {
        fs::create_dir_all(&directory)?;
        match fs::remove_file(&link) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => symlink(database.canonicalize()?, &link),
        }
    };
    linked().during("linking to ADVISORY_DB the path", link.display())?;
    pass(&mut cargo(["deny", "--offline", "check", "advisories"]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_options_and_rejects_load_without_repeat() {
        let parse = |line: &str| {
            Options::parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
        };
        assert_eq!(parse("").unwrap(), Options::default());
        let all = Options { full: true, repeat: Some(10), load: true };
        assert_eq!(parse("--full --repeat 10 --load").unwrap(), all);
        for line in ["--load", "--repeat", "--repeat 0", "--repeat many", "more"] {
            assert_eq!(parse(line).unwrap_err().to_string(), USAGE, "{line}");
        }
    }
}
