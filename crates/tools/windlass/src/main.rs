//! The `windlass` binary: parses the command line, sets up logging and the runtime, and calls the crate of the command.
//!
//! It contains no logic of components. Called by a component's name (through a link `kubelet`, `coredns` or a CNI
//! plugin), the binary is that component. Read [`Command`] first; [`run_component`] runs long-lived processes and
//! drains their tasks.

mod address;
mod arguments;
mod butane;
mod cli;
mod components;
mod empty_paths;
mod failure;
mod go_runner;
mod images;
mod internal;
mod leftovers;
mod machines;
mod man_pages;
mod process;
#[cfg(test)]
mod reference;
mod serving_flags;
mod storage;
mod timeline;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};

use self::{
    arguments::{arguments, called_as, is_version_request},
    cli::{Cli, Command, Metal},
    process::{
        block_on, exit_code, fail, log, log_at, run_command, run_component, run_component_at,
    },
};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    process::set_umask(process::command_umask());
    match called_as().as_str() {
        name if name == "windlass-cni" || name == "loopback" => return cni::main(),
        "pause" => return pause(),
        "go-runner" => return go_runner::run(),
        "init" => {
            log("init");
            process::install_tls();
            return firstboot::init::run();
        }
        _ => {}
    }
    // A Pod's first process counts against the Pod's memory limit, and parsing flags takes several megabytes.
    if std::env::args_os().nth(1).is_some_and(|command| command == "pause") {
        return pause();
    }
    end_with_the_reader();
    let arguments = arguments();
    if is_version_request(&arguments) {
        println!("Kubernetes {}", version::BUILD_VERSION);
        return ExitCode::SUCCESS;
    }
    let mut command = bootstrap::cmd::shape(Cli::command());
    let mut matches = command.try_get_matches_from_mut(arguments).unwrap_or_else(|e| e.exit());
    if let Err(error) = bootstrap::cmd::check(&command, &matches) {
        return fail(&error);
    }
    note_flags(&command, &matches);
    match Cli::from_arg_matches_mut(&mut matches) {
        Ok(cli) => run(cli.command),
        Err(error) => error.exit(),
    }
}

/// The components that show their flags at `/flagz`.
const COMPONENTS: [&str; 5] =
    ["kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet"];

/// Keeps the flags of a component and their values, with defaults, for `/flagz`.
fn note_flags(command: &clap::Command, matches: &clap::ArgMatches) {
    let Some((name, given)) = matches.subcommand().filter(|(name, _)| COMPONENTS.contains(name))
    else {
        return;
    };
    let of_component = command.find_subcommand(name).into_iter();
    let arguments = of_component.flat_map(|component| component.get_arguments());
    let mut flags: Vec<(String, String)> = arguments
        .filter_map(|argument| {
            let values = given.try_get_raw(argument.get_id().as_str()).ok().flatten()?;
            let values: Vec<_> = values.map(|value| value.to_string_lossy()).collect();
            Some((argument.get_long()?.to_owned(), values.join(",")))
        })
        .collect();
    flags.sort();
    diagnostics::set_flags(flags);
}

/// Ends a command silently when the reader of its output is gone, as in `windlass metal status | head -1`. Other
/// programs are killed by SIGPIPE, but here a peer that closes a connection would raise it too. The panic of `println!`
/// is therefore the only sign. All other panics go to the log if there is one.
fn end_with_the_reader() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let message = panic.payload_as_str().unwrap_or_default();
        if message.starts_with("failed printing to stdout: Broken pipe") {
            // The exit code that a shell reports for SIGPIPE.
            std::process::exit(128 + 13);
        }
        if !rt::note_panic(panic) {
            usual(panic);
        }
    }));
}

/// Runs a Pod's first process. With `-v`, as in the Job of an upgrade's health check, it prints its version and ends.
fn pause() -> ExitCode {
    if std::env::args_os().any(|argument| argument == "-v") {
        println!("pause {}", version::BUILD_VERSION);
        return ExitCode::SUCCESS;
    }
    exit_code(sys::pause())
}

