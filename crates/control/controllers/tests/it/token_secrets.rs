//! Secrets with tokens of service accounts.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use client::Resource;
use serde_json::{Value, json};
use testkit::until;

use crate::api::Cluster;

fn secret(name: &str, kind: &str, account: &str) -> Value {
    let annotations = json!({"kubernetes.io/service-account.name": account});
    json!({"metadata": {"name": name, "namespace": "default", "annotations": annotations}, "type": kind})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn secrets_follow_their_service_account() {
    let config = controllers::Config {
        token_key: Some(rcgen::KeyPair::generate().unwrap().serialize_pem()),
        root_ca: Some("the CA".into()),
        controllers: vec!["serviceaccount-token-controller".into()],
        ..controllers::Config::default()
    };
    let cluster = Cluster::start(config).await;
    let (accounts, secrets) = (&Resource::SERVICE_ACCOUNTS, &Resource::SECRETS);
    let account = json!({"metadata": {"name": "robot", "namespace": "default"}});
    let account = cluster.create(accounts, account).await;
    let kind = "kubernetes.io/service-account-token";
    cluster.create(secrets, secret("token", kind, "robot")).await;
    cluster.create(secrets, secret("other", "Opaque", "robot")).await;
    cluster.create(secrets, secret("orphan", kind, "nobody")).await;
    let get = async |name: &str| cluster.get(secrets, "default", name).await;
    until("the Secret is filled", || async {
        get("token").await.is_some_and(|secret| secret["data"]["token"].is_string())
    })
    .await;
    let filled = get("token").await.unwrap();
    let value = |field: &str| {
        let encoded = filled["data"][field].as_str().unwrap();
        String::from_utf8(STANDARD.decode(encoded).unwrap()).unwrap()
    };
    assert_eq!((value("namespace").as_str(), value("ca.crt").as_str()), ("default", "the CA"));
    assert_eq!(value("token").split('.').count(), 3);
    let uid = &filled["metadata"]["annotations"]["kubernetes.io/service-account.uid"];
    assert_eq!(*uid, account["metadata"]["uid"]);
    until("the orphan is deleted", || async { get("orphan").await.is_none() }).await;
    // A client that removes the token gets another one.
    let empty = json!({"data": {"token": null}});
    cluster.merge(secrets, "token", empty).await;
    until("the Secret is filled again", || async {
        get("token").await.is_some_and(|secret| secret["data"]["token"].is_string())
    })
    .await;
    cluster.user.delete(accounts, "default", "robot", &Default::default()).await.unwrap();
    until("the Secret follows its account", || async { get("token").await.is_none() }).await;
    let other = get("other").await.unwrap();
    assert!(other["data"].is_null(), "{other}");
    cluster.stop().await;
}
