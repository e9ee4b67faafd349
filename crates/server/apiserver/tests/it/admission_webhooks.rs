//! Admission webhooks in complete requests: which are called with what, the effect of their responses, and misbehaving
//! ones.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use futures_util::{future::BoxFuture, stream};
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use parking_lot::Mutex;
use pki::{AltName, Authority};
use serde_json::{Value, json};
use serve::{Body, Handler};
use tokio::sync::Barrier;

use crate::{
    custom::{define, definition},
    harness::{
        Api, Identity, TestServer, admin, config_map, deployment, listen, pod, shared, start,
    },
};

const GROUP: &str = "/apis/admissionregistration.k8s.io/v1";

/// A webhook whose path selects its behavior.
struct Hook {
    address: SocketAddr,
    bundle: String,
    /// The received reviews by path.
    seen: Mutex<Vec<(String, Value)>>,
    calls: AtomicUsize,
    both: Barrier,
    tasks: rt::Tasks,
}

impl Hook {
    async fn start() -> Arc<Self> {
        Self::of(&shared().authority, vec![AltName::Ip([127, 0, 0, 1].into())]).await
    }

    async fn of(authority: &Authority, names: Vec<AltName>) -> Arc<Self> {
        let bundle = STANDARD.encode(authority.cert().to_pem());
        let made = |address, tasks| Self {
            address,
            bundle,
            seen: Mutex::default(),
            calls: AtomicUsize::new(0),
            both: Barrier::new(2),
            tasks,
        };
        listen(authority, names, made).await
    }

    /// Returns the configuration of a webhook for a namespace.
    fn entry(&self, path: &str, namespace: &str, rule: &str) -> Value {
        let words: Vec<Vec<&str>> = rule.split(' ').map(|part| part.split(',').collect()).collect();
        let groups: Vec<&str> =
            words[1].iter().map(|group| if *group == "core" { "" } else { group }).collect();
        json!({
            "name": format!("{}.hooks.example.com", path.replace('/', "-")),
            "clientConfig": {"url": format!("https://{}/{path}", self.address), "caBundle": self.bundle},
            "rules": [{"operations": words[0], "apiGroups": groups, "apiVersions": words[2], "resources": words[3]}],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
            "sideEffects": "None", "admissionReviewVersions": ["v1"],
        })
    }

    /// Returns the requests that a path has received.
    fn seen(&self, path: &str) -> Vec<Value> {
        let seen = self.seen.lock();
        let own = seen.iter().filter(|(at, _)| at == path);
        own.map(|(_, review)| review["request"].clone()).collect()
    }

    async fn answer(&self, path: &str, review: &Value) -> Response<Body> {
        let mut response = json!({"uid": review["request"]["uid"], "allowed": true});
        let mut said = |field: &str, value: Value| response[field] = value;
        match path {
            "deny" => {
                said("allowed", json!(false));
                said("status", json!({"message": "not today", "reason": "Because", "code": 418}));
            }
            "uid" => said("uid", json!("other")),
            "warn" => {
                let words = json!(["first", "x".repeat(5000), "last"]);
                said("warnings", words);
            }
            "both" => {
                self.both.wait().await;
            }
            "never" => std::future::pending().await,
            "garbage" => return Response::new(client::full("<html>")),
            "empty" => return Response::new(client::full("")),
            "endless" => return Response::new(endless()),
            "code" => return status(500, "boom"),
            "redirect" => {
                let mut moved = status(307, "");
                let at = format!("https://{}/allow", self.address);
                moved.headers_mut().insert("location", at.parse().unwrap());
                return moved;
            }
            _ => {
                if let Some(patch) = patch_of(path, &review["request"]["object"]) {
                    said("patchType", json!("JSONPatch"));
                    said("patch", json!(STANDARD.encode(patch)));
                }
            }
        }
        let answer = json!({"kind": "AdmissionReview", "apiVersion": review["apiVersion"], "response": response});
        Response::new(client::full(answer.to_string()))
    }
}

impl Handler for Hook {
    fn handle(&self, request: Request<Body>) -> BoxFuture<'_, Response<Body>> {
        Box::pin(async move {
            let path = request.uri().path().trim_start_matches('/').to_owned();
            assert!(request.uri().query().unwrap().starts_with("timeout="));
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let review: Value = serde_json::from_slice(&body).unwrap();
            self.calls.fetch_add(1, Ordering::Relaxed);
            self.seen.lock().push((path.clone(), review.clone()));
            self.answer(&path, &review).await
        })
    }
}

