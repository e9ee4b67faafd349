//! Clusters of `windlass up`.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::{Child, Command},
    sync::atomic::{AtomicBool, Ordering},
};

use parking_lot::Mutex;

use crate::{
    diagnostics,
    namespace::Namespace,
    process::{Output, run},
    procfs,
    programs::{binary, tool},
    teardown,
};

/// A cluster of `windlass up` in a network namespace of its own. Dropping it takes the cluster down.
pub struct Cluster {
    /// The network namespace in which the cluster's processes run.
    pub namespace: Namespace,
    /// The unique name that is passed to `windlass up --name`.
    pub name: String,
    /// The directory of the cluster's root, the kubeconfig and the test's files.
    pub directory: PathBuf,
    teardown: Mutex<Child>,
    /// `true` once the diagnostics of a failed test have been printed. Later ones would only show the removal.
    diagnosed: AtomicBool,
}

impl Cluster {
    /// Creates the directory, the teardown process and the network namespace. It does not start the cluster.
    pub fn new(name: &str) -> Self {
        let unique = format!("e2e-{}-{name}", std::process::id());
        teardown::sweep();
        // Keep the path short: the path of a Unix socket has at most 107 bytes.
        let directory = std::env::temp_dir().join(format!("windlass-{unique}"));
        fs::create_dir_all(&directory)
            .unwrap_or_else(|e| panic!("creating {}: {e}", directory.display()));
        let teardown = Mutex::new(teardown::start(&directory));
        let namespace = Namespace::create(&format!("windlass-{unique}"));
        Self { namespace, name: unique, directory, teardown, diagnosed: AtomicBool::new(false) }
    }

    /// Returns the directory of the cluster's files.
    pub fn root(&self) -> PathBuf {
        self.directory.join("root")
    }

    /// Returns the path of the administrator's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.directory.join("kubeconfig")
    }

    /// Runs a command of windlass on this cluster.
    #[track_caller]
    pub fn windlass(&self, args: &[&str]) -> Output {
        self.windlass_of(&binary(), args)
    }

    /// Runs a command of another build of windlass on this cluster.
    #[track_caller]
    pub fn windlass_of(&self, binary: &Path, args: &[&str]) -> Output {
        // Insert our flags after the first word: behind a `--` they would belong to another program.
        let (first, rest) = args.split_at(1);
        let mut command = self.namespace.command(&binary.display().to_string(), first);
        command.arg("--name").arg(&self.name).arg("--root").arg(self.root()).args(rest);
        run(command, b"")
    }

    /// Runs `up`. The caller checks the result.
    #[track_caller]
    pub fn up(&self) -> Output {
        self.up_with(&[])
    }

    /// Runs `up` with more flags.
    #[track_caller]
    pub fn up_with(&self, more: &[&str]) -> Output {
        let kubeconfig = self.kubeconfig().display().to_string();
        self.windlass(&[&["up", "--kubeconfig", &kubeconfig], more].concat())
    }

    /// Runs `up` with the programs of a directory, such as another containerd, instead of the machine's.
    #[track_caller]
    pub fn up_with_programs(&self, directory: &Path) -> Output {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let paths = [directory.to_owned()].into_iter().chain(std::env::split_paths(&path));
        let path = std::env::join_paths(paths)
            .unwrap_or_else(|e| panic!("adding {} to PATH: {e}", directory.display()));
        let mut up = self.namespace.command(&binary().display().to_string(), &["up"]);
        up.arg("--name").arg(&self.name).arg("--root").arg(self.root()).env("PATH", path);
        run(up.arg("--kubeconfig").arg(self.kubeconfig()), b"")
    }

    /// Runs `down` with more flags.
    #[track_caller]
    pub fn down(&self, more: &[&str]) -> Output {
        let kubeconfig = self.kubeconfig().display().to_string();
        self.windlass(&[&["down", "--kubeconfig", &kubeconfig], more].concat())
    }

    /// Runs a program on the cluster's network.
    #[track_caller]
    pub fn run(&self, program: &str, args: &[&str]) -> Output {
        run(self.namespace.command(program, args), b"")
    }

    /// Returns the pid of a cluster process by its role: `supervisor`, `containerd`, `control-plane` or `agent`.
    #[track_caller]
    pub fn pid(&self, role: &str) -> u32 {
        self.find_pid(role).unwrap_or_else(|| panic!("no pid of {role} in {:?}", self.root()))
    }

    /// Returns the pid of a cluster process by its role, or `None` while the process is restarted.
    pub fn find_pid(&self, role: &str) -> Option<u32> {
        let file = self.root().join("run").join(format!("{role}.pid"));
        fs::read_to_string(file).ok()?.split_whitespace().next()?.parse().ok()
    }

    /// Returns the pids of a container. `container` is the `containerID` of a Pod's status.
    pub fn pids_of(&self, container: &str) -> Vec<u32> {
        let id = container.rsplit('/').next().unwrap_or(container);
        let inside = |pid: &u32| procfs::read(*pid, "cgroup").contains(id);
        processes(self).into_iter().map(|(pid, _)| pid).filter(inside).collect()
    }

    /// Kills one of the cluster's processes with SIGKILL, as the kernel does when memory runs out.
    #[track_caller]
    pub fn kill(&self, role: &str) {
        self.signal("KILL", self.pid(role));
    }

    /// Sends a signal to a process of the cluster. `signal` is its name without `SIG`.
    #[track_caller]
    pub fn signal(&self, signal: &str, pid: u32) {
        self.run("kill", &["-s", signal, &pid.to_string()]).ok();
    }

    /// Returns a command whose KUBECONFIG is the cluster administrator's.
    pub fn command(&self, program: &str, args: &[&str]) -> Command {
        let mut command = self.namespace.command(&tool(program), args);
        // Keep kubectl's discovery cache in the cluster's directory, not in the user's home.
        command
            .env("KUBECONFIG", self.kubeconfig())
            .env("HOME", &self.directory)
            .env_remove("WINDLASS");
        command
    }

    /// Applies manifests in the namespaces that they name, with further flags of `kubectl apply`.
    #[track_caller]
    pub fn apply(&self, manifest: &str, flags: &[&str]) {
        let words = [&["apply", "-f", "-"], flags].concat();
        run(self.command("kubectl", &words), manifest.as_bytes()).ok();
    }

    /// Runs kubectl as the cluster's administrator.
    #[track_caller]
    pub fn kubectl(&self, args: &[&str]) -> Output {
        run(self.command("kubectl", args), b"")
    }
}

