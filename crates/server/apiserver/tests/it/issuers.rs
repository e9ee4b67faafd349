//! Authentication of tokens by JWT issuers and a webhook, including misbehaving ones.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use apiserver::TokenWebhookOptions;
use auth::authn::keys::SigningKey;
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD as BASE64};
use futures_util::future::BoxFuture;
use http::{Request, Response};
use http_body_util::BodyExt as _;
use parking_lot::Mutex;
use pki::{AltName, Authority, Key, KeyAlgorithm};
use serde_json::{Value, json};
use serve::{Body, Handler};

use crate::{
    egress::{Tunnels, select},
    harness::{Answer, Identity, TestServer, listen, start, validity},
};

const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(50);
const WHO: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";

/// A token issuer or authentication webhook with adjustable behavior.
pub(crate) struct Outside {
    url: String,
    authority: Authority,
    mode: Mutex<&'static str>,
    keys: Mutex<Value>,
    fetched: AtomicUsize,
    asked: Mutex<Vec<Value>>,
}

impl Outside {
    async fn start() -> Arc<Self> {
        let algorithm = KeyAlgorithm::EcdsaP256;
        let authority = Authority::create("elsewhere", algorithm, validity()).unwrap();
        let names = vec![AltName::Ip([127, 0, 0, 1].into())];
        let at = Authority::from_parts(authority.cert().clone(), key_of(&authority)).unwrap();
        listen(&at, names, |address, _| Self {
            url: format!("https://{address}"),
            authority,
            mode: Mutex::new(""),
            keys: Mutex::new(json!({"keys": []})),
            fetched: AtomicUsize::new(0),
            asked: Mutex::default(),
        })
        .await
    }

    fn ca(&self) -> String {
        self.authority.cert().to_pem()
    }

    fn set(&self, mode: &'static str) {
        *self.mode.lock() = mode;
    }

    fn show(&self, keys: &[&SigningKey]) {
        let keys: Vec<Value> = keys.iter().map(|key| key.public().jwk()).collect();
        *self.keys.lock() = json!({"keys": keys});
    }

    /// Returns the configuration of this issuer.
    fn entry(&self, more: Value) -> Value {
        let mut entry = json!({
            "issuer": {"url": self.url, "audiences": ["k8s"], "certificateAuthority": self.ca()},
            "claimMappings": {"username": {"claim": "sub", "prefix": "o:"}, "groups": {"claim": "groups", "prefix": ""}},
        });
        for (name, value) in more.as_object().unwrap() {
            entry[name] = value.clone();
        }
        entry
    }

    fn token(&self, key: &SigningKey, with: Value) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let mut claims = json!({"iss": self.url, "aud": "k8s", "sub": "alice", "groups": ["dev"], "exp": now + 600});
        for (name, value) in with.as_object().unwrap() {
            claims[name] = value.clone();
        }
        let header = json!({"alg": key.public().algorithm().name(), "kid": key.public().id()});
        let message =
            format!("{}.{}", BASE64.encode(header.to_string()), BASE64.encode(claims.to_string()));
        let signature = BASE64.encode(key.sign(message.as_bytes()).unwrap());
        format!("{message}.{signature}")
    }

    fn known(&self, path: &str) -> Value {
        match path {
            "/keys" => {
                self.fetched.fetch_add(1, Ordering::Relaxed);
                self.keys.lock().clone()
            }
            _ => json!({"issuer": self.url, "jwks_uri": format!("{}/keys", self.url)}),
        }
    }

    /// Answers a TokenReview. The token starts with the user name.
    fn review(&self, review: &Value) -> Value {
        let token = review["spec"]["token"].as_str().unwrap();
        let status = match token.split_once('-') {
            Some((user, "good")) => {
                json!({"authenticated": true, "user": {"username": user, "groups": ["hooked"]}})
            }
            Some((user, "elsewhere")) => {
                json!({"authenticated": true, "user": {"username": user}, "audiences": ["other"]})
            }
            Some(("", "nobody")) => json!({"authenticated": true, "user": {}}),
            _ => json!({"authenticated": false, "error": "never seen it"}),
        };
        json!({"kind": "TokenReview", "apiVersion": review["apiVersion"], "status": status})
    }
}

fn key_of(authority: &Authority) -> Key {
    Key::from_pem(&authority.key().to_pem().unwrap()).unwrap()
}