fn status(code: u16, body: &'static str) -> Response<Body> {
    Response::builder().status(code).body(client::full(body)).unwrap()
}

fn endless() -> Body {
    let part = || Ok::<_, Infallible>(Frame::data(bytes::Bytes::from(vec![b' '; 64 << 10])));
    let parts = stream::repeat_with(part);
    StreamBody::new(parts).map_err(|never| match never {}).boxed_unsync()
}

/// Returns the patch of a mutating webhook's path.
fn patch_of(path: &str, object: &Value) -> Option<String> {
    let add = |path: &str, value: Value| json!([{"op": "add", "path": path, "value": value}]);
    let patch = match path {
        "label" => add("/metadata/labels", json!({"hooked": "yes"})),
        // Appends its letter to the object's data.
        "trail/a" | "trail/b" | "trail/c" => {
            let said = object["data"]["trail"].as_str().unwrap_or_default();
            add("/data/trail", json!(format!("{said}{}", &path[6..])))
        }
        "unknown" => add("/nonsense", json!(1)),
        "type" => add("/data", json!([1])),
        "invalid" => add("/data", json!({"_!%": "x"})),
        "container" => add("/spec/containers/-", json!({"name": "side", "image": "side"})),
        "target" => add("/spec/targetCPUUtilizationPercentage", json!(42)),
        "size" => add("/spec/size", json!(7)),
        "identity" => json!([
            {"op": "add", "path": "/metadata/uid", "value": object["metadata"]["uid"]},
            {"op": "add", "path": "/metadata/generation", "value": 77},
            {"op": "add", "path": "/status", "value": {"phase": "Succeeded"}},
            {"op": "add", "path": "/metadata/managedFields", "value": [{"manager": "x"}]},
        ]),
        "operation" => json!([{"op": "remove", "path": "/no/such"}]),
        // Go programs without steps send this.
        "nothing" => return Some("null".to_owned()),
        "undecodable" => return Some("{".to_owned()),
        _ => return None,
    };
    Some(patch.to_string())
}

/// Creates a configuration. It is in effect when this returns.
async fn configure(api: &Api, kind: &str, name: &str, webhooks: Value) {
    let plural = format!("{}webhookconfigurations", kind.to_lowercase());
    let configuration = json!({"kind": format!("{kind}WebhookConfiguration"), "apiVersion": "admissionregistration.k8s.io/v1",
        "metadata": {"name": name}, "webhooks": webhooks});
    let made = api.post(&format!("{GROUP}/{plural}"), &configuration).await;
    assert_eq!(made.warnings(), Vec::<&str>::new(), "it acts");
    made.ok();
}

async fn configure_one(api: &Api, kind: &str, namespace: &str, webhook: Value) {
    configure(api, kind, &format!("{kind}-{namespace}").to_lowercase(), json!([webhook])).await;
}

