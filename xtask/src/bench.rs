//! `cargo xtask bench`: the benchmarks that the crates have.

use crate::run::{cargo, pass, step};

/// Crates with a benchmark, and its name.
const BENCHES: &[(&str, &str)] = &[("store", "store"), ("sched-core", "schedule")];

pub(crate) fn run(args: &[String]) -> Result<(), String> {
    for (package, bench) in BENCHES {
        step(&format!("{package}: {bench}"), || {
            pass(
                cargo(["bench", "--locked", "--package", package, "--bench", bench, "--"])
                    .args(args),
            )
        })?;
    }
    Ok(())
}
