//! The background processes, which outlive the command that starts them: their commands, PID files and logs.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use instances::space::{self, Processes};
use nix::{sys::signal::Signal, unistd::Pid};
use sys::{
    process::{self, PidFile},
    supervision,
};
use tokio::time::{sleep, timeout};

use crate::{
    cluster::{Cluster, Settings},
    config::ClusterConfig,
    error::Error,
    paths,
};

/// A background process of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Supervisor,
    /// Holds the namespaces of a further node.
    Holder,
    Containerd,
    ControlPlane,
    /// Connects the node to the API servers if there are several control planes.
    Balancer,
    Agent,
    /// Runs the kubelets of all simulated nodes.
    SimulatedNodes,
}

/// The time that killed processes have to end. On a busy machine they take a second.
const SETTLED: Duration = Duration::from_secs(10);

/// Waits until the processes of a killed cluster have ended, because they hold their ports until then. One that was not
/// killed starts another supervisor, which also ends the wait.
pub(crate) async fn settle(cluster: &Cluster) {
    let revived = async {
        while Role::Supervisor.running(cluster).is_none() {
            sleep(Duration::from_millis(20)).await;
        }
    };
    let ended = async {
        for pid in [Role::ControlPlane, Role::Agent].iter().filter_map(|r| r.running(cluster)) {
            supervision::exited(pid).await;
        }
    };
    let settled = async {
        tokio::select! { () = revived => {}, () = ended => {} }
    };
    // The check of the machine names what holds a port for longer.
    let _ = timeout(SETTLED, settled).await;
}

impl Cluster {
    /// Returns the processes that the supervisor keeps running for this node, in the order of their start.
    pub(crate) fn roles(&self) -> &'static [Role] {
        let simulates = self.settings.simulated_nodes > 0;
        match (self.is_member(), self.is_replicated()) {
            (false, false) if simulates => {
                &[Role::Containerd, Role::ControlPlane, Role::Agent, Role::SimulatedNodes]
            }
            (false, true) if simulates => {
                &[Role::Containerd, Role::Balancer, Role::Agent, Role::SimulatedNodes]
            }
            (false, false) => &[Role::Containerd, Role::ControlPlane, Role::Agent],
            (false, true) => &[Role::Containerd, Role::Balancer, Role::Agent],
            (true, false) => &[Role::Holder, Role::Containerd, Role::Agent],
            (true, true) => &[Role::Holder, Role::Containerd, Role::Balancer, Role::Agent],
        }
    }
}

impl Role {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Supervisor => "supervisor",
            Self::Holder => "holder",
            Self::Containerd => "containerd",
            Self::ControlPlane => "control-plane",
            Self::Balancer => "balancer",
            Self::Agent => "agent",
            Self::SimulatedNodes => "simulated-nodes",
        }
    }

    pub(crate) fn pid_file(self, cluster: &Cluster) -> PidFile {
        PidFile(cluster.run().join(format!("{}.pid", self.name())))
    }

    pub(crate) fn log(self, cluster: &Cluster) -> PathBuf {
        cluster.logs().join(format!("{}.log", self.name()))
    }

    fn command(self, cluster: &Cluster) -> Command {
        let mut command = match self {
            Self::Containerd => {
                let mut containerd = Command::new("containerd");
                containerd.arg("--config").arg(cluster.root.join("etc/containerd/config.toml"));
                containerd
            }
            Self::Balancer => cluster.balancer(),
            _ => internal(cluster, self.name()),
        };
        let is_outside = self == Self::Containerd && !paths::are_mounted(cluster);
        if self.needs_holder(cluster) || is_outside {
            let mut enter = internal(cluster, "enter");
            enter.arg("--").arg(command.get_program()).args(command.get_args());
            command = enter;
        }
        command
    }

    /// Returns `true` if the process should run: its inputs exist, and its node is not stopped.
    pub(crate) fn is_wanted(self, cluster: &Cluster) -> bool {
        let layout = cluster.layout();
        let joined = || {
            let identities = ["kubelet.conf", "bootstrap-kubelet.conf"];
            layout.kubelet_config().exists()
                && identities.iter().any(|file| layout.kubeconfig(file).exists())
        };
        let prepared = match self {
            // A further node's containerd waits for its images.
            Self::Containerd => !cluster.is_member() || cluster.containerd_root().exists(),
            Self::Agent => joined() && !cluster.images_missing().exists(),
            _ => true,
        };
        prepared && !cluster.stopped().exists()
    }

    /// Returns `true` for a process that runs in the namespaces of a holder.
    pub(crate) fn needs_holder(self, cluster: &Cluster) -> bool {
        cluster.is_member() && self != Self::Holder
    }

    /// Returns the PID if the process runs.
    pub(crate) fn running(self, cluster: &Cluster) -> Option<i32> {
        self.pid_file(cluster).running()
    }

    /// Writes the PID file. `pid` is the calling process or one of its children.
    pub(crate) fn record(self, cluster: &Cluster, pid: i32) -> Result<(), Error> {
        Ok(self.pid_file(cluster).record(pid)?)
    }

    /// Returns the copy of the settings that were in force when the process was started.
    fn settings_copy(self, cluster: &Cluster) -> PathBuf {
        cluster.run().join(format!("{}.settings.json", self.name()))
    }

    /// Returns the document that the process was started with; `None` if it is unknown.
    pub(crate) fn document(self, cluster: &Cluster) -> Option<ClusterConfig> {
        let text = fs::read(self.settings_copy(cluster)).ok()?;
        Some(serde_json::from_slice::<Settings>(&text).ok()?.config)
    }

    /// Starts the process in a process group of its own, with its output appended to its log.
    pub(crate) fn start(self, cluster: &Cluster) -> Result<Child, Error> {
        let mut command = self.logged_command(cluster)?;
        let program = command.get_program().to_string_lossy().into_owned();
        let mut spawn = || command.spawn();
        let started = match (cluster.is_member(), self) {
            (false, _) => spawn(),
            (true, Self::Holder) => space::among(Processes::New, spawn)?,
            (true, _) => among(cluster, spawn)?,
        };
        let child = started.map_err(|source| Error::Start { program, source })?;
        self.record(cluster, child.id().cast_signed())?;
        Ok(child)
    }

    fn logged_command(self, cluster: &Cluster) -> Result<Command, Error> {
        let path = self.log(cluster);
        let open = || OpenOptions::new().create(true).append(true).open(&path);
        let log = open().map_err(Error::file("opening the log", &path))?;
        let copy = log.try_clone().map_err(Error::file("opening the log", &path))?;
        // The process reads the settings after this copy is made. If it has newer ones, `up` restarts it once more than
        // necessary.
        let _ = fs::copy(cluster.root.join("cluster.json"), self.settings_copy(cluster));
        let mut command = self.command(cluster);
        command.stdin(Stdio::null()).stdout(log).stderr(copy).process_group(0);
        Ok(command)
    }

    /// Returns the last lines of the process's log.
    pub(crate) fn last_words(self, cluster: &Cluster) -> String {
        process::tail(&self.log(cluster), 12).unwrap_or_default()
    }
}

