//! Tests of TLS with client certificates, as kubeadm sets etcd up.

use std::{path::Path, time::Duration};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use store::Store;
use store_etcd::{Etcd, Options, TlsFiles};

use crate::{
    put,
    server::{self, Server},
};

/// Creates a CA and two of its certificates in `directory`.
fn write_pki(directory: &Path) {
    let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    std::fs::write(directory.join("ca.crt"), ca.pem()).unwrap();
    for (name, host) in [("server", "127.0.0.1"), ("client", "client")] {
        let key = KeyPair::generate().unwrap();
        let certificate =
            CertificateParams::new([host.to_owned()]).unwrap().signed_by(&key, &ca).unwrap();
        std::fs::write(directory.join(format!("{name}.crt")), certificate.pem()).unwrap();
        std::fs::write(directory.join(format!("{name}.key")), key.serialize_pem()).unwrap();
    }
}

#[tokio::test]
async fn requires_client_certificate_and_verifies_server() {
    if !server::is_there() {
        return;
    }
    let pki = tempfile::tempdir().unwrap();
    let other = tempfile::tempdir().unwrap();
    write_pki(pki.path());
    write_pki(other.path());
    let file = |name: &str| pki.path().join(name);
    let text = |name: &str| file(name).display().to_string();
    let server = Server::start_with(&[
        "--cert-file",
        &text("server.crt"),
        "--key-file",
        &text("server.key"),
        "--trusted-ca-file",
        &text("ca.crt"),
        "--client-cert-auth",
    ]);
    let connect = |tls, seconds| {
        Etcd::connect(Options {
            patience: Duration::from_secs(seconds),
            ..Options::new(vec![server.url.clone()], Some(tls))
        })
    };
    let identity = Some((file("client.crt"), file("client.key")));
    let good = TlsFiles { ca: file("ca.crt"), identity: identity.clone() };
    let store = connect(good, 30).await.unwrap();
    store.write(put("/a", "1")).await.unwrap();
    assert_eq!(store.get("/a").await.unwrap().0.unwrap().value, "1");

    let anonymous = TlsFiles { ca: file("ca.crt"), identity: None };
    let error = connect(anonymous, 1).await.err().unwrap().to_string();
    assert!(error.contains("certificate"), "{error}");
    let wrong_ca = TlsFiles { ca: other.path().join("ca.crt"), identity };
    let error = connect(wrong_ca, 1).await.err().unwrap().to_string();
    assert!(error.contains("invalid peer certificate"), "{error}");
    let absent = TlsFiles { ca: file("absent.crt"), identity: None };
    let error = connect(absent, 1).await.err().unwrap().to_string();
    assert!(error.contains("absent.crt"), "{error}");
}
