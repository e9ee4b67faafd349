//! A cluster with external certificate authorities: the machines have no CA keys and sign nothing.

use std::time::{Duration, SystemTime};

use e2e::{Host, Machines, configuration, is_etcd_installed, ready, share_machine, until};
use pki::{Authority, KeyAlgorithm, SigningRequest, Usage, Validity};

const DIRECTORY: &str = "/etc/kubernetes";
/// The certificates of a control plane: file, index of the authority, usage.
const LEAVES: [(&str, usize, Usage); 7] = [
    ("apiserver", 0, Usage::Server),
    ("apiserver-kubelet-client", 0, Usage::Client),
    ("front-proxy-client", 1, Usage::Client),
    ("etcd/server", 2, Usage::ServerAndClient),
    ("etcd/peer", 2, Usage::ServerAndClient),
    ("etcd/healthcheck-client", 2, Usage::Client),
    ("apiserver-etcd-client", 2, Usage::Client),
];
/// The kubeconfigs of a control plane: file and user.
const FILES: [(&str, &str); 5] = [
    ("admin", "kubernetes-admin"),
    ("super-admin", "kubernetes-super-admin"),
    ("kubelet", "system:node:"),
    ("controller-manager", "system:kube-controller-manager"),
    ("scheduler", "system:kube-scheduler"),
];

/// The external authorities. No machine has their keys.
struct Signer([Authority; 3]);

impl Signer {
    fn new() -> Self {
        Self(["kubernetes", "front-proxy-ca", "etcd-ca"].map(|name| {
            Authority::create(name, KeyAlgorithm::EcdsaP256, validity(3650)).expect("an authority")
        }))
    }

    /// Signs a request in a file on the machine and returns the certificate.
    fn sign(&self, host: &Host<'_>, request: &str, ca: usize, usage: Usage) -> String {
        let pem = host.run("cat", &[request]).ok();
        let request = SigningRequest::from_pem(&pem).expect("a request");
        let signed = self.0[ca].sign_request(&request, usage, validity(365));
        signed.expect("a certificate").to_pem()
    }

    fn trust(&self, host: &Host<'_>) {
        for (ca, file) in self.0.iter().zip(["ca", "front-proxy-ca", "etcd/ca"]) {
            put(host, &format!("{DIRECTORY}/pki/{file}.crt"), &ca.cert().to_pem());
        }
    }

    /// Signs the request of a kubeconfig that `certs generate-csr` wrote, and adds the certificate to the kubeconfig.
    fn complete(&self, host: &Host<'_>, file: &str, user: &str) {
        let path = format!("{DIRECTORY}/{file}.conf");
        let signed = self.sign(host, &format!("{path}.csr"), 0, Usage::Client);
        let (cert, ca) = (host.write("client.crt", &signed), self.0[0].cert().to_pem());
        let ca = host.write("ca.crt", &ca);
        let start = ["--kubeconfig", &path, "config"];
        let set = ["set-credentials", user, "--embed-certs", "--client-certificate", &cert];
        host.kubectl_with(&[&start[..], &set].concat(), "").ok();
        let set = ["set-cluster", "kubernetes", "--embed-certs", "--certificate-authority", &ca];
        host.kubectl_with(&[&start[..], &set].concat(), "").ok();
    }
}

fn validity(days: u64) -> Validity {
    Validity::starting(SystemTime::now(), Duration::from_secs(days * 86_400))
}

fn put(host: &Host<'_>, path: &str, text: &str) {
    let from = host.write("file", text);
    host.run("sh", &["-c", "mkdir -p $(dirname $1) && cp $0 $1", &from, path]).ok();
}

/// Returns the checksums of all certificates, keys and kubeconfigs on the machine.
fn checksums(host: &Host<'_>) -> String {
    let script = "cd $0 && find . -name '*.conf' -o -name '*.crt' -o -name '*.key' | grep -v sa.key | sort | xargs sha256sum";
    host.run("sh", &["-c", script, DIRECTORY]).ok()
}

