//! The project's development commands, run as `cargo xtask COMMAND`.
//!
//! Each command has a module. Read `USAGE` first. The product itself is `crates/tools/windlass`; nothing of it is
//! here.

use std::process::ExitCode;

mod bench;
mod blackbox;
mod build;
mod codegen;
mod conformance;
mod control_plane;
mod dist;
mod docs;
mod down;
mod ecosystem;
mod error;
mod file;
mod goldens;
mod machine;
mod run;
mod soak;
mod steps;
mod test;
mod test_cmd;
mod tidy;
mod tools;
mod up;

const USAGE: &str = "usage: cargo xtask COMMAND

  up [ARGS]       install missing packages, build the binary, start a cluster
  down [ARGS]     remove the cluster
  dist [ARGS]     make a release in --out DIR [target/dist]: binary, packages, images, bill of materials, installer;
                  --verify makes it twice and compares, --quick builds a larger and slower binary
  test [--full]   format, lints, tidiness, all tests, then the end-to-end tests with the real binary;
                  --full adds the check of licenses, sources and banned crates, slow tests, and a release made twice;
                  --repeat N runs the tests N times and tabulates failures, with --load under background load
  bench [ARGS]    measure crates, clusters and an API server, and print tables; --peer DIR also measures upstream
  soak [ARGS]     run a cluster under churn and kills for --hours H, and check that nothing grows
  conformance ... run upstream's conformance tests on a cluster of three nodes, or on control planes
  test-cmd ...    run upstream's tests of kubectl against a control plane without nodes
  blackbox ...    run Ignition's black-box tests against `windlass`, in a virtual machine
  ecosystem ...   run programs of other projects as Pods; without arguments it lists what they need
  goldens ...     compare files of kOps with upstream's expected ones, and count them
  tools           fetch kubectl and helm, and print their paths
  docs            write the book's generated pages: commands and configuration kinds
  tidy            check the rules that the compiler cannot check
  codegen ...     update the schema facts from upstream's published files";

fn main() -> ExitCode {
    if let Some(code) = steps::wrap() {
        return code;
    }
    let args: Vec<String> = std::env::args().skip(1).collect();
    let rest = args.get(1..).unwrap_or_default();
    let result = match args.first().map(String::as_str) {
        Some("up") => up::run(rest),
        Some("down") => down::run(rest),
        Some("dist") => dist::run(rest),
        Some("test") => test::run(rest),
        Some("bench") => bench::run(rest),
        Some("soak") => soak::run(rest),
        Some("conformance") => conformance::run(rest),
        Some("test-cmd") => test_cmd::run(rest),
        Some("blackbox") => blackbox::run(rest),
        Some("ecosystem") => ecosystem::run(rest),
        Some("goldens") => goldens::run(rest),
        Some("tools") => tools::directory().map(|directory| println!("{}", directory.display())),
        Some("docs") => docs::run(),
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
