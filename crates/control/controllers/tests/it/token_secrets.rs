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
    let listed = ["token", "ssh-key"].map(|name| json!({ "name": name }));
    let account = json!({"metadata": {"name": "robot", "namespace": "default"}, "secrets": listed});
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
    cluster.user.delete(secrets, "default", "token", &Default::default()).await.unwrap();
    until("the account does not list the Secret", || async {
        let account = cluster.get(accounts, "default", "robot").await.unwrap();
        account["secrets"] == json!([{"name": "ssh-key"}])
    })
    .await;
    cluster.create(secrets, secret("token", kind, "robot")).await;
    cluster.user.delete(accounts, "default", "robot", &Default::default()).await.unwrap();
    until("the Secret follows its account", || async { get("token").await.is_none() }).await;
    let other = get("other").await.unwrap();
    assert!(other["data"].is_null(), "{other}");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unused_tokens_of_former_releases_are_invalidated_and_deleted() {
    let config = controllers::Config {
        controllers: vec!["legacy-serviceaccount-token-cleaner-controller".into()],
        token_clean_up_period: std::time::Duration::ZERO,
        ..controllers::Config::default()
    };
    let api = testkit::RealApi::start().await.unwrap();
    let user = api.admin();
    let create = async |resource: &Resource, object: Value| {
        let namespace = object["metadata"]["namespace"].as_str().unwrap().to_owned();
        user.create::<_, Value>(resource, &namespace, &object).await.unwrap()
    };
    let listed = ["unused", "marked", "mounted"].map(|name| json!({ "name": name }));
    let account = json!({"metadata": {"name": "robot", "namespace": "default"}, "secrets": listed});
    create(&Resource::SERVICE_ACCOUNTS, account).await;
    let kind = "kubernetes.io/service-account-token";
    let mark = "kubernetes.io/legacy-token-invalid-since";
    for name in ["unused", "marked", "mounted", "by-hand"] {
        let mut object = secret(name, kind, "robot");
        if name == "marked" {
            object["metadata"]["labels"] = json!({mark: "2020-01-01"});
        }
        create(&Resource::SECRETS, object).await;
    }
    let volume = json!({"name": "v", "secret": {"secretName": "mounted"}});
    let spec = json!({"serviceAccountName": "robot", "containers": [{"name": "c", "image": "i"}], "volumes": [volume]});
    let pod = json!({"metadata": {"name": "p", "namespace": "default"}, "spec": spec});
    create(&Resource::PODS, pod).await;
    let tracking = "kube-apiserver-legacy-service-account-token-tracking";
    let at = client::PatchTarget { namespace: "kube-system", name: tracking, subresource: "" };
    let long_ago = json!({"data": {"since": "2020-01-01"}});
    let (maps, merge) = (&Resource::CONFIG_MAPS, client::PatchKind::Merge);
    until("tracking has begun", || async {
        user.patch::<Value>(maps, at, merge, &long_ago).await.is_ok()
    })
    .await;
    crate::api::start_controllers(&api.server(), config, &api.tasks());
    let get = async |name: &str| user.get::<Value>(&Resource::SECRETS, "default", name).await.ok();
    until("the marked Secret is deleted", || async { get("marked").await.is_none() }).await;
    until("the unused Secret is marked", || async {
        let unused = get("unused").await.unwrap();
        unused["metadata"]["labels"][mark].as_str().is_some_and(|day| day.len() == 10)
    })
    .await;
    for name in ["mounted", "by-hand"] {
        assert!(get(name).await.unwrap()["metadata"]["labels"].is_null(), "{name}");
    }
    assert!(api.stop().await.unfinished.is_empty());
}
