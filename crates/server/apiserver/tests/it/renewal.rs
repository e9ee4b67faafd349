//! Renewal of certificates in use.

use std::path::Path;

use api_config::{
    Kubeconfig,
    kubeconfig::{Cluster, User},
};
use client::Client;
use pki::{AltName, Authority, KeyAlgorithm, LeafSpec, Subject, Usage};
use serde_json::json;

use crate::harness::{Api, start, validity};

const ALGORITHM: KeyAlgorithm = KeyAlgorithm::EcdsaP256;

/// Writes a kubeconfig for `name` with a certificate of `signer`, which trusts `trusted`.
fn kubeconfig(path: &Path, server: &str, signer: &Authority, trusted: &Authority, name: &str) {
    let subject = Subject::new(name).in_group("system:masters");
    let spec = LeafSpec { subject, alt_names: Vec::new(), usage: Usage::Client };
    let (cert, key) = signer.issue_new(&spec, ALGORITHM, validity()).unwrap();
    let cluster = Cluster::with_ca(server, &trusted.cert().to_pem());
    let user = User::with_cert(&cert.to_pem(), &key.to_pem().unwrap());
    Kubeconfig::single("test", cluster, name, user).write(path).unwrap();
}

async fn whoami(client: &Client) -> Result<String, u16> {
    let review = json!({"kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1"});
    let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let answer = Api(client.clone()).post(path, &review).await;
    if answer.code >= 300 {
        return Err(answer.code);
    }
    Ok(answer.json()["status"]["userInfo"]["username"].as_str().unwrap().to_owned())
}

#[tokio::test]
async fn uses_renewed_client_certificate() {
    let server = start(|_| {}).await;
    let url = format!("https://{}", server.api.address());
    let path = server.directory.path().join("client.conf");
    let authority = &server.authority;
    kubeconfig(&path, &url, authority, authority, "before");
    let client = Client::from_kubeconfig_file(&path, "test").unwrap();
    assert_eq!(whoami(&client).await.as_deref(), Ok("before"));
    let nodes = client::Resource::NODES;
    let options = client::ListOptions::default();
    let mut watch = client.watch(&nodes, "", &options, "").await.unwrap();

    kubeconfig(&path, &url, authority, authority, "after");
    assert_eq!(whoami(&client).await.as_deref(), Ok("after"));
    // The watch on the connection with the old certificate is not interrupted.
    let node = json!({"metadata": {"name": "seen"}});
    client.create::<_, serde_json::Value>(&nodes, "", &node).await.unwrap();
    assert!(matches!(watch.next().await, Some(Ok(client::WatchEvent::Added(_)))));

    std::fs::write(&path, "half of a kubeconfi").unwrap();
    assert_eq!(whoami(&client).await.as_deref(), Ok("after"));
    server.tasks.shutdown().stop();
}

#[tokio::test]
async fn uses_renewed_serving_certificate() {
    let server = start(|_| {}).await;
    let at = server.directory.path();
    let url = format!("https://{}", server.api.address());
    // A different authority for the serving certificate, to show which one is served.
    let other = Authority::create("other", ALGORITHM, validity()).unwrap();
    kubeconfig(&at.join("old.conf"), &url, &server.authority, &server.authority, "old");
    kubeconfig(&at.join("new.conf"), &url, &server.authority, &other, "new");
    let client = |file: &str| Client::from_kubeconfig_file(&at.join(file), "test").unwrap();
    let old = client("old.conf");
    assert_eq!(whoami(&old).await.as_deref(), Ok("old"));

    let alt_names = vec![AltName::Ip([127, 0, 0, 1].into())];
    let spec = LeafSpec { subject: Subject::new("apiserver"), alt_names, usage: Usage::Server };
    let (cert, key) = other.issue_new(&spec, ALGORITHM, validity()).unwrap();
    pki::write_key(&at.join("apiserver.key"), &key).unwrap();
    // A key without its certificate changes nothing.
    assert_eq!(whoami(&client("old.conf")).await.as_deref(), Ok("old"));
    pki::write_cert(&at.join("apiserver.crt"), &cert).unwrap();
    assert_eq!(whoami(&client("new.conf")).await.as_deref(), Ok("new"));
    assert_eq!(whoami(&old).await.as_deref(), Ok("old"), "an open connection goes on");
    server.tasks.shutdown().stop();
}
