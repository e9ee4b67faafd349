//! The guard process. It and the keeper restart each other, so that either may die.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command},
    time::Duration,
};

use nix::{sys::signal, unistd::Pid};
use sys::{
    process::PidFile,
    supervision::{SupervisedProcess, exited, stop},
};

use crate::{
    error::Error,
    fleet::{Companion, Fleet},
    process::{END_TIMEOUT, background, record, start_error},
};

const PAUSE: Duration = Duration::from_millis(200);

/// The processes that manage a fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Guard,
    Keeper,
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Self::Guard => "guard",
            Self::Keeper => "keeper",
        }
    }

    fn file(self, fleet: &Fleet) -> PidFile {
        PidFile(fleet.root.join(format!("{}.pid", self.name())))
    }

    pub(crate) fn running(self, fleet: &Fleet) -> Option<i32> {
        self.file(fleet).running()
    }

    pub(crate) fn record(self, fleet: &Fleet, pid: u32) -> Result<(), Error> {
        record(&self.file(fleet), pid)
    }

    fn start(self, fleet: &Fleet) -> Result<Child, Error> {
        let mut command = Command::new(fleet.binary());
        command.args(["internal", "fleet", "--root"]).arg(&fleet.root);
        if self == Self::Guard {
            command.arg("--guard");
        }
        spawn(command, &fleet.root.join(format!("{}.log", self.name())), &self.file(fleet))
    }
}

fn spawn(command: Command, log: &Path, file: &PidFile) -> Result<Child, Error> {
    let mut command = background(command, log)?;
    let child = command.spawn().map_err(start_error(&command))?;
    record(file, child.id())?;
    Ok(child)
}

fn companions(fleet: &Fleet) -> PathBuf {
    fleet.root.join("companions")
}

/// Keeps a companion running. One that runs already is adopted, with the arguments of its start.
pub(crate) async fn keep_companion(fleet: &Fleet, companion: &Companion) {
    let directory = companions(fleet);
    let at = |extension: &str| directory.join(format!("{}.{extension}", companion.name));
    let file = PidFile(at("pid"));
    let mut process = SupervisedProcess::new(&companion.name, file.clone());
    loop {
        let start = || {
            fs::create_dir_all(&directory).map_err(sys::Error::at("creating", &directory))?;
            let mut command = Command::new(fleet.binary());
            command.args(&companion.args);
            spawn(command, &at("log"), &file)
        };
        process.live(start, async |_| (), std::future::pending()).await;
    }
}

/// Returns the marker file of a fleet that is being removed. While it exists, nothing is started again.
fn ending_mark(fleet: &Fleet) -> PathBuf {
    fleet.root.join("ending")
}

/// Starts the guard, which starts the keeper. A running keeper reads the desired state again, or restarts if `renewed`
/// says that its program was replaced.
pub fn start(fleet: &Fleet, renewed: bool) -> Result<(), Error> {
    match fs::remove_file(ending_mark(fleet)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(sys::Error::at("removing", ending_mark(fleet))(error).into());
        }
        _ => {}
    }
    match Role::Keeper.running(fleet) {
        Some(pid) if renewed => sys::process::terminate(pid),
        Some(pid) => drop(signal::kill(Pid::from_raw(pid), signal::Signal::SIGHUP)),
        None => {}
    }
    match Role::Guard.running(fleet) {
        Some(_) => Ok(()),
        None => Role::Guard.start(fleet).map(drop),
    }
}

/// Runs the guard: keeps the keeper running until shutdown.
pub async fn guard(fleet: Fleet, tasks: &rt::Tasks) -> Result<(), Error> {
    let own = std::process::id();
    // If two guards start at once, the one in the PID file stays.
    if Role::Guard.running(&fleet).is_some_and(|pid| pid != own.cast_signed()) {
        return Ok(());
    }
    Role::Guard.record(&fleet, own)?;
    let mut process = SupervisedProcess::new(Role::Keeper.name(), Role::Keeper.file(&fleet));
    let keep = async {
        while !ending_mark(&fleet).exists() {
            process.live(|| Role::Keeper.start(&fleet), async |_| (), std::future::pending()).await;
        }
    };
    tasks.shutdown().unless_stopping(keep).await;
    Ok(())
}

/// Restarts the guard when it has ended. Runs in the keeper.
pub(crate) async fn watch_guard(fleet: Fleet) {
    let mut started: Option<Child> = None;
    loop {
        match Role::Guard.running(&fleet) {
            Some(pid) => {
                exited(pid).await;
                started.take().map(|mut child| child.wait());
            }
            None if ending_mark(&fleet).exists() => {}
            None => match Role::Guard.start(&fleet) {
                Ok(child) => started = Some(child),
                Err(error) => tracing::error!(%error, "cannot start the guard"),
            },
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Ends the guard, the keeper and the companions for good.
pub(crate) async fn stop_all(fleet: &Fleet) -> Result<(), Error> {
    let path = ending_mark(fleet);
    fs::write(&path, "").map_err(sys::Error::at("writing", &path))?;
    let files = [Role::Guard, Role::Keeper].map(|role| role.file(fleet));
    // Without a keeper, nothing restarts a companion.
    let entries = fs::read_dir(companions(fleet)).into_iter().flatten().flatten();
    let entries = entries.map(|entry| entry.path());
    let pids = entries.filter(|path| path.extension().is_some_and(|e| e == "pid")).map(PidFile);
    for file in files.into_iter().chain(pids) {
        if let Some(pid) = file.running() {
            stop(pid, END_TIMEOUT).await;
        }
    }
    Ok(())
}
