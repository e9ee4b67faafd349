//! `cargo xtask bench`: what a cluster costs, and the benchmarks that crates have.

use crate::{
    build, machine,
    run::{cargo, pass, step},
    tools,
};

/// Crates with a benchmark of their own, and its name.
const BENCHES: &[(&str, &str)] = &[("store", "store"), ("sched-core", "schedule")];

const USAGE: &str = "usage: cargo xtask bench";

pub(crate) fn run(args: &[String]) -> Result<(), String> {
    if !args.is_empty() {
        return Err(USAGE.into());
    }
    let tools = step("what the machine needs", || {
        machine::install_to_bench()?;
        machine::forward_packets()?;
        tools::directory()
    })?;
    let binary = step("build windlass", build::release)?;
    for (package, bench) in BENCHES {
        step(&format!("{package}: {bench}"), || {
            pass(&mut cargo(["bench", "--locked", "--package", package, "--bench", bench]))
        })?;
    }
    let mut cluster = cargo(["bench", "--locked", "--package", "e2e", "--bench", "cluster"]);
    step("a cluster", || pass(cluster.env("WINDLASS", binary).env("WINDLASS_TOOLS", tools)))
}
