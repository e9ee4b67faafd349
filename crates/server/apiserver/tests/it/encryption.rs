//! Encryption at rest: the stored values, and reads without the key.

use std::{path::Path, sync::Arc, time::Duration};

use encryption::Encryption;
use serde_json::{Value, json};

use crate::harness::{Api, TestServer, start};

const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const SECRET: &str = "/api/v1/namespaces/default/secrets/one";
const KEY: &str = "/registry/secrets/default/one";

fn configure(at: &Path, providers: &str) {
    let text = format!(
        "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: [secrets, pandas.example.com]\n  providers: [{providers}]\n"
    );
    std::fs::write(at, text).unwrap();
}

fn secretbox(name: &str, of: u8) -> String {
    let secret = data_encoding::BASE64.encode(&[of; 32]);
    format!("{{secretbox: {{keys: [{{name: {name}, secret: {secret}}}]}}}}")
}

/// Starts another server on the store of the first, with an encryption configuration.
async fn beside(first: &TestServer, file: &Path) -> (TestServer, Arc<Encryption>) {
    let tasks = first.tasks.clone();
    let loaded = Encryption::load(file.to_owned(), true, tasks, Arc::new(rt::SystemClock)).await;
    let encryption = Arc::new(loaded.unwrap());
    let store = apiserver::encrypted(first.store.clone(), encryption.clone());
    let own = encryption.clone();
    (first.beside_on(store, |config| config.encryption = Some(own)).await, encryption)
}

async fn stored(first: &TestServer) -> Vec<u8> {
    first.store.get(KEY).await.unwrap().0.unwrap().value.to_vec()
}

fn secret() -> Value {
    json!({"metadata": {"name": "one"}, "stringData": {"password": "hunter2"}})
}

async fn until_read(api: &Api) -> Value {
    let (patience, pause) = (Duration::from_secs(10), Duration::from_millis(50));
    let ask = || async {
        let answer = api.get(SECRET).await;
        if answer.code == 200 { Ok(answer.ok()) } else { Err(answer) }
    };
    rt::retry(patience, pause, |_| true, ask).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn encrypts_and_rewrites_secrets_with_first_key() {
    let first = start(|_| {}).await;
    let file = first.directory.path().join("encryption.yaml");
    configure(&file, &secretbox("a", 1));
    let (server, encryption) = beside(&first, &file).await;
    let api = server.admin();
    let made = api.post(SECRETS, &secret()).await.ok();
    assert!(stored(&first).await.starts_with(b"k8s:enc:secretbox:v1:a:"));
    assert_eq!(api.get(SECRET).await.ok()["data"]["password"], "aHVudGVyMg==");
    // A write without a change is skipped.
    let before = stored(&first).await;
    let same = api.put(SECRET, &made).await.ok();
    assert_eq!(same["metadata"]["resourceVersion"], made["metadata"]["resourceVersion"]);
    assert_eq!(stored(&first).await, before);
    // If another key comes first in the configuration, the object is written again.
    configure(&file, &format!("{}, {}", secretbox("b", 2), secretbox("a", 1)));
    assert!(encryption.reload(&file).await.unwrap());
    let again = api.put(SECRET, &made).await.ok();
    assert_ne!(again["metadata"]["resourceVersion"], made["metadata"]["resourceVersion"]);
    assert!(stored(&first).await.starts_with(b"k8s:enc:secretbox:v1:b:"));
    // Resources that the configuration does not name are not encrypted.
    let config = json!({"metadata": {"name": "one"}});
    api.post("/api/v1/namespaces/default/configmaps", &config).await.ok();
    let open = first.store.get("/registry/configmaps/default/one").await.unwrap().0.unwrap();
    assert!(open.value.starts_with(b"{"));
    for (page, code) in [("healthz", 200), ("readyz", 200), ("livez", 404)] {
        assert_eq!(api.get(&format!("/{page}/kms-providers")).await.code, code, "{page}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_missing_key_without_data_loss() {
    let first = start(|_| {}).await;
    let file = first.directory.path().join("encryption.yaml");
    configure(&file, &secretbox("a", 1));
    let (server, _) = beside(&first, &file).await;
    let made = server.admin().post(SECRETS, &secret()).await.ok();
    let other = first.directory.path().join("other.yaml");
    configure(&other, &secretbox("a", 2));
    let (wrong, encryption) = beside(&first, &other).await;
    let api = wrong.admin();
    let why = "Internal error occurred: output array was not large enough for encryption";
    for answer in [
        api.get(SECRET).await,
        api.put(SECRET, &made).await,
        api.patch(SECRET, "merge", &json!({"data": null})).await,
        api.patch(
            &format!("{SECRET}?fieldManager=tests"),
            "apply",
            &json!({"apiVersion": "v1", "kind": "Secret"}),
        )
        .await,
        api.send("DELETE", SECRET, &[], "").await,
        api.send("DELETE", SECRETS, &[], "").await,
        api.get(&format!("{SECRETS}?watch=true&timeoutSeconds=1")).await,
    ] {
        let told = answer.refused(500, "InternalError");
        assert!(told.starts_with("Internal error occurred: "), "{told}");
    }
    assert_eq!(api.get(SECRET).await.refused(500, "InternalError"), why);
    api.get(SECRETS).await.refused(500, "InternalError");
    api.post(SECRETS, &secret()).await.refused(409, "AlreadyExists");
    // Other kinds are unaffected, and the secret is intact.
    api.get("/api/v1/namespaces/default/configmaps").await.ok();
    assert_eq!(server.admin().get(SECRET).await.ok(), made);
    // The key is added to the configuration.
    configure(&other, &secretbox("a", 1));
    assert!(encryption.reload(&other).await.unwrap());
    assert_eq!(until_read(&api).await, made);
    // Encryption does not replace authorization.
    let stranger = wrong.user("somebody", &[]);
    stranger.get(SECRET).await.refused(403, "Forbidden");
}