/// Starts the supervisor, unless another one runs or is being started: returns `None` then.
pub(crate) fn start_supervisor(cluster: &Cluster) -> Result<Option<Child>, Error> {
    let path = cluster.run().join("supervisor.lock");
    let failed = Error::file("locking", &path);
    let Some(lock) = lock(&path).map_err(failed)? else { return Ok(None) };
    start_with_lock(lock, Role::Supervisor.logged_command(cluster)?, |pid| {
        Role::Supervisor.record(cluster, pid)
    })
    .map(Some)
}

/// Returns `None` if another process has locked the file.
fn lock(path: &Path) -> io::Result<Option<File>> {
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Starts a process that holds a lock as its standard input, so that the lock ends with the process. The caller keeps
/// the lock until `record` has written the PID file.
fn start_with_lock(
    lock: File,
    mut command: Command,
    record: impl FnOnce(i32) -> Result<(), Error>,
) -> Result<Child, Error> {
    let program = command.get_program().to_string_lossy().into_owned();
    let started = command.stdin(Stdio::from(lock)).spawn();
    let child = started.map_err(|source| Error::Start { program, source })?;
    record(child.id().cast_signed())?;
    Ok(child)
}

/// Returns one of the binary's internal commands, for a node.
pub(crate) fn internal(cluster: &Cluster, name: &str) -> Command {
    let mut command = Command::new(cluster.binary());
    command.arg("internal").arg(name);
    command.arg("--name").arg(&cluster.name).arg("--root").arg(&cluster.root);
    command
}

/// Returns the process that holds a node's namespaces, once it has created them.
pub(crate) fn holder(node: &Cluster) -> Option<i32> {
    Role::Holder.running(node).filter(|pid| space::is_inside(*pid))
}

/// Calls `start` in a thread whose child processes are in the node's PID namespace.
pub(crate) fn among<T: Send>(node: &Cluster, start: impl FnOnce() -> T + Send) -> Result<T, Error> {
    let holder = holder(node).ok_or_else(|| not_running(node))?;
    Ok(space::among(Processes::Of(holder), start)?)
}

/// Returns the error that a node's namespaces do not exist.
pub(crate) fn not_running(node: &Cluster) -> Error {
    Error::NodeNotRunning(node.settings.node_name.clone())
}

/// Makes the supervisor check which processes should run. One that is just starting does so anyway.
pub(crate) fn notify_supervisor(cluster: &Cluster) {
    if let Some(pid) = Role::Supervisor.running(cluster) {
        let _ = nix::sys::signal::kill(Pid::from_raw(pid), Signal::SIGHUP);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{cluster::example, config::tests::read};

    #[test]
    fn starts_one_supervisor_although_several_are_started_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let (path, file) = (dir.path().join("lock"), PidFile(dir.path().join("a.pid")));
        let start = || {
            let mut command = Command::new("sleep");
            command.arg("600");
            let record = |pid| Ok(file.record(pid)?);
            lock(&path).unwrap().map(|lock| start_with_lock(lock, command, record).unwrap())
        };
        for _ in 0..2 {
            let started: Vec<Child> = std::thread::scope(|scope| {
                let starts: Vec<_> = (0..8).map(|_| scope.spawn(start)).collect();
                starts.into_iter().filter_map(|start| start.join().unwrap()).collect()
            });
            let [mut child] = <[Child; 1]>::try_from(started).unwrap();
            assert_eq!(file.running(), Some(child.id().cast_signed()));
            assert!(start().is_none());
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    #[test]
    fn document_is_that_of_the_start() {
        let dir = tempfile::tempdir().unwrap();
        let mut cluster = example(dir.path());
        for directory in [cluster.run(), cluster.logs()] {
            fs::create_dir_all(directory).unwrap();
        }
        let started = cluster.settings.config.clone();
        cluster.save().unwrap();
        assert_eq!(Role::Agent.document(&cluster), None);
        // The cluster has no binary that could start.
        assert!(matches!(Role::Agent.start(&cluster), Err(Error::Start { .. })));
        cluster.settings.config = read("publish: [\"8080:30080\"]").unwrap();
        cluster.save().unwrap();
        assert_eq!(Role::Agent.document(&cluster), Some(started));
        assert_eq!(Role::ControlPlane.document(&cluster), None);
    }
}
