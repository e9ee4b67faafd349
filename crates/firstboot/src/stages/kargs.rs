//! Kernel arguments: the running kernel's, and those of the boots to come.

use ignition::spec::KernelArguments;

use super::Context;
use crate::{Error, init::cmdline};

/// A program that makes the arguments so for the next boots, and boots again if it must.
const HELPER: &str = "IGNITION_KARGS_CMD";

pub(super) fn run(context: &Context, wanted: &KernelArguments) -> Result<(), Error> {
    if wanted == &KernelArguments::default() {
        return Ok(());
    }
    let Ok(helper) = std::env::var(HELPER) else {
        // An installation writes them into its boot entry; a machine that runs from memory has them from its server.
        if let Some(line) = ignition::kargs::changed(&cmdline::read()?, wanted) {
            tracing::warn!(wanted = line, "the running kernel has other arguments");
        }
        return Ok(());
    };
    let mut command = vec![helper.as_str()];
    for (flag, list) in
        [("--should-exist", &wanted.should_exist), ("--should-not-exist", &wanted.should_not_exist)]
    {
        command.extend(list.iter().flat_map(|argument| [flag, argument.as_str()]));
    }
    context.programs.must(&command)?;
    Ok(())
}