#[test]
fn init_and_join_work_with_external_authorities() {
    let _turn = share_machine();
    if !is_etcd_installed() {
        return;
    }
    let (machines, signer) = (Machines::new("external"), Signer::new());
    let (first, worker) = (machines.start("alpha", 1), machines.start("beta", 2));
    let file = first.write("kubeadm.yaml", &configuration("controlPlaneEndpoint: 192.0.2.1:6443"));
    let (init, requests) =
        (format!("init --config {file}"), format!("certs generate-csr --config {file}"));

    first.windlass(&requests).ok();
    let output = first.windlass(&requests).refused();
    assert!(output.contains("a key is never overwritten"), "{output}");
    signer.trust(&first);
    // `init` reports all missing files at once, before it changes anything.
    let output = first.windlass(&init).refused();
    for (file, ..) in LEAVES {
        assert!(output.contains(&format!("{file}.crt is missing")), "{output}");
    }
    assert!(output.contains("scheduler.conf exists but cannot be used"), "{output}");
    assert!(!output.contains("preflight"), "{output}");

    for (file, ca, usage) in LEAVES {
        let path = format!("{DIRECTORY}/pki/{file}");
        let signed = signer.sign(&first, &format!("{path}.csr"), ca, usage);
        put(&first, &format!("{path}.crt"), &signed);
    }
    for (file, user) in FILES {
        let own = if file == "kubelet" { "system:node:alpha" } else { user };
        signer.complete(&first, file, own);
    }
    // `init` rejects a certificate of another authority and does not overwrite it.
    let path = format!("{DIRECTORY}/pki/apiserver");
    let right = first.run("cat", &[&format!("{path}.crt")]).ok();
    let wrong = signer.sign(&first, &format!("{path}.csr"), 1, Usage::Server);
    put(&first, &format!("{path}.crt"), &wrong);
    let output = first.windlass(&init).refused();
    assert!(output.contains("is not signed by \"CN=kubernetes\""), "{output}");
    assert_eq!(first.run("cat", &[&format!("{path}.crt")]).ok(), wrong);
    put(&first, &format!("{path}.crt"), &right);
    let output = first.windlass(&format!("{init} --upload-certs")).refused();
    assert!(output.contains("can't use upload-certs with an external CA"), "{output}");

    let before = checksums(&first);
    first.windlass(&init).ok();
    assert_eq!(checksums(&first), before);
    first.kubectl("wait --for=create node/alpha --timeout=30s").ok();
    let output = first.windlass(&format!("certs check-expiration --config {file}")).ok();
    let rows = output.lines().filter(|line| line.contains(" UTC "));
    assert!(rows.clone().count() == 14 && rows.into_iter().all(|l| l.ends_with("yes")), "{output}");
    let output = first.windlass(&format!("certs renew all --config {file}")).ok();
    let words = "Detected external ca, certificate for serving the Kubernetes API can't be renewed";
    let count = |end: &str| output.lines().filter(|line| line.ends_with(end)).count();
    assert!(output.contains(words) && count(" can't be renewed") == 11, "{output}");
    assert_eq!(count(" renewed"), 11, "{output}");
    assert_eq!(checksums(&first), before);

    // A join by token fails: the kubelet's request is approved, but no controller signs it.
    let token = first.windlass("token create").ok();
    let pin = signer.0[0].cert().pin().expect("a pin");
    let join = format!(
        "apiVersion: kubeadm.k8s.io/v1beta4\nkind: JoinConfiguration\ntimeouts: {{tlsBootstrap: 8s}}\n\
         nodeRegistration: {{ignorePreflightErrors: [SystemVerification, FileAvailable--etc-kubernetes-kubelet.conf]}}\n\
         discovery: {{bootstrapToken: {{token: {}, apiServerEndpoint: '192.0.2.1:6443', caCertHashes: ['{pin}']}}}}\n",
        token.trim()
    );
    let join = format!("join --config {}", worker.write("join.yaml", &join));
    let output = worker.windlass(&join).refused();
    assert!(output.contains("is approved and nobody signs it"), "{output}");
    let signed = first.kubectl("get csr -o jsonpath={.items[*].status.certificate}").ok();
    assert_eq!(signed, "");
    worker.windlass("reset --force").ok();

    // The worker joins with a kubeconfig whose certificate was signed externally.
    worker.windlass(&requests.replace("alpha", "beta")).ok();
    signer.complete(&worker, "kubelet", "system:node:beta");
    worker.run("sh", &["-c", "cd $0 && rm -r pki *.csr [!k]*.conf", DIRECTORY]).ok();
    worker.windlass(&join).ok();
    e2e::connect(&first, &[&first, &worker]);
    ready(&first, &[&first, &worker]);
    worker.build_box();
    first.kubectl("run box --image=box:1 --restart=Never").ok();
    until("the log of a Pod", || {
        let ran = first.kubectl("logs box");
        if ran.stdout.contains("here is box") { Ok(()) } else { Err(ran.to_string()) }
    });
}
