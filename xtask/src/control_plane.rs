//! Starts a new control plane on loopback: ours or upstream's, with the files and flags of kubeadm.

use std::{
    fs,
    net::TcpListener,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use crate::{
    error::{During, Result, fail},
    file::{create_directory, read, write},
    run::{log_to, output, pass, program},
    tools,
};

/// The side: ours or upstream's.
#[derive(Clone, Debug)]
pub(crate) enum Side {
    /// The path of the binary.
    Windlass(PathBuf),
    /// The directory of upstream's binaries.
    Upstream(PathBuf),
}

impl Side {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Windlass(_) => "windlass",
            Self::Upstream(_) => "upstream",
        }
    }

    /// Returns the measured binaries, whose hashes the result contains.
    pub(crate) fn binaries(&self) -> Vec<PathBuf> {
        match self {
            Self::Windlass(binary) => vec![binary.clone()],
            Self::Upstream(directory) => UPSTREAM.iter().map(|name| directory.join(name)).collect(),
        }
    }

    fn command(&self, component: &str) -> Command {
        match self {
            Self::Windlass(binary) => program(binary, [component]),
            Self::Upstream(directory) => Command::new(directory.join(component)),
        }
    }
}

const UPSTREAM: &[&str] = &["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"];

pub(crate) fn has_upstream_binaries(directory: &Path) -> bool {
    UPSTREAM.iter().all(|name| directory.join(name).is_file())
}

/// The advertised address. Nothing listens there; clients use loopback.
const ADVERTISED: &str = "192.0.2.1";

pub(crate) struct ControlPlane {
    side: Side,
    pub(crate) directory: PathBuf,
    ports: Ports,
    kubectl: String,
    /// The processes, which are killed in reverse order.
    processes: Vec<Process>,
}

/// Free ports on loopback.
struct Ports {
    api: u16,
    etcd: u16,
    etcd_peer: u16,
    manager: u16,
    scheduler: u16,
}

struct Process {
    component: &'static str,
    child: Child,
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        self.kill();
    }
}

impl ControlPlane {
    /// Starts a whole control plane, ready for requests.
    pub(crate) fn start(side: Side, windlass: &Path, directory: &Path) -> Result<Self> {
        let mut this = Self::prepare(side, windlass, directory)?;
        this.start_api_server()?;
        this.start_controllers()?;
        Ok(this)
    }

    /// Creates the files of a control plane without starting it. `windlass` creates those of both sides with its
    /// kubeadm commands.
    pub(crate) fn prepare(side: Side, windlass: &Path, directory: &Path) -> Result<Self> {
        let _ = fs::remove_dir_all(directory);
        create_directory(directory)?;
        let this = Self {
            side,
            directory: directory.to_owned(),
            ports: free_ports()?,
            kubectl: tools::kubectl()?,
            processes: Vec::new(),
        };
        this.write_files(windlass)?;
        Ok(this)
    }

    /// Starts the API server and its store, and waits until the server is ready. Returns the time that this took.
    pub(crate) fn start_api_server(&mut self) -> Result<Duration> {
        let started = Instant::now();
        let bind = "--bind-address=127.0.0.1".to_owned();
        match &self.side {
            Side::Windlass(_) => {
                let store = format!("--store-dir={}", self.directory.join("store").display());
                self.run("kube-apiserver", &[bind, store])?;
            }
            Side::Upstream(_) => {
                self.start_etcd()?;
                let etcd = format!("--etcd-servers=https://127.0.0.1:{}", self.ports.etcd);
                self.run("kube-apiserver", &[bind, etcd])?;
            }
        }
        self.wait_until_ready()?;
        Ok(started.elapsed())
    }

    pub(crate) fn start_controllers(&mut self) -> Result<()> {
        self.run("kube-controller-manager", &[format!("--secure-port={}", self.ports.manager)])?;
        self.run("kube-scheduler", &[format!("--secure-port={}", self.ports.scheduler)])
    }

    /// Kills all processes, like a power failure. The stored data stays.
    pub(crate) fn kill(&mut self) {
        for mut process in self.processes.drain(..).rev() {
            let _ = process.child.kill();
            let _ = process.child.wait();
        }
    }

    pub(crate) fn pids(&self) -> Vec<u32> {
        self.processes.iter().map(|process| process.child.id()).collect()
    }

