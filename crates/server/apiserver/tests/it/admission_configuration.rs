//! The admission configuration file: plugins' configurations, and a misbehaving image policy webhook.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use futures_util::future::BoxFuture;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use parking_lot::Mutex;
use pki::{AltName, Authority, KeyAlgorithm};
use serde_json::{Value, json};
use serve::{Body, Handler};

use crate::harness::{TestServer, listen, pod, start, validity};

/// A webhook that records the requests and their tokens.
struct Hook {
    server: String,
    ca: String,
    mode: Mutex<&'static str>,
    asked: Mutex<Vec<(String, Value)>>,
    calls: AtomicUsize,
}

impl Hook {
    async fn start() -> Arc<Self> {
        let authority = Authority::create("hooks", KeyAlgorithm::EcdsaP256, validity()).unwrap();
        let ca = STANDARD.encode(authority.cert().to_pem());
        let names = vec![AltName::Ip([127, 0, 0, 1].into())];
        listen(&authority, names, |address, _| Self {
            server: format!("https://{address}"),
            ca,
            mode: Mutex::new("allow"),
            asked: Mutex::default(),
            calls: AtomicUsize::new(0),
        })
        .await
    }

    /// Writes a kubeconfig for this webhook with a user whose token is `secret`.
    fn kubeconfig(&self, at: &Path) -> PathBuf {
        let path = at.join("hook.conf");
        let config = json!({
            "clusters": [{"name": "c", "cluster": {"server": format!("{}/images", self.server), "certificate-authority-data": self.ca}}],
            "users": [{"name": "*", "user": {"token": "secret"}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "*"}}], "current-context": "x",
        });
        std::fs::write(&path, config.to_string()).unwrap();
        path
    }

    fn set(&self, mode: &'static str) {
        *self.mode.lock() = mode;
    }
}

impl Handler for Hook {
    fn handle(&self, request: Request<Body>) -> BoxFuture<'_, Response<Body>> {
        Box::pin(async move {
            self.calls.fetch_add(1, Ordering::Relaxed);
            let token = request.headers().get("authorization");
            let token = token.map_or("", |value| value.to_str().unwrap()).to_owned();
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let mut review: Value = serde_json::from_slice(&body).unwrap();
            self.asked.lock().push((token, review.clone()));
            let answered = |text: String| Response::new(client::full(text));
            let mode = *self.mode.lock();
            match mode {
                "hangs" => std::future::pending().await,
                "garbage" => return answered("<html>".to_owned()),
                "large" => return answered("x".repeat(10 << 20)),
                "moved" => {
                    let mut answer = answered("no".to_owned());
                    *answer.status_mut() = StatusCode::TEMPORARY_REDIRECT;
                    answer.headers_mut().insert("location", "/images".parse().unwrap());
                    return answer;
                }
                _ => {}
            }
            if review["kind"] == "AdmissionReview" {
                let uid = review["request"]["uid"].clone();
                review["response"] = json!({"uid": uid, "allowed": true});
            } else {
                review["status"] = json!({"allowed": mode == "allow", "reason": "not signed"});
            }
            answered(review.to_string())
        })
    }
}

/// Starts a server with these plugin configurations.
async fn configured(plugins: Value, enable: &[&str]) -> TestServer {
    let file = written(plugins);
    start(|config| {
        config.admission_file = Some(file);
        config.enable_admission.extend(enable.iter().map(|&name| name.to_owned()));
    })
    .await
}

fn written(plugins: Value) -> PathBuf {
    let file = tempfile::tempdir().unwrap().keep().join("admission.yaml");
    let whole = json!({"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AdmissionConfiguration", "plugins": plugins});
    std::fs::write(&file, whole.to_string()).unwrap();
    file
}

