//! Runs tests in builds that count steps. In these builds, this program is also the compiler's wrapper.
//!
//! Cargo calls the wrapper only for the crates of this workspace, and separates their files from those of other builds.

use std::{
    ffi::OsString,
    process::{Command, ExitCode},
};

use crate::{
    error::{During, Result},
    run::{cargo, pass},
};

/// The environment variable that marks calls as the compiler's wrapper.
const WRAPS: &str = "WINDLASS_COUNT_STEPS";

/// The compiler's flags for a call before every edge between basic blocks.
const FLAGS: [&str; 4] = [
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=3",
    "-Cllvm-args=-sanitizer-coverage-trace-pc",
    // Unoptimized code would also do, but has more steps: the tests would take longer than the build saves.
    "-Copt-level=1",
];

/// The crates that are not instrumented: the counter, and build scripts.
const UNCOUNTED: [&str; 2] = ["fuzz", "build_script_build"];

/// The crates whose decoders are fuzzed, in test modules named `fuzzed`.
const FUZZED: [&str; 6] = ["api-meta", "api-schema", "api-codec", "api-patch", "api-rules", "cel"];

/// Tests that work grows at most with n log n of the input.
pub(crate) fn test(full: bool) -> Result<()> {
    let counting = |args: &[&str]| {
        let mut command = cargo(["test", "--locked"]);
        let wrapper =
            std::env::current_exe().during("finding", "the path of xtask, to wrap the compiler")?;
        command.args(args).env("RUSTC_WORKSPACE_WRAPPER", wrapper).env(WRAPS, "1");
        if full {
            command.env("WINDLASS_STEPS_FULL", "1");
        }
        pass(&mut command)
    };
    counting(&["--package", "admission", "--test", "steps"])?;
    let packages: Vec<&str> = FUZZED.iter().flat_map(|name| ["--package", name]).collect();
    counting(&[&packages[..], &["--lib", "fuzzed"]].concat())
}

/// Calls the compiler if this program is its wrapper: `xtask RUSTC ARGS`.
pub(crate) fn wrap() -> Option<ExitCode> {
    std::env::var_os(WRAPS)?;
    let mut args = std::env::args_os().skip(1);
    let compiler = args.next()?;
    let args: Vec<OsString> = args.collect();
    let name = args.iter().skip_while(|arg| *arg != "--crate-name").nth(1);
    let counted = name.is_some_and(|name| !UNCOUNTED.iter().any(|other| name == other));
    let mut command = Command::new(compiler);
    command.args(&args);
    match name.and_then(|name| name.to_str()) {
        Some("fuzz") => drop(command.args(["--cfg", "steps"])),
        _ if counted => drop(command.args(FLAGS)),
        _ => {}
    }
    let code = command.status().ok().and_then(|status| status.code());
    Some(code.and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
}