    pub(crate) fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.ports.api)
    }

    pub(crate) fn side(&self) -> &Side {
        &self.side
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.directory.join("etc/kubernetes/super-admin.conf")
    }

    pub(crate) fn kubectl(&self) -> Command {
        let mut command = Command::new(&self.kubectl);
        command.arg("--kubeconfig").arg(self.kubeconfig());
        command
    }

    /// Returns an error if a component has ended, because the tests' failures would only be consequences.
    pub(crate) fn check(&mut self) -> Result<()> {
        for process in &mut self.processes {
            if let Ok(Some(status)) = process.child.try_wait() {
                let log = self.directory.join(format!("{}.log", process.component));
                let (name, log) = (process.component, log.display());
                return fail(format!("{name} has ended ({status}), see {log}"));
            }
        }
        Ok(())
    }

    fn write_files(&self, windlass: &Path) -> Result<()> {
        let config = self.directory.join("kubeadm.yaml");
        let port = self.ports.api;
        let text = format!(
            "apiVersion: kubeadm.k8s.io/v1beta4\nkind: InitConfiguration\n\
             localAPIEndpoint: {{advertiseAddress: {ADVERTISED}, bindPort: {port}}}\n\
             nodeRegistration: {{name: control-plane}}\n---\n\
             apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\nkubernetesVersion: v1.36.2\n\
             encryptionAlgorithm: ECDSA-P256\nnetworking: {{podSubnet: 10.244.0.0/16}}\n\
             apiServer: {{certSANs: [127.0.0.1]}}\n"
        );
        write(&config, &text)?;
        for phase in ["certs", "kubeconfig", "control-plane"] {
            let mut kubeadm = Command::new(windlass);
            kubeadm.arg0("kubeadm").args(["init", "phase", phase, "all", "--config"]).arg(&config);
            kubeadm.arg("--rootfs").arg(&self.directory);
            pass(kubeadm.stdout(Stdio::null()).stderr(Stdio::null()))?;
        }
        for name in ["controller-manager", "scheduler", "super-admin"] {
            let path = self.directory.join(format!("etc/kubernetes/{name}.conf"));
            write(&path, read(&path)?.replace(ADVERTISED, "127.0.0.1"))?;
        }
        Ok(())
    }

    fn start_etcd(&mut self) -> Result<()> {
        let pki = self.directory.join("etc/kubernetes/pki/etcd");
        let url = format!("https://127.0.0.1:{}", self.ports.etcd);
        let peer = format!("http://127.0.0.1:{}", self.ports.etcd_peer);
        let mut command = self.side.command("etcd");
        command.arg("--data-dir").arg(self.directory.join("etcd-data"));
        command.args(["--listen-client-urls", &url, "--advertise-client-urls", &url]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", &format!("default={peer}"), "--client-cert-auth"]);
        command.arg("--cert-file").arg(pki.join("server.crt"));
        command.arg("--key-file").arg(pki.join("server.key"));
        command.arg("--trusted-ca-file").arg(pki.join("ca.crt"));
        self.spawn("etcd", command)
    }

    /// Starts the component of the manifest, with the flags in `instead` added or replaced.
    fn run(&mut self, component: &'static str, instead: &[String]) -> Result<()> {
        let kubernetes = self.directory.join("etc/kubernetes");
        let manifest = read(&kubernetes.join(format!("manifests/{component}.yaml")))?;
        let name = |flag: &str| flag.split('=').next().unwrap_or_default().to_owned();
        let embedded = instead.iter().any(|flag| flag.starts_with("--store-dir"));
        let own = manifest
            .lines()
            .filter_map(|line| line.trim().strip_prefix("- --"))
            .map(|flag| {
                format!("--{flag}").replace("/etc/kubernetes", &kubernetes.display().to_string())
            })
            .filter(|flag| instead.iter().all(|other| name(other) != name(flag)))
            .filter(|flag| !(embedded && flag.starts_with("--etcd-")));
        let mut command = self.side.command(component);
        command.args(own).args(instead);
        self.spawn(component, command)
    }

    fn spawn(&mut self, component: &'static str, mut command: Command) -> Result<()> {
        let path = self.directory.join(format!("{component}.log"));
        log_to(&mut command, &path)?;
        let child = command.spawn().during("starting", component)?;
        self.processes.push(Process { component, child });
        Ok(())
    }

    /// Polls with curl, which starts in a few milliseconds, while kubectl takes a hundred.
    fn wait_until_ready(&mut self) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(120);
        let url = format!("{}/readyz", self.url());
        loop {
            let ca = self.directory.join("etc/kubernetes/pki/ca.crt");
            let mut probe = program("curl", ["--silent", "--show-error", "--fail", "--cacert"]);
            let health = output(probe.arg(ca).arg(&url));
            self.check()?;
            match health {
                Ok(health) if health == "ok" => return Ok(()),
                Err(error) if Instant::now() > deadline => {
                    return fail(format!("the API server does not become ready: {error}"));
                }
                _ => thread::sleep(Duration::from_millis(5)),
            }
        }
    }
}

/// Finds free ports. All listeners stay open until the end, so that no two ports are equal.
fn free_ports() -> Result<Ports> {
    let listen = |_| TcpListener::bind("127.0.0.1:0");
    let port = |listener: &TcpListener| listener.local_addr().map(|address| address.port());
    let ports: std::io::Result<Vec<u16>> = (0..5)
        .map(listen)
        .collect::<std::io::Result<Vec<_>>>()
        .and_then(|listeners| listeners.iter().map(port).collect());
    match ports.during("looking for", "free ports")?[..] {
        [api, etcd, etcd_peer, manager, scheduler] => {
            Ok(Ports { api, etcd, etcd_peer, manager, scheduler })
        }
        _ => unreachable!("five ports were requested"),
    }
}
