//! Attacks with certificate requests: a node's kubeconfig gives no other identity than that node's.

use e2e::{Host, Machines, Output, init, is_etcd_installed, share_machine, until};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};

/// The credentials that an intruder on a machine finds.
const KUBELET_CONF: &str = "/etc/kubernetes/kubelet.conf";
const NODE_SIGNER: &str = "kubernetes.io/kube-apiserver-client-kubelet";
const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client";
const MANAGER: &str = "system:kube-controller-manager";

/// Returns a PEM certificate request whose subject has this group and these common names, each in its own RDN.
fn request(key: &KeyPair, group: &str, names: &[&str]) -> String {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, group);
    // rcgen keeps one name per type, so the second common name is given by its OID.
    let types = [DnType::CommonName, DnType::CustomDnType(vec![2, 5, 4, 3])];
    for (kind, name) in types.into_iter().zip(names) {
        params.distinguished_name.push(kind, *name);
    }
    params.serialize_request(key).expect("a request").pem().expect("PEM")
}

/// Creates a CertificateSigningRequest as the user of a kubeconfig.
fn post(host: &Host<'_>, kubeconfig: &str, name: &str, signer: &str, pem: &str) -> Output {
    let file = host.write(&format!("{name}.csr"), pem);
    let encoded = host.run("base64", &["-w0", &file]).ok();
    let object = format!(
        r#"{{"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
            "metadata": {{"name": "{name}"}}, "spec": {{"signerName": "{signer}",
            "request": "{encoded}", "usages": ["client auth", "digital signature"]}}}}"#
    );
    host.kubectl_with(&["--kubeconfig", kubeconfig, "create", "-f", "-"], &object)
}

/// Runs kubectl with the certificate that was issued for a request.
fn with_certificate(host: &Host<'_>, name: &str, key: &KeyPair, line: &str) -> Output {
    let path = "-o jsonpath={.status.certificate}";
    let certificate = until(&format!("the certificate of {name}"), || {
        host.kubectl(&format!("get csr {name} {path}")).ok_if(|text| !text.is_empty())
    });
    let encoded = host.write(&format!("{name}.b64"), &certificate);
    let certificate = host.run("base64", &["-d", &encoded]).ok();
    let certificate = host.write(&format!("{name}.crt"), &certificate);
    let key = host.write(&format!("{name}.key"), &key.serialize_pem());
    // Replace the user in the administrator's kubeconfig.
    let mut config: serde_json::Value =
        serde_json::from_str(&host.kubectl("config view --raw --minify -o json").ok()).unwrap();
    config["users"][0]["user"] =
        serde_json::json!({"client-certificate": certificate, "client-key": key});
    let config = host.write(&format!("{name}.conf"), &config.to_string());
    host.kubectl(&format!("--kubeconfig {config} {line}"))
}

#[test]
fn signs_certificate_requests_of_a_node_for_itself_only() {
    let _turn = share_machine();
    if !is_etcd_installed() {
        return;
    }
    let machines = Machines::new("attack-identity");
    let host = machines.start("alpha", 1);
    init(&host, "");
    let key = KeyPair::generate().expect("a key");
    let (node, group) = ("system:node:alpha", "system:nodes");

    // The node's own request is approved and signed automatically. Its certificate gives no access to Secrets.
    let honest = request(&key, group, &[node]);
    post(&host, KUBELET_CONF, "honest", NODE_SIGNER, &honest).ok();
    let who = with_certificate(&host, "honest", &key, "auth whoami").ok();
    assert!(who.contains(node), "{who}");
    let refused = with_certificate(&host, "honest", &key, "get secrets -A").refused();
    assert!(
        refused.contains(&format!("User \"{node}\" cannot list resource \"secrets\"")),
        "{refused}"
    );

    let other = request(&key, group, &["system:node:beta"]);
    let manager = request(&key, group, &[MANAGER]);
    for (name, pem, wanted) in [
        ("node-first", request(&key, group, &[node, MANAGER]), "its subject has 2 common names"),
        ("node-last", request(&key, group, &[MANAGER, node]), "its subject has 2 common names"),
        ("twice", request(&key, group, &[node, node]), "its subject has 2 common names"),
        (
            "two-blocks",
            format!("{honest}{manager}"),
            "something after the CERTIFICATE REQUEST block",
        ),
        (
            "two-blocks-turned",
            format!("{manager}{honest}"),
            "something after the CERTIFICATE REQUEST block",
        ),
        (
            "text-before",
            format!("{}\n{honest}", manager.replace("REQUEST", "")),
            "something before the CERTIFICATE REQUEST block",
        ),
        ("another-node", other, "can only create a node CSR with CN=system:node:alpha"),
        ("the-manager", manager.clone(), "can only create a node CSR with CN=system:node:alpha"),
    ] {
        let output = post(&host, KUBELET_CONF, name, NODE_SIGNER, &pem).refused();
        assert!(output.contains(wanted), "{name}: {wanted:?} is not in {output}");
    }

    // A user whose requests an administrator approves tries to hide the group system:masters from admission.
    let masters = request(&key, "system:masters", &["eve"]);
    let harmless = request(&key, "dev", &["eve"]);
    for pem in [format!("{harmless}{masters}"), format!("{masters}{harmless}"), masters.clone()] {
        post(&host, "/etc/kubernetes/admin.conf", "hidden", CLIENT_SIGNER, &pem).refused();
    }
    post(&host, "/etc/kubernetes/admin.conf", "eve", CLIENT_SIGNER, &harmless).ok();
    host.kubectl("certificate approve eve").ok();
    let who = with_certificate(&host, "eve", &key, "auth whoami").ok();
    assert!(who.contains("eve") && !who.contains("system:masters"), "{who}");

    let names = host.kubectl("get csr -o name").ok();
    let kept: Vec<&str> = names.lines().filter(|name| !name.contains("/csr-")).collect();
    assert_eq!(kept.len(), 2, "only the two honest requests are kept: {kept:?}");
}
