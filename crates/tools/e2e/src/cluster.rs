//! Clusters of `windlass up`: two that tests share, and new ones for single tests.

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
    process::{Output, run},
    teardown,
};

/// The lock of the machine: every test takes it for reading, a test that needs the whole machine for writing.
static MACHINE: RwLock<()> = RwLock::new(());
/// The cluster of tests that run in parallel.
static SHARED: SharedCluster = SharedCluster::new("shared");
/// The cluster of tests that disturb each other. They run one at a time.
static DISTURBED: SharedCluster = SharedCluster::new("disturbed");
/// The lock that a test on [`DISTURBED`] holds.
static DISTURBED_LOCK: Mutex<()> = Mutex::new(());

/// A cluster that is started by the first test that needs it.
struct SharedCluster {
    name: &'static str,
    cluster: OnceLock<Cluster>,
    /// `true` once a test has tried to start the cluster. After a failure no other test tries again.
    tried: Mutex<bool>,
}

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

/// Returns a session in a new namespace of the cluster that most tests use.
pub fn shared(test: &str) -> Session<'static> {
    let guards = TestGuards { machine: share_machine(), exclusive: None };
    Session::create(SHARED.cluster(), test, guards)
}

/// Returns a session on a cluster that no other test uses at the same time. It is for tests that disturb others: they
/// restart the kubelet or create a Node that is not Ready.
pub fn shared_alone(test: &str) -> Session<'static> {
    let machine = share_machine();
    let exclusive = DISTURBED_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let guards = TestGuards { machine, exclusive: Some(exclusive) };
    Session::create(DISTURBED.cluster(), test, guards)
}

impl SharedCluster {
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

/// Waits until no test needs the whole machine. A test with its own cluster or machines holds the guard while it runs.
pub fn share_machine() -> RwLockReadGuard<'static, ()> {
    MACHINE.read().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until no other test runs. A test that needs all of the machine's processors or memory holds the guard while it
/// runs.
pub fn lock_machine() -> RwLockWriteGuard<'static, ()> {
    MACHINE.write().unwrap_or_else(PoisonError::into_inner)
}

impl Cluster {
    /// Creates the directory, the teardown process and the network namespace. It does not start the cluster.
    pub fn new(name: &str) -> Self {
        let unique = format!("e2e-{}-{name}", std::process::id());
        teardown::sweep();
        // Keep the path short: the path of a Unix socket has at most 107 bytes.
        let directory = std::env::temp_dir().join(format!("windlass-{unique}"));
        std::fs::create_dir_all(&directory)
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
        // Insert our flags after the first word: behind a `--` they would belong to another program.
        let (first, rest) = args.split_at(1);
        let mut command = self.namespace.command(&binary().display().to_string(), first);
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

    /// Returns the pid of a cluster process by its role: `supervisor`, `control-plane` or `agent`.
    #[track_caller]
    pub fn pid(&self, role: &str) -> u32 {
        let file = self.root().join("run").join(format!("{role}.pid"));
        let text = std::fs::read_to_string(&file)
            .unwrap_or_else(|e| panic!("reading {}: {e}", file.display()));
        let pid = text.split_whitespace().next().and_then(|pid| pid.parse().ok());
        pid.unwrap_or_else(|| panic!("no pid in {}: {text:?}", file.display()))
    }

    /// Returns the pids of a container. `container` is the `containerID` of a Pod's status.
    pub fn pids_of(&self, container: &str) -> Vec<u32> {
        let id = container.rsplit('/').next().unwrap_or(container);
        let inside = |pid: &u32| machine::about(*pid, "cgroup").contains(id);
        machine::processes(self).into_iter().map(|(pid, _)| pid).filter(inside).collect()
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

    /// Runs kubectl as the cluster's administrator.
    #[track_caller]
    pub fn kubectl(&self, args: &[&str]) -> Output {
        run(self.command("kubectl", args), b"")
    }

    /// Builds the image `box:1`, which only sleeps, and two versions of the test application `app`. The application is
    /// a web server whose page shows its version and its Pod's name. A shell is its first process, because httpd as the
    /// first process ignores SIGTERM for the whole grace period.
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

    /// Builds an image of busybox, with links for the applets that tests use.
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
        let mut process = self.teardown.lock().unwrap_or_else(PoisonError::into_inner);
        drop(process.stdin.take());
        let _ = process.wait();
    }
}

/// The guards that a test on a shared cluster holds while it runs.
#[expect(dead_code, reason = "guards are held and not read")]
pub(crate) struct TestGuards {
    machine: RwLockReadGuard<'static, ()>,
    exclusive: Option<MutexGuard<'static, ()>>,
}

/// Returns the path of the binary under test: `WINDLASS`, or else the one that cargo built last.
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
        panic!("no windlass binary is built; run the tests with `cargo xtask test`")
    })
}

/// Returns the path of kubectl and helm as fetched by xtask, and the name itself for other programs.
pub(crate) fn tool(program: &str) -> String {
    if !["kubectl", "helm"].contains(&program) {
        return program.to_owned();
    }
    let fetched = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../target/tools");
    let directory = std::env::var_os("WINDLASS_TOOLS").map_or_else(fetched, PathBuf::from);
    let path = directory.join(program);
    assert!(
        path.is_file(),
        "{} does not exist; run the tests with `cargo xtask test`",
        path.display()
    );
    path.display().to_string()
}

pub(crate) fn busybox() -> String {
    let known = ["/bin/busybox", "/usr/bin/busybox"];
    let found = known.into_iter().find(|path| Path::new(path).is_file());
    found
        .unwrap_or_else(|| {
            panic!("busybox is not installed; run the tests with `cargo xtask test`")
        })
        .to_owned()
}
