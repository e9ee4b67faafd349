//! Runs the processes that other commands start in the background.

use std::process::ExitCode;

use crate::{
    cli::{Background, Internal},
    man_pages,
    process::{exit_code, fail, run_command, run_component},
};

pub(crate) fn run(command: Internal) -> ExitCode {
    match command {
        Internal::KeepKubelet => run_component("kubelet-supervisor", async move |tasks| {
            bootstrap::service::keep_kubelet(&Default::default(), &tasks).await
        }),
        Internal::Fleet { root, guard: true } => run_component("fleet", async move |tasks| {
            instances::guard(instances::Fleet::at(root), &tasks).await
        }),
        Internal::Fleet { root, guard: false } => {
            run_component("fleet", async move |tasks| kops_local::keep(root, &tasks).await)
        }
        Internal::Store { root } => {
            run_component("store", async move |tasks| kops_local::serve_store(root, &tasks).await)
        }
        // Only single-threaded processes can create namespaces.
        Internal::Hold { root, machine } => {
            match instances::machine::hold(&instances::Fleet::at(root), &machine) {
                Ok(code) => ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX)),
                Err(error) => fail(&error),
            }
        }
        Internal::Machine => {
            run_component("machine", async move |tasks| instances::machine::run(&tasks).await)
        }
        Internal::ManPages { directory } => exit_code(man_pages::write(&directory)),
        Internal::Local(command) => background(command),
    }
}

/// Runs a background process of a cluster, or a command inside a node.
fn background(process: Background) -> ExitCode {
    let name = process.name();
    let cluster = match process.cluster().load() {
        Ok(cluster) => cluster,
        Err(error) => return fail(&error),
    };
    match process {
        // Only single-threaded processes can create and enter namespaces.
        Background::Holder(_) => exit_code(local::hold_node(&cluster)),
        Background::Enter { command, .. } => fail(&local::enter_node(&cluster, &command)),
        Background::Join(_) => run_command("windlass", local::join_node(cluster)),
        Background::Supervisor(_) => {
            if let Err(error) = local::enter_first_node(&cluster) {
                return fail(&error);
            }
            run_component(name, async move |tasks| local::run_supervisor(cluster, &tasks).await)
        }
        Background::ControlPlane(_) => {
            run_component(name, async move |tasks| local::run_control_plane(cluster, &tasks).await)
        }
        Background::Agent(_) => {
            run_component(name, async move |tasks| local::run_agent(cluster, &tasks).await)
        }
        Background::SimulatedNodes(_) => run_component(name, async move |tasks| {
            local::run_simulated_nodes(cluster, &tasks).await
        }),
    }
}
