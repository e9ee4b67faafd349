//! A cluster with an external etcd, which the control planes share and `reset` does not delete.

use std::{
    process::{Child, Command, Stdio},
    time::{Duration, SystemTime},
};

use e2e::{Host, Machines, configuration, is_etcd_installed, join_commands, share_machine, until};
use pki::{AltName, Authority, KeyAlgorithm, LeafSpec, Subject, Usage, Validity};

use crate::kubeadm::traces;

const ADDRESS: &str = "192.0.2.254";
/// The directory on the control planes with the certificates for the external etcd.
const DIRECTORY: &str = "/etc/kubernetes/pki/outside";
/// The oldest external etcd version that kubeadm supports for this release.
const OLDEST: [u32; 3] = [3, 5, 24];

/// An etcd on the network between the machines, and the certificates of its clients.
struct ExternalEtcd {
    child: Child,
    /// The client's files: name and text.
    files: Vec<(&'static str, String)>,
}

impl ExternalEtcd {
    fn start(machines: &Machines) -> Self {
        let validity = Validity::starting(SystemTime::now(), Duration::from_secs(86_400));
        let ca = Authority::create("outside", KeyAlgorithm::EcdsaP256, validity).expect("a CA");
        let issue = |name: &str, usage| {
            let alt_names = vec![AltName::Ip(ADDRESS.parse().expect("an address"))];
            let spec = LeafSpec { subject: Subject::new(name), alt_names, usage };
            let (cert, key) = ca.issue_new(&spec, KeyAlgorithm::EcdsaP256, validity).expect(name);
            (cert.to_pem(), key.to_pem().expect("a key"))
        };
        let (server, client) =
            (issue("etcd", Usage::ServerAndClient), issue("client", Usage::Client));
        let ca = ca.cert().to_pem();
        let keep = |name: &str, text: &str| {
            std::fs::write(machines.path(name), text).expect(name);
            machines.path(name).display().to_string()
        };
        let at = format!("https://{ADDRESS}:2379");
        let peer = "http://127.0.0.1:2380";
        let mut etcd = machines.bridge_command("etcd", &["--name=outside", "--client-cert-auth"]);
        etcd.arg("--data-dir").arg(machines.path("outside"));
        for (flag, value) in [
            ("listen-client-urls", at.as_str()),
            ("advertise-client-urls", &at),
            ("listen-peer-urls", peer),
            ("initial-advertise-peer-urls", peer),
            ("initial-cluster", &format!("outside={peer}")),
            ("trusted-ca-file", &keep("outside-ca.crt", &ca)),
            ("cert-file", &keep("outside.crt", &server.0)),
            ("key-file", &keep("outside.key", &server.1)),
        ] {
            etcd.arg(format!("--{flag}={value}"));
        }
        let child = etcd.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("an etcd");
        Self {
            child,
            files: vec![("ca.crt", ca), ("client.crt", client.0), ("client.key", client.1)],
        }
    }

    /// Copies the client's files to a machine.
    fn install_client_files(&self, host: &Host<'_>) {
        host.run("mkdir", &["-p", DIRECTORY]).ok();
        for (name, text) in &self.files {
            let from = host.write(name, text);
            host.run("cp", &[&from, &format!("{DIRECTORY}/{name}")]).ok();
        }
    }
}

impl Drop for ExternalEtcd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reports whether the installed etcd is older than [`OLDEST`].
fn is_too_old() -> bool {
    let ran = Command::new("etcd").arg("--version").output().expect("an etcd");
    let text = String::from_utf8_lossy(&ran.stdout).into_owned();
    let version = text.split_whitespace().nth(2).expect("a version");
    let parts: Vec<u32> = version.split('.').map_while(|part| part.parse().ok()).collect();
    parts.as_slice() < OLDEST.as_slice()
}

#[test]
fn control_planes_share_an_external_etcd() {
    let _turn = share_machine();
    if !is_etcd_installed() {
        return;
    }
    let machines = Machines::new("outside");
    let (first, second) = (machines.start("alpha", 1), machines.start("beta", 2));
    let outside = ExternalEtcd::start(&machines);
    let clean = traces(&first);
    let external = format!(
        "controlPlaneEndpoint: 192.0.2.1:6443\netcd: {{external: {{endpoints: ['https://{ADDRESS}:2379'], \
         caFile: {DIRECTORY}/ca.crt, certFile: {DIRECTORY}/client.crt, keyFile: {DIRECTORY}/client.key}}}}"
    );
    let text = configuration(&external);
    let init =
        |text: &str| format!("init --config {} --upload-certs", first.write("kubeadm.yaml", text));
    let output = first.windlass(&init(&text)).refused();
    assert!(output.contains("[ERROR ExternalEtcdClientCertificates]"), "{output}");
    assert_eq!(traces(&first), clean);
    outside.install_client_files(&first);
    if is_too_old() {
        let output = first.windlass(&init(&text)).refused();
        assert!(output.contains("[ERROR ExternalEtcdVersion]"), "{output}");
        assert!(output.contains("only supports external etcd version >= 3.5.24"), "{output}");
    }
    let text = text.replace("[SystemVerification]", "[SystemVerification, ExternalEtcdVersion]");
    let output = first.windlass(&init(&text)).ok();
    first.kubectl("create configmap kept --from-literal=by=alpha").ok();
    // The second control plane only gets the key of the certificates that the first one uploaded.
    let line = join_commands(&first, &output).control_plane;
    second.windlass(&line).ok();
    assert!(second.run("cat", &[&format!("{DIRECTORY}/client.key")]).ok().contains("PRIVATE KEY"));
    for host in [&first, &second] {
        let ran = host.run("sh", &["-c", "ls /etc/kubernetes/manifests /var/lib/etcd"]).ok();
        assert!(ran.contains("kube-apiserver.yaml") && !ran.contains("etcd.yaml"), "{ran}");
        assert!(!ran.contains("member"), "{ran}");
        let local = format!("--server=https://{}:6443", host.address);
        let get = ["get", "configmap", "kept", "-o", "jsonpath={.data.by}", &local];
        assert_eq!(host.kubectl_with(&get, "").ok(), "alpha");
    }
    until("both control planes as endpoints", || {
        let path = "jsonpath={.endpoints[*].addresses[0]}";
        let ran = first.kubectl(&format!("get endpointslice kubernetes -o {path}"));
        if ran.stdout.split_whitespace().count() == 2 { Ok(()) } else { Err(ran.to_string()) }
    });

    // `reset` does not clean an external etcd: a new cluster on it finds the old objects.
    second.windlass("reset --force").ok();
    first.windlass("reset --force").ok();
    outside.install_client_files(&first);
    first.windlass(&init(&text)).ok();
    assert_eq!(first.kubectl("get configmap kept -o jsonpath={.data.by}").ok(), "alpha");
}
