//! A cluster whose etcd is run by somebody else: it is used, shared by the control planes, and never cleaned away.

use std::{
    process::{Child, Command, Stdio},
    time::{Duration, SystemTime},
};

use e2e::{Host, Machines, beside_others, configuration, is_etcd_there, join_by, until};
use pki::{AltName, Authority, KeyAlgorithm, LeafSpec, Subject, Usage, Validity};

use crate::kubeadm::traces;

const ADDRESS: &str = "192.0.2.254";
/// The directory of the certificates for that etcd on the control planes.
const DIRECTORY: &str = "/etc/kubernetes/pki/outside";
/// The oldest that a cluster of this release may be given.
const OLDEST: [u32; 3] = [3, 5, 24];

/// An etcd on the network between the machines, and what its clients need.
struct Outside {
    child: Child,
    /// The client's files: name and text.
    files: Vec<(&'static str, String)>,
}

impl Outside {
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
        let mut etcd = machines.between("etcd", &["--name=outside", "--client-cert-auth"]);
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

    fn give(&self, host: &Host<'_>) {
        host.run("mkdir", &["-p", DIRECTORY]).ok();
        for (name, text) in &self.files {
            let from = host.write(name, text);
            host.run("cp", &[&from, &format!("{DIRECTORY}/{name}")]).ok();
        }
    }
}

impl Drop for Outside {
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
    let _turn = beside_others();
    if !is_etcd_there() {
        return;
    }
    let machines = Machines::new("outside");
    let (first, second) = (machines.start("alpha", 1), machines.start("beta", 2));
    let outside = Outside::start(&machines);
    let clean = traces(&first);
    let external = format!(
        "controlPlaneEndpoint: 192.0.2.1:6443\netcd: {{external: {{endpoints: ['https://{ADDRESS}:2379'], \
         caFile: {DIRECTORY}/ca.crt, certFile: {DIRECTORY}/client.crt, keyFile: {DIRECTORY}/client.key}}}}"
    );
    let text = configuration(&external);
    let init =
        |text: &str| format!("init --config {} --upload-certs", first.write("kubeadm.yaml", text));
    let said = first.windlass(&init(&text)).refused();
    assert!(said.contains("[ERROR ExternalEtcdClientCertificates]"), "{said}");
    assert_eq!(traces(&first), clean);
    outside.give(&first);
    if is_too_old() {
        let said = first.windlass(&init(&text)).refused();
        assert!(said.contains("[ERROR ExternalEtcdVersion]"), "{said}");
        assert!(said.contains("only supports external etcd version >= 3.5.24"), "{said}");
    }
    let text = text.replace("[SystemVerification]", "[SystemVerification, ExternalEtcdVersion]");
    let said = first.windlass(&init(&text)).ok();
    first.kubectl("create configmap kept --from-literal=by=alpha").ok();
    // The second one is given nothing but the key of what the first has uploaded.
    let line = join_by(&first, &said).control_plane;
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

    // What others keep is not reset's to clean: a cluster that is made on it again has what it had.
    second.windlass("reset --force").ok();
    first.windlass("reset --force").ok();
    outside.give(&first);
    first.windlass(&init(&text)).ok();
    assert_eq!(first.kubectl("get configmap kept -o jsonpath={.data.by}").ok(), "alpha");
}
