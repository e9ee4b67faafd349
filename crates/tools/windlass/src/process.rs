//! Sets up the process of a command or component: umask, limits, logging, TLS and the runtime. It drains a component's
//! tasks before the process ends.

use std::{fmt::Display, process::ExitCode, time::Duration};

use crate::failure::Failure;

/// Sets the umask, whatever the process was started with. No mask would make files world-writable, and a strict one
/// would make directories that containers cannot enter.
pub(crate) fn set_umask(mask: nix::sys::stat::Mode) {
    nix::sys::stat::umask(mask);
}

/// Returns the umask of commands that create files for others: machines, images, programs of clusters.
pub(crate) fn command_umask() -> nix::sys::stat::Mode {
    nix::sys::stat::Mode::S_IWGRP | nix::sys::stat::Mode::S_IWOTH
}

/// Returns the umask of components. Files for other users of the machine get their mode set explicitly.
fn component_umask() -> nix::sys::stat::Mode {
    nix::sys::stat::Mode::S_IWGRP | nix::sys::stat::Mode::S_IRWXO
}

/// The components that start programs such as the container runtime and the kubelet, which expect the usual umask.
const STARTERS: &[&str] = &["supervisor", "kubelet-supervisor", "fleet", "machine", "nodeup"];

/// Raises the limit of open files to its maximum, as Go programs do: a cluster's nodes have more connections than the
/// usual 1,024. Processes that start other programs keep the limit, because those would inherit it.
fn allow_files() {
    use nix::sys::resource::{Resource::RLIMIT_NOFILE, getrlimit, setrlimit};
    let raised =
        getrlimit(RLIMIT_NOFILE).and_then(|(_, most)| setrlimit(RLIMIT_NOFILE, most, most));
    if let Err(error) = raised {
        eprintln!("raising the limit of open files failed: {error}; the limit stays unchanged");
    }
}

/// Returns the exit code for the result of a command. An error is printed.
pub(crate) fn exit_code<E: Display>(result: Result<(), E>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

pub(crate) fn fail(error: &dyn Display) -> ExitCode {
    eprintln!("windlass: {error}");
    ExitCode::FAILURE
}

pub(crate) fn log(component: &'static str) {
    log_at(component, "info");
}

/// Logs at the command's own level, unless `WINDLASS_LOG` is set.
pub(crate) fn log_at(component: &'static str, level: &str) {
    let filter = std::env::var("WINDLASS_LOG").unwrap_or_else(|_| level.to_owned());
    if let Err(error) = telemetry::init_logging(component, &filter) {
        eprintln!("windlass: {error}");
    }
}

pub(crate) fn install_tls() {
    // Only the first call has an effect, and all install the same provider.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
}

/// Runs a short-lived command, which logs under a name.
pub(crate) fn run_command<E: Into<Failure>>(
    name: &'static str,
    work: impl Future<Output = Result<(), E>>,
) -> ExitCode {
    log(name);
    exit_code(block_on(work))
}

/// Runs a future to its end on this thread.
pub(crate) fn block_on<T, E: Into<Failure>>(
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, Failure> {
    install_tls();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|e| format!("starting the runtime: {e}"))?.block_on(work).map_err(Into::into)
}

/// Runs a component until it ends or is stopped.
pub(crate) fn run_component<F, E>(name: &'static str, work: impl FnOnce(rt::Tasks) -> F) -> ExitCode
where
    F: Future<Output = Result<(), E>>,
    E: Into<Failure>,
{
    run_component_at(name, "info", work)
}

/// Runs a component that logs at a level of its own.
pub(crate) fn run_component_at<F, E>(
    name: &'static str,
    level: &str,
    work: impl FnOnce(rt::Tasks) -> F,
) -> ExitCode
where
    F: Future<Output = Result<(), E>>,
    E: Into<Failure>,
{
    if !STARTERS.contains(&name) {
        set_umask(component_umask());
        allow_files();
    }
    log_at(name, level);
    install_tls();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&error),
    };
    match runtime.block_on(until_stopped(work)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "stopping");
            ExitCode::FAILURE
        }
    }
}

/// The time that tasks have to end after SIGTERM.
pub(crate) const GRACE: Duration = Duration::from_secs(5);

/// The interval between returns of free memory to the kernel.
const MEMORY_INTERVAL: Duration = Duration::from_secs(5);

/// Returns free memory to the kernel from time to time.
async fn return_free_memory() {
    loop {
        tokio::time::sleep(MEMORY_INTERVAL).await;
        sys::return_free_memory();
    }
}

/// Runs a component until it ends or a signal stops it, and drains its tasks.
async fn until_stopped<F, E>(component: impl FnOnce(rt::Tasks) -> F) -> Result<(), Failure>
where
    F: Future<Output = Result<(), E>>,
    E: Into<Failure>,
{
    use tokio::signal::unix::{SignalKind, signal};
    let tasks = rt::Tasks::new(rt::Shutdown::new());
    let (mut terminate, mut interrupt) =
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let shutdown = tasks.shutdown().clone();
    tasks.spawn_until_shutdown("signals", async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        shutdown.stop();
    });
    tasks.spawn_until_shutdown("memory", return_free_memory());
    let result = component(tasks.clone()).await.map_err(Into::into);
    result.and(drain(&tasks, GRACE).await)
}

/// Stops tasks, which have `grace` to end. The error is the essential task that stopped them.
pub(crate) async fn drain(tasks: &rt::Tasks, grace: Duration) -> Result<(), Failure> {
    let drained = tasks.drain(grace).await;
    if !drained.unfinished.is_empty() {
        tracing::warn!(tasks = ?drained.unfinished, "ended with tasks still running");
    }
    match tasks.failure() {
        Some(failure) => Err(failure.to_string().into()),
        None => Ok(()),
    }
}
