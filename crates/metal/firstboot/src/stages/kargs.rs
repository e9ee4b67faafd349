//! The kargs stage: kernel arguments of the running kernel and of later boots.

use ignition::spec::KernelArguments;

use crate::{cmdline, context::Context, error::Error};

/// The variable with a program that changes the arguments of later boots and reboots if necessary.
const HELPER: &str = "IGNITION_KARGS_CMD";

pub(super) fn run(context: &Context, arguments: &KernelArguments) -> Result<(), Error> {
    if arguments == &KernelArguments::default() {
        return Ok(());
    }
    let Ok(helper) = std::env::var(HELPER) else {
        // An installation adds the arguments to its boot entry. A machine that runs from memory gets them from its
        // server.
        if let Some(line) = ignition::kargs::apply(&cmdline::read()?, arguments) {
            tracing::warn!(wanted = line, "the running kernel's arguments differ from the config");
        }
        return Ok(());
    };
    let mut command = vec![helper.as_str()];
    for (flag, list) in [
        ("--should-exist", &arguments.should_exist),
        ("--should-not-exist", &arguments.should_not_exist),
    ] {
        command.extend(list.iter().flat_map(|argument| [flag, argument.as_str()]));
    }
    context.programs.must(&command)?;
    Ok(())
}