#[tokio::test(flavor = "multi_thread")]
async fn configures_plugins_from_file() {
    let security = json!({"apiVersion": "pod-security.admission.config.k8s.io/v1", "kind": "PodSecurityConfiguration",
        "defaults": {"enforce": "baseline"}, "exemptions": {"usernames": ["trusted"]}});
    let limits = json!([{"type": "Namespace", "qps": 1, "burst": 2}]);
    let rate = json!({"apiVersion": "eventratelimit.admission.k8s.io/v1alpha1", "kind": "Configuration", "limits": limits});
    let plugins = json!([{"name": "PodSecurity", "configuration": security}, {"name": "EventRateLimit", "configuration": rate}]);
    let enable = ["EventRateLimit", "NamespaceAutoProvision"];
    let server = configured(plugins, &enable).await;
    let (admin, trusted) = (server.admin(), server.user("trusted", &["system:masters"]));
    // A namespace is created with its first object, but not for callers without permission or in a dry run.
    let maps = "/api/v1/namespaces/fresh/configmaps";
    let map = json!({"metadata": {"name": "a"}});
    server.user("stranger", &[]).post(maps, &map).await.refused(403, "Forbidden");
    admin.post(&format!("{maps}?dryRun=All"), &map).await.refused(404, "NotFound");
    admin.get("/api/v1/namespaces/fresh").await.refused(404, "NotFound");
    admin.post(maps, &map).await.ok();
    admin.get("/api/v1/namespaces/fresh").await.ok();
    let accounts = "/api/v1/namespaces/fresh/serviceaccounts";
    admin.post(accounts, &json!({"metadata": {"name": "default"}})).await.ok();
    let pods = "/api/v1/namespaces/fresh/pods";
    let mut bad = pod("p");
    bad["spec"]["hostPID"] = json!(true);
    let told = admin.post(pods, &bad).await.refused(403, "Forbidden");
    assert!(told.contains("violates PodSecurity \"baseline:latest\": host namespaces"), "{told}");
    trusted.post(pods, &bad).await.ok();
    let event =
        json!({"metadata": {"generateName": "e"}, "involvedObject": {"namespace": "fresh"}});
    let events = "/api/v1/namespaces/fresh/events";
    for _ in 0..2 {
        admin.post(events, &event).await.ok();
    }
    // A second on a busy machine permits another one.
    let mut answer = admin.post(events, &event).await;
    for _ in 0..50 {
        if answer.code == 429 {
            break;
        }
        answer = admin.post(events, &event).await;
    }
    let told = answer.refused(429, "TooManyRequests");
    assert_eq!(told, "Too many requests: limit reached on type Namespace for key fresh");
}

#[tokio::test(flavor = "multi_thread")]
async fn denies_all_changes_with_always_deny() {
    let server = start(|_| {}).await;
    let closed = server.beside_with(|config| config.enable_admission.push("AlwaysDeny".into()));
    let closed = closed.await;
    let maps = "/api/v1/namespaces/default/configmaps";
    let told = closed.admin().post(maps, &json!({"metadata": {"name": "a"}})).await;
    let told = told.refused(403, "Forbidden");
    assert!(told.ends_with("admission control is denying all modifications"), "{told}");
    closed.admin().get(maps).await.ok();
}

/// Starts a server that calls `hook` for images, with additional configuration.
async fn asking(hook: &Hook, with: Value) -> TestServer {
    let directory = tempfile::tempdir().unwrap().keep();
    let mut policy = json!({"kubeConfigFile": hook.kubeconfig(&directory), "retryBackoff": 1});
    policy.as_object_mut().unwrap().extend(with.as_object().unwrap().clone());
    let plugins = json!([{"name": "ImagePolicyWebhook", "configuration": {"imagePolicy": policy}}]);
    let server = configured(plugins, &["ImagePolicyWebhook"]).await;
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    server.admin().post(accounts, &json!({"metadata": {"name": "default"}})).await;
    server
}

const PODS: &str = "/api/v1/namespaces/default/pods";

fn of_image(name: &str, image: &str) -> Value {
    let mut pod = pod(name);
    pod["spec"]["containers"][0]["image"] = json!(image);
    pod
}