impl Handler for Outside {
    fn handle(&self, request: Request<Body>) -> BoxFuture<'_, Response<Body>> {
        Box::pin(async move {
            let path = request.uri().path().to_owned();
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let mode = *self.mode.lock();
            let answered = |text: String| Response::new(client::full(text));
            match mode {
                "hangs" => std::future::pending().await,
                "large" => answered(format!("\"{}\"", "x".repeat(10 << 20))),
                "garbage" => answered("<html>".to_owned()),
                "moved" => {
                    let mut moved = answered(String::new());
                    *moved.status_mut() = http::StatusCode::FOUND;
                    let elsewhere = format!("{}/elsewhere", self.url).parse().unwrap();
                    moved.headers_mut().insert("location", elsewhere);
                    moved
                }
                _ if path == "/review" => {
                    let review: Value = serde_json::from_slice(&body).unwrap();
                    let answer = self.review(&review);
                    self.asked.lock().push(review);
                    answered(answer.to_string())
                }
                _ => answered(self.known(&path).to_string()),
            }
        })
    }
}

fn signing() -> SigningKey {
    let key = Key::generate(KeyAlgorithm::EcdsaP256).unwrap();
    SigningKey::from_pem(key.to_pem().unwrap().as_bytes()).unwrap()
}

fn write(path: &PathBuf, jwt: &[Value]) {
    let config = json!({"kind": "AuthenticationConfiguration", "apiVersion": "apiserver.config.k8s.io/v1", "jwt": jwt});
    std::fs::write(path, config.to_string()).unwrap();
}

/// Starts a server with these issuers, and returns their configuration file.
async fn believing(jwt: &[Value]) -> (TestServer, PathBuf) {
    let path = tempfile::tempdir().unwrap().keep().join("authentication.yaml");
    write(&path, jwt);
    let file = Some(path.clone());
    (start(|config| config.authentication.file = file).await, path)
}

async fn ask(server: &TestServer, token: &str) -> Answer {
    server.tls(Identity::Token(token.to_owned())).post(WHO, &json!({})).await
}

async fn user(server: &TestServer, token: &str) -> Option<Value> {
    let answer = ask(server, token).await;
    (answer.code == 201).then(|| answer.json()["status"]["userInfo"].clone())
}

/// Returns the user of a token, after the server has fetched the issuer's keys.
async fn soon(server: &TestServer, token: &str) -> Value {
    let found =
        rt::retry(PATIENCE, PAUSE, |_: &()| true, || async { user(server, token).await.ok_or(()) });
    found.await.expect("the token is accepted in time")
}

