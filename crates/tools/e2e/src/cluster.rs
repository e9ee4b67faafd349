//! Clusters that tests share or have for themselves.

use std::{
    path::{Path, PathBuf},
    process::{Child, Command},
    sync::{
        Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicBool, Ordering},
    },
};

use crate::{
    Session, diagnostics, machine,
    namespace::Namespace,
    process::{Ran, run},
    taker,
};

/// Every test reads; a test that needs the whole machine writes.
static MACHINE: RwLock<()> = RwLock::new(());
/// The cluster of tests that run side by side.
static SHARED: Place = Place::new("shared");
/// The cluster of tests that disturb each other, one of which runs at a time.
static DISTURBED: Place = Place::new("disturbed");
static DISTURBED_TURN: Mutex<()> = Mutex::new(());

/// A cluster that is started by the first test that needs it.
struct Place {
    name: &'static str,
    cluster: OnceLock<Cluster>,
    /// `true` once a test has tried to start the cluster. After a failure no other test tries again.
    tried: Mutex<bool>,
}

/// A cluster by `windlass up` in a network namespace of its own, which is taken away with this.
pub struct Cluster {
    pub namespace: Namespace,
    pub name: String,
    /// Holds the root, the kubeconfig and whatever the test leaves.
    pub directory: PathBuf,
    taker: Mutex<Child>,
    /// `true` once the diagnostics of a failed test have been printed; later ones would only show the removal.
    diagnosed: AtomicBool,
}

/// Returns a session in a new namespace of the cluster that most tests use.
pub fn shared(test: &str) -> Session<'static> {
    let turn = Turn { machine: beside_others(), alone: None };
    Session::create(SHARED.cluster(), test, turn)
}

/// Returns a session on a cluster that no other test uses meanwhile, for a test that disturbs others. Such a
/// test restarts the kubelet or creates a Node that is not Ready.
pub fn shared_alone(test: &str) -> Session<'static> {
    let machine = beside_others();
    let alone = DISTURBED_TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let turn = Turn { machine, alone: Some(alone) };
    Session::create(DISTURBED.cluster(), test, turn)
}

impl Place {
    const fn new(name: &'static str) -> Self {
        Self { name, cluster: OnceLock::new(), tried: Mutex::new(false) }
    }

    /// Returns the cluster, and starts it first if no test has done so.
    fn cluster(&self) -> &Cluster {
        let mut tried = self.tried.lock().unwrap_or_else(PoisonError::into_inner);
        match (self.cluster.get(), *tried) {
            (Some(cluster), _) => cluster,
            (None, true) => panic!("the {} cluster did not come up", self.name),
            (None, false) => {
                *tried = true;
                let cluster = Cluster::new(self.name);
                cluster.up().ok();
                cluster.build_images();
                self.cluster.get_or_init(|| cluster)
            }
        }
    }
}

/// Waits until no test needs the whole machine. A test with a cluster or machines of its own holds the guard while it
/// runs.
pub fn beside_others() -> RwLockReadGuard<'static, ()> {
    MACHINE.read().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until no other test runs. A test that needs all of the machine's processors or memory holds the guard while it
/// runs.
pub fn alone() -> RwLockWriteGuard<'static, ()> {
    MACHINE.write().unwrap_or_else(PoisonError::into_inner)
}

impl Cluster {
    /// A place for a cluster; nothing is started.
    pub fn new(name: &str) -> Self {
        let unique = format!("e2e-{}-{name}", std::process::id());
        taker::sweep();
        // Short, because a socket's path may have no more than 107 bytes.
        let directory = std::env::temp_dir().join(format!("windlass-{unique}"));
        std::fs::create_dir_all(&directory)
            .unwrap_or_else(|e| panic!("creating {}: {e}", directory.display()));
        let taker = Mutex::new(taker::start(&directory));
        let namespace = Namespace::create(&format!("windlass-{unique}"));
        Self { namespace, name: unique, directory, taker, diagnosed: AtomicBool::new(false) }
    }

    /// The directory of the cluster's files.
    pub fn root(&self) -> PathBuf {
        self.directory.join("root")
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.directory.join("kubeconfig")
    }

    /// Runs a command of windlass on this cluster.
    #[track_caller]
    pub fn windlass(&self, args: &[&str]) -> Ran {
        // After `--` they would be another program's.
        let (first, rest) = args.split_at(1);
        let mut command = self.namespace.command(&binary().display().to_string(), first);
        command.arg("--name").arg(&self.name).arg("--root").arg(self.root()).args(rest);
        run(command, b"")
    }

    /// Runs `up`; the caller looks at what came of it.
    #[track_caller]
    pub fn up(&self) -> Ran {
        self.up_with(&[])
    }

    /// Runs `up` with more flags.
    #[track_caller]
    pub fn up_with(&self, more: &[&str]) -> Ran {
        let kubeconfig = self.kubeconfig().display().to_string();
        self.windlass(&[&["up", "--kubeconfig", &kubeconfig], more].concat())
    }

    /// Runs `down` with more flags.
    #[track_caller]
    pub fn down(&self, more: &[&str]) -> Ran {
        let kubeconfig = self.kubeconfig().display().to_string();
        self.windlass(&[&["down", "--kubeconfig", &kubeconfig], more].concat())
    }

    /// Runs a program on the cluster's network.
    #[track_caller]
    pub fn run(&self, program: &str, args: &[&str]) -> Ran {
        run(self.namespace.command(program, args), b"")
    }