#[tokio::test(flavor = "multi_thread")]
async fn asks_image_webhook_and_caches_response() {
    let hook = Hook::start().await;
    let server = asking(&hook, json!({"denyTTL": -1})).await;
    let admin = server.admin();
    admin.post(PODS, &of_image("a", "one")).await.ok();
    let (token, review) = hook.asked.lock()[0].clone();
    assert_eq!((token.as_str(), &review["kind"]), ("Bearer secret", &json!("ImageReview")));
    assert_eq!(review["spec"], json!({"containers": [{"image": "one"}], "namespace": "default"}));
    hook.set("deny");
    admin.post(PODS, &of_image("b", "one")).await.ok();
    assert_eq!(hook.calls.load(Ordering::Relaxed), 1, "what was allowed is remembered");
    for calls in 2..4 {
        let told = admin.post(PODS, &of_image("c", "two")).await.refused(403, "Forbidden");
        assert_eq!(
            told,
            "pods \"c\" is forbidden: image policy webhook backend denied one or more images: not signed"
        );
        assert_eq!(hook.calls.load(Ordering::Relaxed), calls, "what was denied is not");
    }
    // The webhook is not called for users who may not create Pods.
    server
        .user("stranger", &[])
        .post(PODS, &of_image("d", "three"))
        .await
        .refused(403, "Forbidden");
    assert_eq!(hook.calls.load(Ordering::Relaxed), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn follows_default_when_image_webhook_misbehaves() {
    let hook = Hook::start().await;
    let strict = asking(&hook, json!({})).await;
    let lenient = asking(&hook, json!({"defaultAllow": true})).await;
    for (mode, words) in [
        ("garbage", "couldn't read the answer as an ImageReview"),
        ("large", "larger than 3145728 bytes"),
        ("moved", "307"),
        ("hangs", "deadline exceeded"),
    ] {
        hook.set(mode);
        let path = format!("{PODS}?timeout=1s");
        let told = strict.admin().post(&path, &of_image(mode, mode)).await;
        let told = told.refused(403, "Forbidden");
        assert!(told.contains(words), "{mode}: {told}");
        if mode != "hangs" {
            lenient.admin().post(&path, &of_image(mode, mode)).await.ok();
        }
    }
}

/// A mutating webhook receives the credentials of its host, a validating one none.
#[tokio::test(flavor = "multi_thread")]
async fn sends_kubeconfig_credentials_to_webhooks() {
    let hook = Hook::start().await;
    let kubeconfig = hook.kubeconfig(&tempfile::tempdir().unwrap().keep());
    let document = json!({"apiVersion": "apiserver.config.k8s.io/v1", "kind": "WebhookAdmissionConfiguration", "kubeConfigFile": kubeconfig});
    let plugins = json!([{"name": "MutatingAdmissionWebhook", "configuration": document}]);
    let server = configured(plugins, &[]).await;
    let admin = server.admin();
    let webhook = |path: &str| {
        json!({"name": "a.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "clientConfig": {"url": format!("{}/{path}", hook.server), "caBundle": hook.ca},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}]})
    };
    for kind in ["mutating", "validating"] {
        let path = format!("/apis/admissionregistration.k8s.io/v1/{kind}webhookconfigurations");
        let made = json!({"metadata": {"name": "a"}, "webhooks": [webhook(kind)]});
        admin.post(&path, &made).await.ok();
    }
    let map = json!({"metadata": {"name": "a"}});
    admin.post("/api/v1/namespaces/default/configmaps", &map).await.ok();
    let tokens: Vec<String> = hook.asked.lock().iter().map(|(t, _)| t.clone()).collect();
    assert_eq!(tokens, ["Bearer secret", ""]);
}

#[test]
fn rejects_invalid_configurations_at_start() {
    use apiserver::flags::Args;
    use clap::Parser as _;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }
    let told = |plugins: Value, enable: &str| {
        let file = written(plugins);
        let config = format!("--admission-control-config-file={}", file.display());
        let mut line = vec!["x", "--client-ca-file=a", "--kubelet-client-certificate=a"];
        line.extend(["--kubelet-client-key=a", "--service-account-issuer=https://a"]);
        line.extend(["--service-account-signing-key-file=a", "--tls-cert-file=a"]);
        line.extend(["--tls-private-key-file=a", "--service-cluster-ip-range=10.0.0.0/16"]);
        line.extend([
            "--allow-privileged",
            "--store-dir=/nowhere",
            "--advertise-address=192.0.2.1",
        ]);
        line.extend([config.as_str(), enable]);
        let config = Line::parse_from(line).args.config().unwrap();
        apiserver::admission_chain(&config).err().map(|error| error.to_string()).unwrap_or_default()
    };
    let strict = json!([{"name": "PodSecurity", "configuration": {"kind": "PodSecurityConfiguration",
        "apiVersion": "pod-security.admission.config.k8s.io/v1", "defaults": {"enforce": "strict"}}}]);
    let wrong = told(strict, "--enable-admission-plugins=NodeRestriction");
    assert!(wrong.starts_with("couldn't init admission plugin \"PodSecurity\""), "{wrong}");
    let wrong = told(json!([]), "--enable-admission-plugins=EventRateLimit");
    assert_eq!(
        wrong,
        "couldn't init admission plugin \"EventRateLimit\": limits: Invalid value: []: must not be empty"
    );
    let wrong = told(
        json!([{"name": "A", "path": "nowhere"}]),
        "--enable-admission-plugins=NodeRestriction",
    );
    assert!(wrong.contains("nowhere"), "{wrong}");
    // Disabled plugins are not configured.
    let odd =
        json!([{"name": "EventRateLimit", "configuration": {"kind": "Nonsense"}}, {"name": "Odd"}]);
    assert_eq!(told(odd, "--disable-admission-plugins=PodSecurity"), "");
}
