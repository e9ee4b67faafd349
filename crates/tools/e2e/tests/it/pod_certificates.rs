//! Certificates of Pods: the kubelet requests them, and a signer that only has kubectl issues or denies them.

use std::{
    fs,
    time::{Duration, SystemTime},
};

use e2e::{Cluster, Session, share_machine, until};
use pki::{Authority, Cert, Key, KeyAlgorithm, LeafSpec, SigningRequest, Subject, Usage, Validity};
use serde_json::{Value, json};

const CONFIGURATION: &str = "apiVersion: windlass.io/v1alpha1
kind: Cluster
featureGates: {PodCertificateRequest: true}
apiServer:
  extraArgs:
  - {name: runtime-config, value: certificates.k8s.io/v1beta1=true}
";

fn pod(name: &str, key_type: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
        "tolerations": [{"operator": "Exists"}],
        "containers": [{"name": "c", "image": "box:1", "volumeMounts": [{"name": "v", "mountPath": "/c"}]}],
        "volumes": [{"name": "v", "projected": {"sources": [{"podCertificate": {
            "signerName": "example.com/pods", "keyType": key_type, "maxExpirationSeconds": 7200,
            "credentialBundlePath": "bundle.pem", "keyPath": "key.pem",
            "certificateChainPath": "chain.pem"}}]}}]}})
}

/// Waits for the request of a Pod.
fn request(s: &Session<'_>, pod: &str) -> Value {
    let what = format!("podcertificaterequests --field-selector spec.podName={pod}");
    until("the kubelet requests a certificate", || {
        let list = s.get(&what);
        let found = list["items"][0].clone();
        if found.is_null() { Err(list.to_string()) } else { Ok(found) }
    })
}

fn patch_status(s: &Session<'_>, request: &Value, status: &Value) {
    let name = request["metadata"]["name"].as_str().unwrap();
    let patch = json!({ "status": status }).to_string();
    let args = ["patch", "podcertificaterequests", name, "--subresource=status", "--type=merge"];
    s.kubectl_with(&[&args[..], &["-p", &patch]].concat(), "").ok();
}

/// Issues a certificate for the key of a request, as a signer does.
fn issue(authority: &Authority, request: &Value) -> Value {
    let stub = request["spec"]["stubPKCS10Request"].as_str().unwrap();
    let label = "CERTIFICATE REQUEST";
    let pem = format!("-----BEGIN {label}-----\n{stub}\n-----END {label}-----\n");
    let stub = SigningRequest::from_pem(&pem).unwrap();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    let at = |seconds: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(now + seconds);
    let validity = Validity { not_before: at(0), not_after: at(7200) };
    let subject = Subject::new(request["spec"]["podName"].as_str().unwrap());
    let spec = LeafSpec { subject, alt_names: Vec::new(), usage: Usage::Client };
    let leaf = authority.issue_to(&spec, stub.public_key().unwrap(), validity).unwrap();
    let time = |seconds: u64| pki::format_time(at(seconds));
    json!({"certificateChain": format!("{}{}", leaf.to_pem(), authority.cert().to_pem()),
        "notBefore": time(0), "beginRefreshAt": time(3600), "notAfter": time(7200),
        "conditions": [{"type": "Issued", "status": "True", "reason": "Signed",
            "lastTransitionTime": time(0)}]})
}

#[test]
fn pods_get_certificates_of_their_signer() {
    let _turn = share_machine();
    let cluster = Cluster::new("pod-certificates");
    let path = cluster.directory.join("cluster.yaml");
    fs::write(&path, CONFIGURATION).unwrap();
    cluster.up_with(&["--config", &path.display().to_string()]).ok();
    cluster.build_images();
    let s = Session::in_default_namespace(&cluster);
    let validity = Validity::starting(SystemTime::now(), Duration::from_secs(24 * 3600));
    let authority = Authority::create("pods", KeyAlgorithm::EcdsaP256, validity).unwrap();
    let exec =
        |pod: &str, script: &str| s.kubectl_with(&["exec", pod, "--", "sh", "-c", script], "").ok();
    for (name, key_type) in [("ecdsa", "ECDSAP384"), ("rsa", "RSA3072"), ("edwards", "ED25519")] {
        s.apply(&pod(name, key_type).to_string());
        let request = request(&s, name);
        assert_eq!(request["spec"]["signerName"], "example.com/pods");
        patch_status(&s, &request, &issue(&authority, &request));
        s.kubectl(&format!("wait pod/{name} --for=condition=Ready --timeout=60s")).ok();
        let (key, chain) = (exec(name, "cat /c/key.pem"), exec(name, "cat /c/chain.pem"));
        assert_eq!(exec(name, "cat /c/bundle.pem"), format!("{key}{chain}"));
        let chain = Cert::all_from_pem(&chain).unwrap();
        chain[0].check_signed_by(&chain[1]).unwrap();
        if key_type != "ED25519" {
            chain[0].check_key(&Key::from_pem(&key).unwrap()).unwrap();
        }
    }
    s.apply(&pod("denied", "ED25519").to_string());
    let denied = json!({"conditions": [{"type": "Denied", "status": "True",
        "reason": "UnsupportedKeyType", "message": "use RSA",
        "lastTransitionTime": pki::format_time(SystemTime::now())}]});
    patch_status(&s, &request(&s, "denied"), &denied);
    let events = |reason: &str| {
        let of = format!("involvedObject.name=denied,reason={reason}");
        format!("get events --field-selector {of} -o jsonpath={{.items[*].message}}")
    };
    let words = "was denied, reason=\"UnsupportedKeyType\", message=\"use RSA\"";
    s.until(&events("Denied"), |text| text.contains(words));
    s.until(&events("FailedMount"), |text| text.contains("permanently denied"));
    let table = s.kubectl("get podcertificaterequests").ok();
    assert!(table.contains("NODENAME") && table.contains("Denied"), "{table}");
    cluster.down(&[]).ok();
}
