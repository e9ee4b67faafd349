//! `cargo xtask up`: starts a cluster on a bare Debian machine.

use crate::{
    build::{self, Profile},
    error::Result,
    machine,
    run::{pass, program, step},
    tools,
};

pub(crate) fn run(args: &[String]) -> Result<()> {
    step("prepare the machine", || {
        machine::install_to_run()?;
        machine::forward_packets()
    })?;
    let binary = step("build windlass", || build::windlass(Profile::Quick))?;
    step("windlass up", || pass(program(&binary, ["up"]).args(args)))?;
    // A cluster is useful without kubectl, so a missing kubectl is only a warning.
    let kubectl = tools::kubectl().unwrap_or_else(|error| {
        eprintln!("    fetching kubectl failed ({error}); any kubectl from 1.35 to 1.37 works");
        "kubectl".to_owned()
    });
    println!("The cluster is running. Next commands:\n");
    println!("  {kubectl} get nodes -o wide");
    println!("  {kubectl} get pods --all-namespaces");
    println!("  {} status", binary.display());
    println!("  cargo xtask down");
    Ok(())
}
