//! The project's chores, run as `cargo xtask COMMAND`.

use std::process::ExitCode;

mod bench;
mod blackbox;
mod build;
mod codegen;
mod conformance;
mod control_plane;
mod down;
mod machine;
mod run;
mod steps;
mod test;
mod tidy;
mod tools;
mod up;

const USAGE: &str = "usage: cargo xtask COMMAND

  up [ARGS]       install what the machine lacks, build the binary, bring a cluster up
  down [ARGS]     take the cluster away again
  dist            build the binary to hand out, small and fast, which takes longer
  test [--full]   format, lints, tidiness, all tests, then the end-to-end tests with the real binary;
                  --full adds the check of licences, sources and banned crates;
                  --repeat N runs the tests N times and tabulates failures, with --load beside a busy machine
  bench [ARGS]    measure crates, a cluster and an API server, and print tables; upstream beside it with --peer DIR
  conformance ... run upstream's own test suite against a fresh control plane
  blackbox ...    run upstream's black-box tests of Ignition on ours, in a virtual machine
  tools           fetch kubectl and helm, and say where they are
  tidy            check the rules that the compiler does not know
  codegen ...     refresh the schema facts from what upstream publishes";

fn main() -> ExitCode {
    if let Some(code) = steps::wrap() {
        return code;
    }
    let args: Vec<String> = std::env::args().skip(1).collect();
    let rest = args.get(1..).unwrap_or_default();
    let result = match args.first().map(String::as_str) {
        Some("up") => up::run(rest),
        Some("down") => down::run(rest),
        Some("dist") => build::dist(),
        Some("test") => test::run(rest),
        Some("bench") => bench::run(rest),
        Some("conformance") => conformance::run(rest),
        Some("blackbox") => blackbox::run(rest),
        Some("tools") => tools::directory().map(|directory| println!("{}", directory.display())),
        Some("tidy") => tidy::run(),
        Some("codegen") => codegen::run(rest),
        _ => Err(USAGE.into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}