/// Calls the crate of a command.
fn run(command: Command) -> ExitCode {
    match command {
        Command::Pause => pause(),
        Command::Cni => cni::main(),
        Command::Timeline(args) => exit_code(timeline::run(&args)),
        Command::Dashboard(args) => {
            run_component("dashboard", async move |tasks| dashboard::run(args, &tasks).await)
        }
        Command::Up(args) => run_command("windlass", local::up(args)),
        Command::Down(args) => run_command("windlass", local::down(args)),
        Command::Kubectl(args) => exit_code(local::kubectl(args)),
        Command::Logs(args) => run_command("windlass", local::logs(args)),
        Command::SupportBundle(args) => run_command("windlass", local::support_bundle(args)),
        Command::ShellCompletion { shell } => print_completion(shell),
        Command::Node(args) => run_command("windlass", local::node(args)),
        Command::SecretsEncrypt(args) => run_command("windlass", local::secrets_encrypt(args)),
        Command::Status(args) => status(args),
        Command::Images(command) => exit_code(images::run(command)),
        Command::Bootstrap(command) => run_bootstrap(command),
        Command::Metal(command) => run_metal(command),
        Command::Ignition(args) => run_ignition(&args),
        Command::Butane(args) => exit_code(butane::run(&args)),
        Command::Coredns(args) => {
            run_component("coredns", |tasks| components::coredns(args, tasks))
        }
        Command::Kops(args) => run_kops(&args),
        Command::Nodeup(args) => {
            run_component("nodeup", async move |_| kops_node::nodeup::run(&args).await)
        }
        Command::KopsController(args) => run_component("kops-controller", async move |tasks| {
            kops_node::controller::run(&args, &tasks).await
        }),
        Command::DnsController(args) => run_component("dns-controller", async move |tasks| {
            kops_node::dns_controller::run(&args, &tasks).await
        }),
        Command::Protokube(args) => run_component("protokube", async move |tasks| {
            kops_node::protokube::run(&args, &tasks).await
        }),
        Command::EtcdManagerCtl(args) => {
            exit_code(kops_node::manager_ctl::run(&args, rt::now(), &mut std::io::stdout()))
        }
        Command::Channels(command) => run_component("channels", async move |tasks| {
            kops_node::channels::run(&command, &tasks).await
        }),
        Command::Balancer(args) => {
            run_component("balancer", async move |tasks| balancer::run(args, &tasks).await)
        }
        Command::VirtualAddress(args) => {
            run_component("virtual-address", async move |tasks| vip::run(args, &tasks).await)
        }
        Command::Store(args) => run_command("store", storage::store(args)),
        Command::Snapshot(args) => run_command("store", storage::snapshot(args)),
        Command::Storage(local::StorageCommand::Print) => {
            run_command("windlass", local::print_storage())
        }
        Command::Network(command) => run_network(command),
        Command::LoadBalancer(command) => run_load_balancer(command),
        Command::Internal(command) => internal::run(command),
        Command::Kubelet(args) => {
            run_component("kubelet", |tasks| components::kubelet(args, tasks))
        }
        Command::KubeProxy(args) => {
            run_component("kube-proxy", |tasks| components::kube_proxy(args, tasks))
        }
        Command::KubeScheduler(args) => run_component("kube-scheduler", async move |tasks| {
            components::kube_scheduler(&args, tasks).await
        }),
        Command::KubeApiserver(args) => run_component("kube-apiserver", async move |tasks| {
            components::kube_apiserver(&args, tasks).await
        }),
        Command::KubeControllerManager(args) => {
            run_component("kube-controller-manager", async move |tasks| {
                components::kube_controller_manager(&args, tasks).await
            })
        }
    }
}

fn run_ignition(args: &firstboot::cmd::Args) -> ExitCode {
    log("ignition");
    process::install_tls();
    firstboot::cmd::run(args)
}

fn print_completion(shell: clap_complete::Shell) -> ExitCode {
    let mut command = bootstrap::cmd::shape(Cli::command());
    clap_complete::generate(shell, &mut command, "windlass", &mut std::io::stdout());
    ExitCode::SUCCESS
}

fn run_network(command: local::NetworkCommand) -> ExitCode {
    match command {
        local::NetworkCommand::Print(args) => run_command("windlass", local::print_network(args)),
        local::NetworkCommand::Run(args) => {
            run_component("network", async move |tasks| local::run_network(args, &tasks).await)
        }
    }
}

fn run_load_balancer(command: local::LoadBalancerCommand) -> ExitCode {
    match command {
        local::LoadBalancerCommand::Print(args) => {
            run_command("windlass", local::print_load_balancer(args))
        }
        local::LoadBalancerCommand::Run(args) => {
            run_component("load-balancer", async move |tasks| {
                local::run_load_balancer(args, &tasks).await
            })
        }
    }
}

fn status(args: local::StatusArgs) -> ExitCode {
    match block_on(local::status(args)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => fail(&error),
    }
}

fn run_bootstrap(command: bootstrap::cmd::Command) -> ExitCode {
    log_at("bootstrap", command.log_filter());
    let program = match called_as().as_str() {
        "kubeadm" => bootstrap::cmd::Program::Kubeadm,
        _ => bootstrap::cmd::Program::Windlass,
    };
    exit_code(block_on(bootstrap::cmd::run(command, program, HOOKS)))
}

fn run_metal(command: Metal) -> ExitCode {
    match command {
        Metal::Image(args) => {
            log("metal");
            exit_code(nodeimage::build(&args))
        }
        Metal::Machines(command) => {
            run_component_at("metal", command.log_level(), |tasks| machines::run(command, tasks))
        }
    }
}

/// The operations of other components that kubeadm's commands need.
const HOOKS: bootstrap::cmd::ComponentHooks = bootstrap::cmd::ComponentHooks {
    clean_up: leftovers::remove,
    take_address: address::claim,
    review_corefile,
};

/// Migrates a Corefile, and checks the result with the parser of the DNS server.
fn review_corefile(text: &str) -> bootstrap::upgrade::CorefileReview {
    let dns::Migration { text: migrated, notices } = dns::migrate_corefile(text);
    let errors = dns::check_corefile(&migrated).iter().map(ToString::to_string).collect();
    bootstrap::upgrade::CorefileReview { migrated, notices, errors }
}

/// Runs a kOps command.
fn run_kops(args: &kops::Args) -> ExitCode {
    let environment = |name: &str| std::env::var(name).ok();
    let mut out = std::io::stdout();
    let mut around =
        kops::CommandEnvironment { now: rt::now(), out: &mut out, environment: &environment };
    let code = std::cell::Cell::new(1);
    let work = async {
        let result = kops::run(args, &mut around).await;
        result.inspect_err(|error| code.set(error.exit_code()))
    };
    match block_on(work) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            fail(&error);
            ExitCode::from(code.get())
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn builds_valid_command_line() {
        super::Cli::command().debug_assert();
    }
}
