//! Servers with minimal flags, and servers that disallow privileged containers.

use std::path::PathBuf;

use api_meta::Tree as _;
use client::Resource;
use pki::{AltName, Subject};
use serde_json::{Value, json};

use crate::harness::{Api, Identity, TestServer, start, validity};

/// Returns the claims of a token without verification.
fn claims(token: &str) -> Value {
    let payload = token.split('.').nth(1).unwrap();
    let decoded = data_encoding::BASE64URL_NOPAD.decode(payload.as_bytes()).unwrap();
    serde_json::from_slice(&decoded).unwrap()
}

fn certificate(directory: &std::path::Path) -> (PathBuf, PathBuf) {
    (directory.join("own/apiserver.crt"), directory.join("own/apiserver.key"))
}

/// Starts a server with only the flags that upstream requires, on the store of `first`.
async fn bare(first: &TestServer) -> TestServer {
    let (cert, key) = certificate(first.directory.path());
    first
        .beside_with(|config| {
            (config.tls_certificate, config.tls_key) = (cert, key);
            (config.self_signed, config.client_ca, config.kubelet_client) = (true, None, None);
        })
        .await
}

/// Returns a client that trusts the server's self-signed certificate.
fn holding(server: &TestServer, identity: Identity) -> Api {
    let (cert, _) = certificate(server.directory.path());
    server.tls_trusting(std::fs::read(cert).unwrap(), identity)
}

#[tokio::test(flavor = "multi_thread")]
async fn creates_self_signed_certificate() {
    let first = start(|_| {}).await;
    let admin = first.admin();
    let namespace = admin.namespace().await;
    let token = first.powerful_token(&namespace).await;
    let server = bare(&first).await;
    let (cert, _) = certificate(first.directory.path());
    let chain = pki::read_certs(&cert).unwrap();
    let names = ["kubernetes.default.svc", "localhost"].map(AltName::dns);
    let addresses = [[10, 0, 0, 1], [10, 96, 0, 1]].map(|address| AltName::Ip(address.into()));
    chain[0].check_names(names.iter().chain(&addresses)).unwrap();

    // A client that trusts the file can connect; a client that trusts the cluster's authority cannot.
    let known = holding(&server, Identity::Token(token.clone()));
    assert_eq!(known.get("/api/v1/namespaces").await.code, 200);
    let stranger = server.tls(Identity::Token(token)).0;
    assert!(stranger.get::<Value>(&Resource::NAMESPACES, "", "default").await.is_err());
    // Without a client authority, an administrator's certificate authenticates no user.
    let subject = Subject::new("admin").in_group("system:masters");
    let certified = holding(&server, Identity::issued(&first.authority, subject, validity()));
    let message = certified.get("/api/v1/namespaces").await.refused(403, "Forbidden");
    assert!(message.contains("\"system:anonymous\""), "{message}");

    // A restart reuses the certificate.
    let before = std::fs::read(&cert).unwrap();
    let again = bare(&first).await;
    assert_eq!(std::fs::read(&cert).unwrap(), before);
    for server in [first, server, again] {
        server.tasks.shutdown().stop();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn accepts_tokens_of_additional_issuers() {
    let (old, new) = ("https://kubernetes.default.svc.cluster.local", "https://new.example");
    let first = start(|_| {}).await;
    let namespace = first.admin().namespace().await;
    let token = first.powerful_token(&namespace).await;
    assert_eq!(claims(&token)["iss"], old);
    let issuers = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
    let both = first.beside_with(|c| c.service_account_issuers = issuers(&[new, old])).await;
    assert_eq!(both.tls(Identity::Token(token.clone())).get("/api/v1/namespaces").await.code, 200);
    let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/default/token");
    let issued = both.admin().post(&path, &json!({"spec": {}})).await.ok();
    let issued = claims(issued.text("status.token"));
    assert_eq!((&issued["iss"], &issued["aud"]), (&json!(new), &json!([new, old])));
    let only = first.beside_with(|c| c.service_account_issuers = issuers(&[new])).await;
    let strange = only.tls(Identity::Token(token)).get("/api/v1/namespaces").await;
    strange.refused(401, "Unauthorized");
    for server in [first, both, only] {
        server.tasks.shutdown().stop();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rejects_privileged_containers_if_disallowed() {
    let pod = |privileged: bool| {
        let context = json!({"privileged": privileged});
        json!({"containers": [{"name": "c", "image": "c", "securityContext": context}]})
    };
    let server = start(|config| config.allow_privileged = false).await;
    let admin = server.admin();
    let namespace = admin.namespace().await;
    let pods = format!("/api/v1/namespaces/{namespace}/pods");
    let meta = |name: &str| json!({"name": name});
    let refused = async |path: &str, object: Value| {
        let message = admin.post(path, &object).await.refused(422, "Invalid");
        assert!(
            message.contains("securityContext.privileged: Forbidden: disallowed by cluster policy"),
            "{message}"
        );
        message
    };
    let message = refused(&pods, json!({"metadata": meta("a"), "spec": pod(true)})).await;
    assert!(message.contains(": spec.containers[0].securityContext"), "{message}");
    admin.post(&pods, &json!({"metadata": meta("a"), "spec": pod(false)})).await.ok();
    let mut init = pod(false);
    init["initContainers"] = pod(true)["containers"].clone();
    init["initContainers"][0]["name"] = "i".into();
    refused(&pods, json!({"metadata": meta("b"), "spec": init})).await;
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": pod(true)});
    let spec = json!({"selector": {"matchLabels": {"a": "b"}}, "template": template});
    let deployments = format!("/apis/apps/v1/namespaces/{namespace}/deployments");
    let message = refused(&deployments, json!({"metadata": meta("d"), "spec": spec})).await;
    assert!(message.contains(": spec.template.spec.containers[0]."), "{message}");
    let mut job = template.clone();
    job["spec"]["restartPolicy"] = "Never".into();
    let spec = json!({"schedule": "@daily", "jobTemplate": {"spec": {"template": job}}});
    let crons = format!("/apis/batch/v1/namespaces/{namespace}/cronjobs");
    refused(&crons, json!({"metadata": meta("j"), "spec": spec})).await;
    let debugger = json!({"spec": {"ephemeralContainers": [
        {"name": "e", "image": "e", "securityContext": {"privileged": true}},
    ]}});
    let path = format!("{pods}/a/ephemeralcontainers");
    let answer = admin.patch(&path, "strategic", &debugger).await;
    let message = answer.refused(422, "Invalid");
    assert!(message.contains("ephemeralContainers[0].securityContext.privileged"), "{message}");

    // Existing privileged Pods may still update their status.
    let free = server.beside_with(|config| config.allow_privileged = true).await;
    free.admin().post(&pods, &json!({"metadata": meta("p"), "spec": pod(true)})).await.ok();
    let status = json!({"status": {"phase": "Running"}});
    admin.patch(&format!("{pods}/p/status"), "merge", &status).await.ok();
    for server in [server, free] {
        server.tasks.shutdown().stop();
    }
}