#[tokio::test(flavor = "multi_thread")]
async fn reaches_issuer_through_proxy_of_its_network() {
    let (issuer, key) = (Outside::start().await, signing());
    issuer.show(&[&key]);
    let mut entry = issuer.entry(json!({}));
    entry["issuer"]["egressSelectorType"] = json!("controlplane");
    let path = tempfile::tempdir().unwrap().keep().join("authentication.yaml");
    write(&path, &[entry]);
    let (tunnels, at) = (Tunnels::default(), issuer.url.trim_start_matches("https://"));
    let server = start(|config| {
        tunnels.serve(&select(config, &["controlplane"]), at.parse().ok());
        config.authentication.file = Some(path);
    })
    .await;
    assert_eq!(soon(&server, &issuer.token(&key, json!({}))).await["username"], "o:alice");
    let targets = tunnels.take();
    assert!(!targets.is_empty());
    assert!(targets.iter().all(|line| *line == format!("CONNECT {at} HTTP/1.1")), "{targets:?}");
    server.tasks.shutdown().stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn accepts_tokens_signed_by_issuer_keys() {
    let issuer = Outside::start().await;
    let (one, two, other) = (signing(), signing(), signing());
    issuer.show(&[&one, &two]);
    let rules = json!({"userValidationRules": [{"expression": "!user.username.endsWith('mallory')", "message": "not he"}]});
    let (server, _) = believing(&[issuer.entry(rules)]).await;
    let found = soon(&server, &issuer.token(&one, json!({}))).await;
    assert_eq!(found["username"], "o:alice");
    assert_eq!(found["groups"], json!(["dev", "system:authenticated"]));
    assert!(user(&server, &issuer.token(&two, json!({"sub": "bob"}))).await.is_some());
    for with in [
        json!({"aud": "other"}),
        json!({"exp": 1}),
        json!({"nbf": 99_999_999_999_u64}),
        json!({"iss": "https://nobody.example"}),
        json!({"sub": "mallory"}),
        json!({"sub": 3}),
    ] {
        ask(&server, &issuer.token(&one, with)).await.refused(401, "Unauthorized");
    }
    // Tokens with an invalid signature cause a fetch of keys once in a while, not every time.
    let before = issuer.fetched.load(Ordering::Relaxed);
    for _ in 0..20 {
        ask(&server, &issuer.token(&other, json!({}))).await.refused(401, "Unauthorized");
    }
    assert!(issuer.fetched.load(Ordering::Relaxed) - before < 10);
    // The first token signed with a new key causes a fetch. Tokens of a removed key are rejected.
    issuer.show(&[&other]);
    let found = soon(&server, &issuer.token(&other, json!({"sub": "carol"}))).await;
    assert_eq!(found["username"], "o:carol");
    ask(&server, &issuer.token(&one, json!({}))).await.refused(401, "Unauthorized");
    // If the issuer fails, tokens signed with known keys are still accepted.
    for mode in ["garbage", "large", "moved"] {
        issuer.set(mode);
        assert!(user(&server, &issuer.token(&other, json!({}))).await.is_some(), "{mode}");
        ask(&server, &issuer.token(&one, json!({}))).await.refused(401, "Unauthorized");
    }
    let review = json!({"spec": {"token": issuer.token(&other, json!({}))}});
    let path = "/apis/authentication.k8s.io/v1/tokenreviews";
    let status = server.admin().post(path, &review).await.ok()["status"].clone();
    assert_eq!(
        (&status["authenticated"], &status["user"]["username"]),
        (&json!(true), &json!("o:alice"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn tolerates_misbehaving_issuer() {
    let key = signing();
    for mode in ["hangs", "large", "garbage", "moved"] {
        let (bad, good) = (Outside::start().await, Outside::start().await);
        bad.set(mode);
        good.show(&[&key]);
        let (server, _) = believing(&[bad.entry(json!({})), good.entry(json!({}))]).await;
        soon(&server, &good.token(&key, json!({}))).await;
        ask(&server, &bad.token(&key, json!({}))).await.refused(401, "Unauthorized");
        let account = json!({"metadata": {"name": "default"}});
        let accounts = "/api/v1/namespaces/default/serviceaccounts";
        server.admin().post(accounts, &account).await.ok();
        let token = server.powerful_token("default").await;
        assert!(user(&server, &token).await.is_some(), "{mode}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reloads_changed_configuration() {
    let (first, second, key) = (Outside::start().await, Outside::start().await, signing());
    first.show(&[&key]);
    second.show(&[&key]);
    let (server, path) = believing(&[first.entry(json!({}))]).await;
    let (one, two) = (first.token(&key, json!({})), second.token(&key, json!({})));
    soon(&server, &one).await;
    let told = async |status: &str| {
        let line = format!("status=\"{status}\"}}");
        let wanted = "apiserver_authentication_config_controller_automatic_reloads_total{";
        let page = server.admin().get("/metrics").await.body;
        let page = String::from_utf8(page.to_vec()).unwrap();
        page.lines().any(|found| found.starts_with(wanted) && found.contains(&line))
    };
    let wait = async |status: &str| {
        rt::retry(
            PATIENCE,
            PAUSE,
            |_: &()| true,
            || async { told(status).await.then_some(()).ok_or(()) },
        )
        .await
    };
    std::fs::write(&path, "jwt: [").unwrap();
    wait("failure").await.expect("a broken file is told");
    assert!(user(&server, &one).await.is_some());
    write(&path, &[second.entry(json!({}))]);
    wait("success").await.expect("a good file is taken");
    assert!(user(&server, &two).await.is_some());
    ask(&server, &one).await.refused(401, "Unauthorized");
}

#[tokio::test(flavor = "multi_thread")]
async fn authenticates_tokens_by_webhook() {
    let hook = Outside::start().await;
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = directory.path().join("hook.conf");
    let ca = base64::engine::general_purpose::STANDARD.encode(hook.ca());
    let config = json!({
        "clusters": [{"name": "c", "cluster": {"server": format!("{}/review", hook.url), "certificate-authority-data": ca}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}], "current-context": "x",
    });
    std::fs::write(&kubeconfig, config.to_string()).unwrap();
    let ttl = Duration::from_secs(600);
    let webhook = TokenWebhookOptions { kubeconfig, version: "v1".to_owned(), ttl };
    let server = start(|config| config.authentication.webhook = Some(webhook)).await;
    let bob = user(&server, "bob-good").await.unwrap();
    assert_eq!(
        (&bob["username"], &bob["groups"]),
        (&json!("bob"), &json!(["hooked", "system:authenticated"]))
    );
    // Responses are cached, failed calls are not.
    assert!(user(&server, "bob-good").await.is_some());
    assert_eq!(hook.asked.lock().len(), 1);
    for token in ["bob-bad", "bob-elsewhere", "-nobody"] {
        ask(&server, token).await.refused(401, "Unauthorized");
    }
    for mode in ["garbage", "large", "moved"] {
        hook.set(mode);
        ask(&server, "carol-good").await.refused(401, "Unauthorized");
        assert!(user(&server, "bob-good").await.is_some(), "{mode}");
    }
    hook.set("");
    assert!(user(&server, "carol-good").await.is_some());
}
