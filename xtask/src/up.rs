//! `cargo xtask up`: from a bare Debian machine to a cluster.

use crate::{
    build::{self, Profile},
    machine,
    run::{pass, program, step},
    tools,
};

pub(crate) fn run(args: &[String]) -> Result<(), String> {
    step("what the machine needs", || {
        machine::install_to_run()?;
        machine::forward_packets()
    })?;
    let binary = step("build windlass", || build::windlass(Profile::Quick))?;
    step("windlass up", || pass(program(&binary, ["up"]).args(args)))?;
    // A cluster without kubectl is still a cluster, so that its absence is told and not an error.
    let kubectl = tools::kubectl().unwrap_or_else(|error| {
        eprintln!("    kubectl could not be had ({error}); any kubectl from 1.35 to 1.37 will do");
        "kubectl".to_owned()
    });
    println!("The cluster runs. To type next:\n");
    println!("  {kubectl} get nodes -o wide");
    println!("  {kubectl} get pods --all-namespaces");
    println!("  {} status", binary.display());
    println!("  cargo xtask down");
    Ok(())
}