fn maps(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/configmaps")
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_webhooks_for_every_operation() {
    let (api, hook) = (admin(), Hook::start().await);
    let namespace = api.namespace().await;
    let path = maps(&namespace);
    api.post(&path, &config_map("a", json!({"k": "1"}))).await.ok();
    api.post(&format!("/api/v1/namespaces/{namespace}/pods"), &pod("p")).await.ok();
    let rule = "* core v1 configmaps,pods/*";
    configure_one(&api, "Validating", &namespace, hook.entry("deny", &namespace, rule)).await;
    let denied = "admission webhook \"deny.hooks.example.com\" denied the request: not today";
    let made = api.post(&format!("{path}?dryRun=All"), &config_map("b", json!({"k": "v"}))).await;
    assert_eq!(made.refused(418, "Because"), denied);
    let patch = json!({"data": {"k": "2"}});
    let changed = api.patch(&format!("{path}/a?fieldManager=me"), "merge", &patch).await;
    assert_eq!(changed.refused(418, "Because"), denied);
    let applied = json!({"kind": "ConfigMap", "apiVersion": "v1", "data": {"z": "1"}});
    let applied = api.patch(&format!("{path}/c?fieldManager=me"), "apply", &applied).await;
    applied.refused(418, "Because");
    api.delete(&format!("{path}/a"), &json!({})).await.refused(418, "Because");
    api.delete(&path, &json!({})).await.refused(418, "Because");
    let exec = format!("/api/v1/namespaces/{namespace}/pods/p/exec?command=sh&stdin=true");
    api.post(&exec, &Value::Null).await.refused(418, "Because");
    let eviction =
        json!({"kind": "Eviction", "apiVersion": "policy/v1", "metadata": {"name": "p"}});
    let evict = format!("/api/v1/namespaces/{namespace}/pods/p/eviction");
    api.post(&evict, &eviction).await.refused(418, "Because");
    api.get(&format!("{path}/a")).await.ok();

    let seen = hook.seen("deny");
    let asked: Vec<String> = seen
        .iter()
        .map(|r| {
            let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
            [&r["operation"], &r["kind"]["kind"], &r["subResource"], &r["name"]].map(text).join(" ")
        })
        .collect();
    assert_eq!(
        asked,
        [
            "CREATE ConfigMap - b",
            "UPDATE ConfigMap - a",
            "CREATE ConfigMap - c",
            "DELETE ConfigMap - a",
            "DELETE ConfigMap - -",
            "CONNECT PodExecOptions exec p",
            "CREATE Eviction eviction p"
        ]
    );
    let create = &seen[0];
    assert_eq!((&create["dryRun"], &create["namespace"]), (&json!(true), &json!(namespace)));
    assert_eq!(create["userInfo"]["username"], "admin");
    assert_eq!(
        create["options"],
        json!({"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1", "dryRun": ["All"]})
    );
    assert_eq!(
        (&create["oldObject"], &create["object"]["apiVersion"]),
        (&Value::Null, &json!("v1"))
    );
    // Validating webhooks see the object with the server's fields.
    assert!(create["object"]["metadata"]["uid"].is_string());
    assert_eq!(create["object"]["metadata"]["managedFields"][0]["operation"], "Update");
    let update = &seen[1];
    assert_eq!(
        (&update["oldObject"]["data"]["k"], &update["object"]["data"]["k"]),
        (&json!("1"), &json!("2"))
    );
    assert_eq!(update["options"]["kind"], "UpdateOptions");
    assert_eq!(
        (&seen[3]["object"], &seen[3]["oldObject"]["data"]["k"]),
        (&Value::Null, &json!("1"))
    );
    assert_eq!(seen[5]["object"]["command"], json!(["sh"]));
    hook.tasks.shutdown().stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn decodes_patched_objects_like_bodies() {
    let (api, hook) = (admin(), Hook::start().await);
    let namespace = api.namespace().await;
    let path = maps(&namespace);
    let mut entries = Vec::new();
    for behaviour in ["label", "unknown", "type", "invalid", "operation", "nothing", "undecodable"]
    {
        let mut entry = hook.entry(behaviour, &namespace, "CREATE core v1 configmaps");
        entry["objectSelector"] = json!({"matchLabels": {"want": behaviour}});
        entries.push(entry);
    }
    entries.push(hook.entry("container", &namespace, "CREATE core v1 pods"));
    let name = format!("patches-{namespace}");
    configure(&api, "Mutating", &name, json!(entries)).await;
    let make = async |name: &str| {
        let mut map = config_map(name, json!({"k": "v"}));
        map["metadata"]["labels"] = json!({"want": name});
        api.post(&path, &map).await
    };
    let made = make("label").await.ok();
    assert_eq!(made["metadata"]["labels"], json!({"hooked": "yes"}));
    let owned = &made["metadata"]["managedFields"][0]["fieldsV1"];
    assert!(
        owned["f:metadata"]["f:labels"].get("f:hooked").is_none(),
        "nobody has asked for it: {owned}"
    );
    assert!(owned["f:data"]["f:k"].is_object());
    assert!(make("unknown").await.ok().get("nonsense").is_none());
    make("type").await.refused(500, "InternalError");
    let invalid = make("invalid").await.refused(422, "Invalid");
    assert!(invalid.contains("data[_!%]"), "{invalid}");
    make("operation").await.refused(500, "InternalError");
    assert_eq!(make("nothing").await.ok()["data"], json!({"k": "v"}));
    let words = make("undecodable").await.refused(500, "InternalError");
    assert!(words.starts_with("Internal error occurred: failed calling webhook \"undecodable.hooks.example.com\": received undecodable patch in webhook response: "), "{words}");
    // Added containers get defaults, and the changes of plugins.
    let made = api.post(&format!("/api/v1/namespaces/{namespace}/pods"), &pod("p")).await.ok();
    let side = &made["spec"]["containers"][1];
    assert_eq!((&side["name"], &side["imagePullPolicy"]), (&json!("side"), &json!("Always")));
    assert!(side["volumeMounts"][0]["mountPath"].is_string(), "the token is mounted: {side}");
    hook.tasks.shutdown().stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn restricts_webhooks_like_clients() {
    let (api, hook) = (admin(), Hook::start().await);
    let namespace = api.namespace().await;
    let path = format!("/api/v1/namespaces/{namespace}/pods");
    let made = api.post(&path, &pod("p")).await.ok();
    configure_one(
        &api,
        "Mutating",
        &namespace,
        hook.entry("identity", &namespace, "UPDATE core v1 pods"),
    )
    .await;
    let patch = json!({"metadata": {"labels": {"a": "b"}}});
    let answer = api.patch(&format!("{path}/p"), "merge", &patch).await;
    let changed = answer.ok();
    assert_eq!(hook.seen("identity").len(), 1);
    for field in ["uid", "generation"] {
        assert_eq!(changed["metadata"][field], made["metadata"][field]);
    }
    assert_eq!(changed["status"]["phase"], "Pending");
    let owners = changed["metadata"]["managedFields"].as_array().unwrap();
    assert!(owners.iter().all(|owner| owner["fieldsV1"].is_object()), "{owners:?}");
    assert!(
        answer.warnings()[0].contains("managedFields was in an invalid state"),
        "{:?}",
        answer.warnings()
    );
    // The object of a deletion cannot be changed.
    configure_one(
        &api,
        "Mutating",
        &format!("{namespace}-d"),
        hook.entry("label", &namespace, "DELETE core v1 pods"),
    )
    .await;
    let words = api.delete(&format!("{path}/p"), &json!({})).await.refused(500, "InternalError");
    assert_eq!(
        words,
        "Internal error occurred: admission webhook \"label.hooks.example.com\" attempted to modify the object, which is not supported for this operation"
    );
    hook.tasks.shutdown().stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn orders_and_reinvokes_webhooks() {
    let (api, hook) = (admin(), Hook::start().await);
    let namespace = api.namespace().await;
    let entry = |letter: &str, policy: &str| {
        let mut entry =
            hook.entry(&format!("trail/{letter}"), &namespace, "CREATE core v1 configmaps");
        entry["reinvocationPolicy"] = json!(policy);
        entry
    };
    // In the order of the configurations' names, then of their lists. Each webhook changes the object on every call.
    configure(&api, "Mutating", &format!("z-{namespace}"), json!([entry("c", "Never")])).await;
    configure(
        &api,
        "Mutating",
        &format!("a-{namespace}"),
        json!([entry("b", "IfNeeded"), entry("a", "Never")]),
    )
    .await;
    let made = api.post(&maps(&namespace), &config_map("m", json!({"k": "v"}))).await.ok();
    assert_eq!(made["data"]["trail"], "bacb");
    assert_eq!(hook.calls.load(Ordering::Relaxed), 4);
    hook.tasks.shutdown().stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn converts_objects_to_version_of_rule() {
    let (api, hook) = (admin(), Hook::start().await);
    let namespace = api.namespace().await;
    let mut exact = hook.entry("deny", &namespace, "* autoscaling v1 horizontalpodautoscalers");
    exact["matchPolicy"] = json!("Exact");
    let entry = hook.entry("target", &namespace, "* autoscaling v1 horizontalpodautoscalers");
    let name = format!("versions-{namespace}");
    configure(&api, "Mutating", &name, json!([exact, entry])).await;
    let scaler = json!({"kind": "HorizontalPodAutoscaler", "apiVersion": "autoscaling/v2", "metadata": {"name": "h"},
        "spec": {"maxReplicas": 3, "scaleTargetRef": {"kind": "Deployment", "name": "d", "apiVersion": "apps/v1"}}});
    let path = format!("/apis/autoscaling/v2/namespaces/{namespace}/horizontalpodautoscalers");
    let made = api.post(&path, &scaler).await.ok();
    assert_eq!(made["apiVersion"], "autoscaling/v2");
    assert_eq!(made["spec"]["metrics"][0]["resource"]["target"]["averageUtilization"], 42);
    let seen = &hook.seen("target")[0];
    assert_eq!(
        (&seen["kind"]["version"], &seen["requestKind"]["version"]),
        (&json!("v1"), &json!("v2"))
    );
    assert_eq!(seen["object"]["apiVersion"], "autoscaling/v1");
    assert_eq!(hook.seen("deny").len(), 0);

    // The same holds for custom kinds: the result is pruned and validated by their schemas.
    define(&api, &definition("hookeds", "Hooked")).await;
    configure_one(
        &api,
        "Mutating",
        &format!("{namespace}-c"),
        hook.entry("size", &namespace, "* test.example.com * *"),
    )
    .await;
    let custom = json!({"kind": "Hooked", "apiVersion": "test.example.com/v1", "metadata": {"name": "x"}, "spec": {"color": "red"}});
    let path = format!("/apis/test.example.com/v1/namespaces/{namespace}/hookeds");
    let made = api.post(&path, &custom).await.ok();
    assert_eq!((&made["spec"]["size"], &made["spec"]["color"]), (&json!(7), &json!("red")));
    hook.tasks.shutdown().stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn evaluates_match_conditions() {
    let (api, hook) = (admin(), Hook::start().await);
    let namespace = api.namespace().await;
    for (kind, behaviour) in [("Mutating", "label"), ("Validating", "deny")] {
        let mut entry = hook.entry(behaviour, &namespace, "CREATE core v1 configmaps");
        let expression =
            "object.metadata.name != 'skip-me' && request.userInfo.username == 'admin'";
        entry["matchConditions"] = json!([{"name": "not-mine", "expression": expression}]);
        configure_one(&api, kind, &namespace, entry).await;
    }
    let path = maps(&namespace);
    let made = api.post(&path, &config_map("skip-me", json!({"k": "v"}))).await.ok();
    assert!(made["metadata"].get("labels").is_none());
    assert_eq!(hook.calls.load(Ordering::Relaxed), 0);
    api.post(&path, &config_map("other", json!({"k": "v"}))).await.refused(418, "Because");
    assert_eq!(hook.seen("deny")[0]["object"]["metadata"]["labels"]["hooked"], "yes");
    hook.tasks.shutdown().stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn shows_scale_to_webhooks() {
    let (api, hook) = (admin(), Hook::start().await);
    let namespace = api.namespace().await;
    let path = format!("/apis/apps/v1/namespaces/{namespace}/deployments");
    api.post(&path, &deployment("d")).await.ok();
    configure_one(
        &api,
        "Validating",
        &namespace,
        hook.entry("allow", &namespace, "* apps * */scale"),
    )
    .await;
    api.patch(&format!("{path}/d/scale"), "merge", &json!({"spec": {"replicas": 2}})).await.ok();
    let seen = hook.seen("allow");
    assert_eq!(
        (&seen[0]["kind"]["kind"], &seen[0]["object"]["kind"]),
        (&json!("Scale"), &json!("Scale"))
    );
    assert_eq!(
        (&seen[0]["oldObject"]["spec"]["replicas"], &seen[0]["object"]["spec"]["replicas"]),
        (&json!(1), &json!(2))
    );
    hook.tasks.shutdown().stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_validating_webhooks_concurrently() {
    let (api, hook) = (admin(), Hook::start().await);
    let namespace = api.namespace().await;
    let entry = hook.entry("both", &namespace, "CREATE core v1 configmaps");
    let mut other = entry.clone();
    other["name"] = json!("other.hooks.example.com");
    // Each webhook responds after the other one has been called.
    let name = format!("both-{namespace}");
    configure(&api, "Validating", &name, json!([entry, other])).await;
    api.post(&maps(&namespace), &config_map("m", json!({}))).await.ok();
    assert_eq!(hook.calls.load(Ordering::Relaxed), 2);
    hook.tasks.shutdown().stop();
}

/// Failed calls with both failure policies.
#[tokio::test(flavor = "multi_thread")]
async fn treats_misbehaving_webhook_as_failed() {
    let (api, hook) = (admin(), Hook::start().await);
    let other =
        Authority::create("other", pki::KeyAlgorithm::EcdsaP256, crate::harness::validity())
            .unwrap();
    let unknown = Hook::of(&other, vec![AltName::Ip([127, 0, 0, 1].into())]).await;
    let misnamed =
        Hook::of(&shared().authority, vec![AltName::Dns("hook.example.com".into())]).await;
    let called = "failed to call webhook: ";
    let table = [
        ("never", "Post \"https://ADDRESS/never?timeout=1s\": context deadline exceeded"),
        ("garbage", "couldn't get version/kind; json parse error: "),
        ("empty", "couldn't get version/kind; json parse error: "),
        (
            "endless",
            "Post \"https://ADDRESS/endless?timeout=10s\": the answer is longer than 16777216 bytes",
        ),
        (
            "redirect",
            "the server responded with the status code 307 but did not return more information",
        ),
        ("code", "an error on the server (\"boom\") has prevented the request from succeeding"),
    ];
    for (behaviour, words) in table {
        let words = words.replace("ADDRESS", &hook.address.to_string());
        both_policies(&api, &hook, behaviour, &format!("{called}{words}"), |_| {}).await;
    }
    both_policies(
        &api,
        &hook,
        "uid",
        "received invalid webhook response: expected response.uid=",
        |_| {},
    )
    .await;
    let bundle = hook.bundle.clone();
    let words = format!(
        "{called}Post \"https://{}/allow?timeout=10s\": tls: failed to verify certificate: x509: certificate signed by unknown authority",
        unknown.address
    );
    both_policies(&api, &unknown, "allow", &words, |entry| {
        entry["clientConfig"]["caBundle"] = json!(bundle)
    })
    .await;
    let words = format!(
        "{called}Post \"https://{}/allow?timeout=10s\": tls: failed to verify certificate: x509: certificate is not valid for 127.0.0.1",
        misnamed.address
    );
    both_policies(&api, &misnamed, "allow", &words, |_| {}).await;
    let words = format!(
        "{called}Post \"https://nosuch.default.svc:443/x?timeout=10s\": service \"nosuch\" not found"
    );
    let service = json!({"service": {"namespace": "default", "name": "nosuch", "path": "/x"}, "caBundle": hook.bundle});
    both_policies(&api, &hook, "allow", &words, |entry| entry["clientConfig"] = service.clone())
        .await;
    assert_eq!(
        hook.seen("allow").len()
            + unknown.calls.load(Ordering::Relaxed)
            + misnamed.calls.load(Ordering::Relaxed),
        0,
        "redirects are not followed, and nobody unknown is told anything"
    );
    let metrics = api.get("/metrics").await.body;
    let metrics = String::from_utf8(metrics.to_vec()).unwrap();
    for series in [
        "apiserver_admission_webhook_rejection_count{error_type=\"calling_webhook_error\",name=\"garbage.hooks.example.com\",operation=\"CREATE\",rejection_code=\"503\",type=\"validating\"} 1\n",
        "apiserver_admission_webhook_fail_open_count{name=\"garbage.hooks.example.com\",type=\"validating\"} 1\n",
        "apiserver_admission_webhook_admission_duration_seconds_count{name=\"garbage.hooks.example.com\",operation=\"CREATE\",rejected=\"true\",type=\"validating\"} 1\n",
    ] {
        assert!(metrics.contains(series), "{series}");
    }
    for hook in [hook, unknown, misnamed] {
        hook.tasks.shutdown().stop();
    }
}

async fn both_policies(
    api: &Api,
    hook: &Hook,
    behaviour: &str,
    words: &str,
    change: impl Fn(&mut Value),
) {
    for policy in ["Fail", "Ignore"] {
        let namespace = api.namespace().await;
        let mut entry = hook.entry(behaviour, &namespace, "CREATE core v1 configmaps");
        entry["failurePolicy"] = json!(policy);
        entry["timeoutSeconds"] = json!(if behaviour == "never" { 1 } else { 10 });
        change(&mut entry);
        configure_one(api, "Validating", &namespace, entry).await;
        let made = api.post(&maps(&namespace), &config_map("m", json!({}))).await;
        if policy == "Ignore" {
            made.ok();
            continue;
        }
        let message = made.refused(500, "InternalError");
        let wanted = format!(
            "Internal error occurred: failed calling webhook \"{behaviour}.hooks.example.com\": {words}"
        );
        assert!(message.starts_with(&wanted), "{message}\n{wanted}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ends_calls_at_request_timeout() {
    let (api, hook) = (admin(), Hook::start().await);
    let namespace = api.namespace().await;
    let mut entry = hook.entry("never", &namespace, "CREATE core v1 configmaps");
    entry["failurePolicy"] = json!("Ignore");
    entry["timeoutSeconds"] = json!(30);
    configure_one(&api, "Mutating", &namespace, entry).await;
    let began = std::time::Instant::now();
    let made =
        api.post(&format!("{}?timeout=1s", maps(&namespace)), &config_map("m", json!({}))).await;
    let words = made.refused(504, "Timeout");
    assert_eq!(words, "Timeout: request did not complete within requested timeout");
    assert!(began.elapsed() < Duration::from_secs(15));
    hook.tasks.shutdown().stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_length_of_warnings() {
    let (api, hook) = (admin(), Hook::start().await);
    let namespace = api.namespace().await;
    configure_one(
        &api,
        "Validating",
        &namespace,
        hook.entry("warn", &namespace, "CREATE core v1 configmaps"),
    )
    .await;
    let made = api.post(&maps(&namespace), &config_map("m", json!({}))).await;
    let short = format!("299 - \"{}\"", "x".repeat(256));
    assert_eq!(made.warnings(), ["299 - \"first\"", short.as_str(), "299 - \"last\""]);
    hook.tasks.shutdown().stop();
}

/// A webhook for all requests that rejects everything, or is dead, can be deleted, as upstream.
#[tokio::test(flavor = "multi_thread")]
async fn allows_deletion_of_webhook_for_everything() {
    let server: TestServer = start(|_| {}).await;
    let api = server.admin();
    let hook = Hook::of(&server.authority, vec![AltName::Ip([127, 0, 0, 1].into())]).await;
    let mut entry = hook.entry("deny", "", "* * * */*");
    entry["namespaceSelector"] = json!({});
    configure(&api, "Validating", "all", json!([entry])).await;
    let lease = json!({"kind": "Lease", "apiVersion": "coordination.k8s.io/v1", "metadata": {"name": "n", "namespace": "default"}});
    let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    api.post(leases, &lease).await.refused(418, "Because");
    let own = format!("{GROUP}/validatingwebhookconfigurations/all");
    let patch = |policy: &str| {
        json!([
            {"op": "replace", "path": "/webhooks/0/clientConfig/url", "value": "https://127.0.0.1:1/x"},
            {"op": "replace", "path": "/webhooks/0/failurePolicy", "value": policy},
        ])
    };
    api.patch(&own, "json", &patch("Fail")).await.ok();
    let words = api.post(leases, &lease).await.refused(500, "InternalError");
    assert!(words.ends_with("dial tcp 127.0.0.1:1: connect: connection refused"), "{words}");
    api.patch(&own, "json", &patch("Ignore")).await.ok();
    api.post(leases, &lease).await.ok();
    api.patch(&own, "json", &patch("Fail")).await.ok();
    // A server that starts with this webhook becomes ready: its initial objects exist.
    let other = server.beside().await;
    other.admin().get("/readyz").await;
    api.delete(&own, &json!({})).await.ok();
    api.delete(&format!("{leases}/n"), &json!({})).await.ok();
    for tasks in [&hook.tasks, &other.tasks, &server.tasks] {
        tasks.shutdown().stop();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn authorizes_webhook_configurations() {
    let (api, hook) = (admin(), Hook::start().await);
    let namespace = api.namespace().await;
    let entry = hook.entry("allow", &namespace, "* core v1 secrets");
    for plural in ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"] {
        let body =
            json!({"metadata": {"name": format!("stranger-{namespace}")}, "webhooks": [entry]});
        let path = format!("{GROUP}/{plural}");
        shared().user("stranger", &[]).post(&path, &body).await.refused(403, "Forbidden");
        shared().tls(Identity::Nobody).post(&path, &body).await.refused(403, "Forbidden");
    }
    let secret = json!({"kind": "Secret", "apiVersion": "v1", "metadata": {"name": "s"}});
    api.post(&format!("/api/v1/namespaces/{namespace}/secrets"), &secret).await.ok();
    assert_eq!(hook.calls.load(Ordering::Relaxed), 0);
    hook.tasks.shutdown().stop();
}