impl Cluster {
    /// Prints the cluster's logs, Events and timeline, once.
    pub(crate) fn diagnose(&self) {
        if !self.diagnosed.swap(true, Ordering::SeqCst) {
            self.print_diagnostics();
        }
    }

    /// Prints the cluster's logs, Events and timeline.
    pub(crate) fn print_diagnostics(&self) {
        let events = ["get", "events", "-A", "--sort-by=.lastTimestamp", "--request-timeout=5s"];
        diagnostics::print_output("Events", self.command("kubectl", &events));
        let mut timeline = self.namespace.command(&binary().display().to_string(), &["timeline"]);
        timeline.arg("--name").arg(&self.name).arg("--root").arg(self.root());
        diagnostics::print_output("timeline", timeline);
        diagnostics::print_logs(&self.directory);
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.diagnose();
        }
        let mut process = self.teardown.lock();
        drop(process.stdin.take());
        let _ = process.wait();
    }
}

/// Returns the pids and command lines of the cluster's processes. They are found by the cluster's directory in the
/// command line, by the network namespace, or by the cgroup.
pub fn processes(cluster: &Cluster) -> Vec<(u32, String)> {
    let directory = cluster.directory.display().to_string();
    let namespace = fs::metadata(cluster.namespace.path()).map(|m| m.ino()).ok();
    let own = |pid: u32| {
        let inside = fs::metadata(format!("/proc/{pid}/ns/net")).map(|m| m.ino()).ok();
        let line = procfs::read(pid, "cmdline").replace('\0', " ");
        // The teardown process belongs to the test program.
        let is_teardown = line.starts_with("sh -c") && line.contains("trap '' INT");
        let ours = line.contains(&directory)
            || procfs::read(pid, "cgroup").contains(&cluster.name)
            || (namespace.is_some() && inside == namespace);
        // A zombie has no command line; skip it.
        (ours && !is_teardown && !line.is_empty()).then_some((pid, line))
    };
    procfs::pids().filter_map(own).collect()
}
