//! A control plane on loopback: files and flags from the binary's kubeadm commands, and etcd from the machine.

use std::{
    fs,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use api_config::Kubeconfig;
use client::Client;
use store::{KeyRange, KeyValue, Store as _};
use tempfile::TempDir;
use testkit::free_port;

pub(crate) const WINDLASS: &str = env!("CARGO_BIN_EXE_windlass");
/// The advertised address; the server listens only on loopback.
const ADVERTISED: &str = "10.77.0.1";

/// Returns `true` if there is an etcd to test with, and prints a message otherwise.
pub(crate) fn is_etcd_there() -> bool {
    let installed = Command::new("etcd").arg("--version").stdout(Stdio::null()).status().is_ok();
    if !installed {
        eprintln!("skipped: no etcd in PATH (Debian: apt-get install etcd-server)");
    }
    installed
}

/// A process that is killed with its owner.
pub(crate) struct Process(pub(crate) Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) struct ControlPlane {
    pub(crate) etcd_url: String,
    pub(crate) api_port: u16,
    pub(crate) manager_port: u16,
    pub(crate) scheduler_port: u16,
    _etcd: Process,
    directory: TempDir,
}

impl ControlPlane {
    /// Writes certificates, kubeconfigs and manifests, and starts etcd.
    pub(crate) fn prepare() -> Self {
        Self::prepare_with(Path::new("etcd"))
    }

    /// Prepares a control plane with another etcd.
    pub(crate) fn prepare_with(etcd: &Path) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (api_port, etcd_url) = (free_port(), format!("https://127.0.0.1:{}", free_port()));
        let config = directory.path().join("kubeadm.yaml");
        let text = format!(
            "apiVersion: kubeadm.k8s.io/v1beta4\nkind: InitConfiguration\n\
             localAPIEndpoint: {{advertiseAddress: {ADVERTISED}, bindPort: {api_port}}}\n\
             nodeRegistration: {{name: alpha}}\n---\napiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\n\
             encryptionAlgorithm: ECDSA-P256\nkubernetesVersion: v1.36.2\ncertificatesDir: /etc/kubernetes/pki\n\
             networking: {{podSubnet: 10.244.0.0/16}}\napiServer: {{certSANs: [127.0.0.1]}}\n"
        );
        fs::write(&config, text).unwrap();
        for phase in ["certs", "kubeconfig", "control-plane"] {
            let done = Command::new(WINDLASS)
                .arg0("kubeadm")
                .args(["init", "phase", phase, "all", "--config"])
                .arg(&config)
                .arg("--rootfs")
                .arg(directory.path())
                .stdout(Stdio::null())
                .status()
                .unwrap();
            assert!(done.success(), "{phase}");
        }
        let etcd = start_etcd(etcd, directory.path(), "etcd-data", &etcd_url);
        let (manager_port, scheduler_port) = (free_port(), free_port());
        Self { etcd_url, api_port, manager_port, scheduler_port, _etcd: etcd, directory }
    }

    pub(crate) fn kubernetes(&self) -> PathBuf {
        self.directory.path().join("etc/kubernetes")
    }

    pub(crate) fn start_apiserver(&self) -> Process {
        self.start_apiserver_with(&[])
    }

    /// Starts the API server with additional flags.
    pub(crate) fn start_apiserver_with(&self, more: &[String]) -> Process {
        self.start("kube-apiserver", &[&self.server_flags(), more].concat())
    }

    /// Starts an etcd besides the first one, with the same certificates and its own data.
    pub(crate) fn start_second_etcd(&self, url: &str) -> Process {
        start_etcd(Path::new("etcd"), self.directory.path(), "second-etcd-data", url)
    }

    /// Reads everything under the prefix directly from an etcd.
    pub(crate) async fn stored(&self, url: &str, prefix: &str) -> Vec<KeyValue> {
        let pki = self.kubernetes().join("pki");
        let tls = store_etcd::TlsFiles {
            ca: pki.join("etcd/ca.crt"),
            identity: Some((
                pki.join("apiserver-etcd-client.crt"),
                pki.join("apiserver-etcd-client.key"),
            )),
        };
        let options = store_etcd::Options::new(vec![url.to_owned()], Some(tls));
        let etcd = store_etcd::Etcd::connect(options).await.unwrap();
        etcd.range(KeyRange::prefix(prefix), 0, 0).await.unwrap().items
    }

    /// Starts another API server with the same flags.
    pub(crate) fn start_apiserver_of(&self, program: &Path) -> Process {
        self.start_program(Command::new(program), "kube-apiserver", &self.server_flags())
    }

    fn server_flags(&self) -> [String; 2] {
        ["--bind-address=127.0.0.1".to_owned(), format!("--etcd-servers={}", self.etcd_url)]
    }

    pub(crate) fn start_manager(&self) -> Process {
        self.start("kube-controller-manager", &[format!("--secure-port={}", self.manager_port)])
    }

    pub(crate) fn start_scheduler(&self) -> Process {
        let ca = format!("--client-ca-file={}/pki/ca.crt", self.kubernetes().display());
        self.start("kube-scheduler", &[format!("--secure-port={}", self.scheduler_port), ca])
    }

    /// Starts the component of kubeadm's manifest, with the flags in `instead` added or replaced.
    fn start(&self, component: &str, instead: &[String]) -> Process {
        let mut program = Command::new(WINDLASS);
        program.arg(component);
        self.start_program(program, component, instead)
    }

    fn start_program(&self, mut program: Command, component: &str, instead: &[String]) -> Process {
        let manifest = self.kubernetes().join(format!("manifests/{component}.yaml"));
        let manifest = fs::read_to_string(manifest).unwrap();
        let own = manifest.lines().filter_map(|line| line.trim().strip_prefix("- --"));
        let place = self.kubernetes().display().to_string();
        let name = |flag: &str| flag.split('=').next().unwrap().to_owned();
        let flags = own
            .map(|flag| format!("--{}", flag.replace("/etc/kubernetes", &place)))
            .filter(|flag| instead.iter().all(|other| name(other) != name(flag)))
            .chain(instead.iter().cloned());
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(self.directory.path().join(format!("{component}.log")))
            .unwrap();
        let child =
            program.args(flags).stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        Process(child)
    }

    /// Returns a client of one of the kubeconfigs, for a port on loopback.
    pub(crate) fn client(&self, kubeconfig: &str, port: u16) -> Client {
        let mut config = Kubeconfig::load(&self.kubernetes().join(kubeconfig)).unwrap();
        for cluster in &mut config.clusters {
            cluster.cluster.server = format!("https://127.0.0.1:{port}");
            if port != self.api_port {
                // The other components generate their own certificates.
                cluster.cluster.insecure_skip_tls_verify = true;
                cluster.cluster.certificate_authority_data.clear();
            }
        }
        Client::from_kubeconfig(&config, "test").unwrap()
    }

    /// Returns the logs of the components, for the message of a failed test.
    pub(crate) fn logs(&self) -> String {
        let mut all = String::new();
        for component in ["kube-apiserver", "kube-controller-manager", "kube-scheduler"] {
            let path = self.directory.path().join(format!("{component}.log"));
            all.push_str(&fs::read_to_string(path).unwrap_or_default());
        }
        all
    }

    /// Points the kubeconfigs at loopback, because nothing listens on the advertised address.
    pub(crate) fn point_at_loopback(&self) {
        for file in ["controller-manager.conf", "scheduler.conf", "super-admin.conf", "admin.conf"]
        {
            let path = self.kubernetes().join(file);
            let text = fs::read_to_string(&path).unwrap().replace(ADVERTISED, "127.0.0.1");
            fs::write(&path, text).unwrap();
        }
    }
}

fn start_etcd(program: &Path, root: &Path, data: &str, url: &str) -> Process {
    let pki = root.join("etc/kubernetes/pki/etcd");
    let data = root.join(data);
    let peer = format!("http://127.0.0.1:{}", free_port());
    let child = Command::new(program)
        .arg("--data-dir")
        .arg(data)
        .args(["--listen-client-urls", url, "--advertise-client-urls", url])
        .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
        .args(["--initial-cluster", &format!("default={peer}"), "--client-cert-auth"])
        .arg("--cert-file")
        .arg(pki.join("server.crt"))
        .arg("--key-file")
        .arg(pki.join("server.key"))
        .arg("--trusted-ca-file")
        .arg(pki.join("ca.crt"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    Process(child)
}