    /// The pid of one of the cluster's own processes.
    #[track_caller]
    pub fn pid(&self, role: &str) -> u32 {
        let file = self.root().join("run").join(format!("{role}.pid"));
        let text = std::fs::read_to_string(&file)
            .unwrap_or_else(|e| panic!("reading {}: {e}", file.display()));
        let pid = text.split_whitespace().next().and_then(|pid| pid.parse().ok());
        pid.unwrap_or_else(|| panic!("no pid in {}: {text:?}", file.display()))
    }

    /// The processes of a container, by what a Pod's status calls it.
    pub fn pids_of(&self, container: &str) -> Vec<u32> {
        let id = container.rsplit('/').next().unwrap_or(container);
        let inside = |pid: &u32| machine::about(*pid, "cgroup").contains(id);
        machine::processes(self).into_iter().map(|(pid, _)| pid).filter(inside).collect()
    }

    /// Kills one of the cluster's processes as the kernel would when memory runs out.
    #[track_caller]
    pub fn kill(&self, role: &str) {
        self.signal("KILL", self.pid(role));
    }

    /// Sends a signal, by its name without `SIG`, to a process of the cluster's.
    #[track_caller]
    pub fn signal(&self, signal: &str, pid: u32) {
        self.run("kill", &["-s", signal, &pid.to_string()]).ok();
    }

    /// A program that talks to the cluster as its administrator.
    pub fn command(&self, program: &str, args: &[&str]) -> Command {
        let mut command = self.namespace.command(&tool(program), args);
        // Caches of discovery are the cluster's, not the user's.
        command
            .env("KUBECONFIG", self.kubeconfig())
            .env("HOME", &self.directory)
            .env_remove("WINDLASS");
        command
    }

    /// Runs kubectl as the cluster's administrator.
    #[track_caller]
    pub fn kubectl(&self, args: &[&str]) -> Ran {
        run(self.command("kubectl", args), b"")
    }

    /// Builds the application that tests deploy, in two versions: a web server whose page has its version and its Pod's
    /// name. Its shell ends on SIGTERM, which httpd as the first process ignores for all of its grace period.
    #[track_caller]
    pub fn build_images(&self) {
        for version in ["1", "2"] {
            let script = format!(
                "mkdir -p /www; echo \"version {version} on $(hostname)\" >/www/index.html; trap exit TERM; \
                 httpd -f -v -p 8080 -h /www & wait"
            );
            self.build_image(&format!("app:{version}"), &["sh", "-c", &script]);
        }
        self.build_image("box:1", &["sh", "-c", "trap exit TERM; while :; do sleep 1; done"]);
    }

    /// An image of busybox, under the names of the applets that tests use.
    #[track_caller]
    pub fn build_image(&self, name: &str, entrypoint: &[&str]) {
        let applets = [
            "sh", "httpd", "wget", "nslookup", "tar", "cat", "echo", "sleep", "mkdir", "ls",
            "hostname", "id", "env", "test", "true", "false", "touch", "rm", "nc", "stat", "ps",
            "seq", "date", "mount", "ip", "head", "wc", "sort", "grep", "dd",
        ];
        let links = applets.map(|applet| format!("/bin/{applet}")).join(",");
        let busybox = busybox();
        let place = [
            "images",
            "build",
            name,
            "--binary",
            &busybox,
            "--path",
            "/bin/busybox",
            "--link",
            &links,
        ];
        let mut command = self.namespace.command(&binary().display().to_string(), &place);
        command
            .arg("--name")
            .arg(&self.name)
            .arg("--root")
            .arg(self.root())
            .arg("--")
            .args(entrypoint);
        run(command, b"").ok();
    }
}

impl Cluster {
    /// Prints the cluster's logs, Events and timeline, once.
    pub(crate) fn diagnose(&self) {
        if !self.diagnosed.swap(true, Ordering::SeqCst) {
            diagnostics::print_cluster(self);
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.diagnose();
        }
        let mut taker = self.taker.lock().unwrap_or_else(PoisonError::into_inner);
        drop(taker.stdin.take());
        let _ = taker.wait();
    }
}

/// The guards that a test on a shared cluster holds while it runs.
#[expect(dead_code, reason = "guards are held and not read")]
pub(crate) struct Turn {
    machine: RwLockReadGuard<'static, ()>,
    alone: Option<MutexGuard<'static, ()>>,
}

/// The binary under test: what `WINDLASS` names, or what cargo built last.
pub fn binary() -> PathBuf {
    let built = || {
        let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../target");
        ["x86_64-unknown-linux-gnu/release/windlass", "debug/windlass"]
            .map(|p| target.join(p))
            .into_iter()
            .find(|p| p.is_file())
    };
    let path = std::env::var_os("WINDLASS").map(PathBuf::from).or_else(built);
    path.unwrap_or_else(|| {
        panic!("there is no windlass to test; run the tests by `cargo xtask test`")
    })
}

/// kubectl and helm are those that xtask fetched; other programs are the machine's.
pub(crate) fn tool(program: &str) -> String {
    if !["kubectl", "helm"].contains(&program) {
        return program.to_owned();
    }
    let fetched = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../target/tools");
    let directory = std::env::var_os("WINDLASS_TOOLS").map_or_else(fetched, PathBuf::from);
    let path = directory.join(program);
    assert!(path.is_file(), "there is no {}; run the tests by `cargo xtask test`", path.display());
    path.display().to_string()
}

pub(crate) fn busybox() -> String {
    let known = ["/bin/busybox", "/usr/bin/busybox"];
    let found = known.into_iter().find(|path| Path::new(path).is_file());
    found
        .unwrap_or_else(|| panic!("there is no busybox; run the tests by `cargo xtask test`"))
        .to_owned()
}
