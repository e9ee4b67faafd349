//! Conversion webhooks of custom kinds: all reads and writes use them, and their errors are reported in upstream's
//! words.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use futures_util::future::BoxFuture;
use http::{Request, Response};
use http_body_util::BodyExt as _;
use parking_lot::Mutex;
use pki::AltName;
use serde_json::{Value, json};
use serve::{Body, Handler};

use crate::{
    custom::{DEFINITIONS, define},
    harness::{Answer, Api, TestServer, admin, listen, shared},
    watches::Events,
};

/// A webhook that converts `hostPort` of v1 to `host` and `port` of v2, with adjustable behavior.
struct Webhook {
    address: SocketAddr,
    mode: Mutex<&'static str>,
    calls: AtomicUsize,
    /// The number of objects in the last call.
    objects: AtomicUsize,
    tasks: rt::Tasks,
}

impl Handler for Webhook {
    fn handle(&self, request: Request<Body>) -> BoxFuture<'_, Response<Body>> {
        Box::pin(async move {
            assert_eq!(request.uri().path_and_query().unwrap(), "/convert?timeout=30s");
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let review: Value = serde_json::from_slice(&body).unwrap();
            self.calls.fetch_add(1, Ordering::Relaxed);
            let objects = review["request"]["objects"].as_array().unwrap().len();
            self.objects.store(objects, Ordering::Relaxed);
            let mode = *self.mode.lock();
            if let Some(code) = mode.strip_prefix("code ") {
                let response = Response::builder().status(code.parse::<u16>().unwrap());
                return response.body(client::full("boom")).unwrap();
            }
            let answer = misbehave(mode, answered(&review)).to_string();
            Response::new(client::full(answer))
        })
    }
}

fn answered(review: &Value) -> Value {
    let request = &review["request"];
    let wanted = request["desiredAPIVersion"].as_str().unwrap();
    let mut objects = request["objects"].clone();
    for object in objects.as_array_mut().unwrap() {
        object["apiVersion"] = json!(wanted);
        let Some(spec) = object["spec"].as_object_mut() else { continue };
        if wanted.ends_with("v2") {
            if let Some(both) = spec.remove("hostPort") {
                let (host, port) = both.as_str().unwrap().split_once(':').unwrap();
                spec.insert("host".into(), host.into());
                spec.insert("port".into(), port.into());
            }
        } else if let (Some(host), Some(port)) = (spec.remove("host"), spec.remove("port")) {
            let both = format!("{}:{}", host.as_str().unwrap(), port.as_str().unwrap());
            spec.insert("hostPort".into(), both.into());
        }
    }
    json!({"kind": "ConversionReview", "apiVersion": review["apiVersion"], "response": {
        "uid": request["uid"], "result": {"status": "Success"}, "convertedObjects": objects,
    }})
}

fn misbehave(mode: &str, mut review: Value) -> Value {
    let response = &mut review["response"];
    match mode {
        "refuse" => response["result"] = json!({"status": "Failed", "message": "I do not want to"}),
        "fail" => response["result"] = json!({"status": "Failed"}),
        "uid" => response["uid"] = json!("x"),
        "none" => *response = Value::Null,
        "count" => response["convertedObjects"] = json!([]),
        "large" => response["padding"] = "x".repeat(3 << 20).into(),
        "review" => review["apiVersion"] = json!("apiextensions.k8s.io/v3"),
        _ => {
            for object in response["convertedObjects"].as_array_mut().unwrap() {
                match mode {
                    "version" => object["apiVersion"] = json!("conv.example.com/v7"),
                    "kind" => object["kind"] = json!("Other"),
                    "name" => object["metadata"]["name"] = json!("other"),
                    "label" => object["metadata"]["labels"] = json!({"a": "_!"}),
                    "number" => object["metadata"]["labels"] = json!({"a": 1}),
                    "words" => {
                        object["metadata"]["labels"] = json!({"said": "webhook"});
                        object["metadata"]["finalizers"] = json!(["a.b/c"]);
                        object["extra"] = json!("is pruned");
                    }
                    _ => {}
                }
            }
        }
    }
    review
}

impl Webhook {
    /// Starts the webhook with a certificate of the server's authority for these names.
    async fn start(server: &TestServer, names: Vec<AltName>) -> Arc<Self> {
        let made = |address, tasks| Self {
            address,
            mode: Mutex::new(""),
            calls: AtomicUsize::new(0),
            objects: AtomicUsize::new(0),
            tasks,
        };
        listen(&server.authority, names, made).await
    }

    fn set(&self, mode: &'static str) {
        *self.mode.lock() = mode;
    }

    fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }

    fn url(&self) -> Value {
        json!({"url": format!("https://{}/convert", self.address), "caBundle": bundle()})
    }
}

fn bundle() -> String {
    STANDARD.encode(shared().authority.cert().to_pem())
}

fn here() -> Vec<AltName> {
    vec![AltName::Ip([127, 0, 0, 1].into())]
}

fn definition(plural: &str, kind: &str, client: &Value) -> Value {
    let version = |name: &str, storage: bool, fields: Value| {
        json!({"name": name, "served": true, "storage": storage,
        "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}},
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {
            "spec": {"type": "object", "properties": fields},
            "status": {"type": "object", "properties": {"phase": {"type": "string"}, "replicas": {"type": "integer"}}},
        }}}})
    };
    let text = json!({"type": "string"});
    let number = json!({"type": "integer"});
    let mut second = version(
        "v2",
        false,
        json!({"host": text, "port": text, "replicas": number, "zone": {"type": "string", "default": "here"}}),
    );
    second["selectableFields"] = json!([{"jsonPath": ".spec.host"}]);
    json!({
        "kind": "CustomResourceDefinition", "apiVersion": "apiextensions.k8s.io/v1",
        "metadata": {"name": format!("{plural}.conv.example.com")},
        "spec": {
            "group": "conv.example.com", "scope": "Namespaced",
            "names": {"plural": plural, "singular": kind.to_lowercase(), "kind": kind},
            "conversion": {"strategy": "Webhook", "webhook": {"clientConfig": client, "conversionReviewVersions": ["v7", "v1"]}},
            "versions": [version("v1", true, json!({"hostPort": text, "replicas": number, "zone": text})), second],
        },
    })
}

/// Returns the paths of both versions of a kind in a namespace.
fn paths(plural: &str, namespace: &str) -> [String; 2] {
    ["v1", "v2"].map(|v| format!("/apis/conv.example.com/{v}/namespaces/{namespace}/{plural}"))
}

fn first(kind: &str, name: &str, both: &str) -> Value {
    json!({"kind": kind, "apiVersion": "conv.example.com/v1", "metadata": {"name": name}, "spec": {"hostPort": both}})
}

/// Returns the version and the content of the stored object.
async fn stored(plural: &str, namespace: &str, name: &str) -> (String, Value) {
    let key = format!("/registry/conv.example.com/{plural}/{namespace}/{name}");
    let value = shared().store.get(&key).await.unwrap().0.unwrap().value;
    let text = String::from_utf8(value.to_vec()).unwrap();
    let (bytes, version) = text.rsplit_once('\n').unwrap();
    (version.to_owned(), serde_json::from_str(bytes).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn converts_for_all_reads_and_writes() {
    let (api, namespace) = (admin(), admin().namespace().await);
    let hook = Webhook::start(shared(), here()).await;
    define(&api, &definition("hosts", "Host", &hook.url())).await;
    let [v1, v2] = paths("hosts", &namespace);
    let mut events = Events::open(&api, &format!("{v2}?watch=true")).await;
    let made = api.post(&v1, &first("Host", "a", "h:1")).await.ok();
    assert_eq!((hook.calls(), &made["spec"]["hostPort"]), (0, &json!("h:1")));
    // Read in the other version: the webhook's fields with the schema's defaults.
    let one = api.get(&format!("{v2}/a")).await.ok();
    assert_eq!(one["apiVersion"], "conv.example.com/v2");
    assert_eq!(one["spec"], json!({"host": "h", "port": "1", "zone": "here"}));
    assert_eq!(one["metadata"], made["metadata"]);
    let event = events.next().await.unwrap();
    assert_eq!((&event["type"], &event["object"]), (&json!("ADDED"), &one));
    // A conversion is cached and shared by all readers.
    let before = hook.calls();
    let list = api.get(&v2).await.ok();
    assert_eq!((&list["items"], hook.calls()), (&json!([one]), before));
    // Written in the other version: stored in the first.
    let mut changed = one.clone();
    changed["spec"]["port"] = json!("2");
    let changed = api.put(&format!("{v2}/a"), &changed).await.ok();
    assert_eq!(changed["spec"]["port"], "2");
    let (version, tree) = stored("hosts", &namespace, "a").await;
    assert_eq!((&*version, &tree["spec"]["hostPort"]), ("conv.example.com/v1", &json!("h:2")));
    let event = events.next().await.unwrap();
    assert_eq!((&event["type"], &event["object"]), (&json!("MODIFIED"), &changed));
    // Patch, apply, status and scale.
    let patch = json!({"spec": {"host": "g"}});
    api.patch(&format!("{v2}/a"), "merge", &patch).await.ok();
    assert_eq!(api.get(&format!("{v1}/a")).await.ok()["spec"]["hostPort"], "g:2");
    let applied = json!({"kind": "Host", "apiVersion": "conv.example.com/v2", "spec": {"host": "f", "port": "3"}});
    api.patch(&format!("{v2}/b?fieldManager=me"), "apply", &applied).await.ok();
    assert_eq!(api.get(&format!("{v1}/b")).await.ok()["spec"]["hostPort"], "f:3");
    let status = json!({"status": {"phase": "Up"}});
    api.patch(&format!("{v2}/a/status"), "merge", &status).await.ok();
    assert_eq!(api.get(&format!("{v1}/a/status")).await.ok()["status"]["phase"], "Up");
    let scale = json!({"spec": {"replicas": 4}});
    api.patch(&format!("{v2}/a/scale"), "merge", &scale).await.ok();
    let now = api.get(&format!("{v1}/a")).await.ok();
    assert_eq!((&now["spec"]["replicas"], &now["spec"]["hostPort"]), (&json!(4), &json!("g:2")));
    // Selectors apply to the requested version.
    let names = async |query: &str| {
        let list = api.get(&format!("{v2}?{query}")).await.ok();
        list["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|o| o["metadata"]["name"].clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(names("fieldSelector=spec.host%3Df").await, ["b"]);
    let dry = api.post(&format!("{v2}?dryRun=All"), &json!({"kind": "Host", "apiVersion": "conv.example.com/v2", "metadata": {"name": "c"}, "spec": {"host": "x", "port": "1"}})).await.ok();
    assert_eq!(dry["spec"]["host"], "x");
    let gone = api.delete(&format!("{v2}/a"), &json!({})).await.ok();
    assert_eq!(gone["status"], "Success");
    loop {
        let event = events.next().await.unwrap();
        assert_eq!(event["object"]["apiVersion"], "conv.example.com/v2");
        if event["type"] == "DELETED" {
            assert_eq!(event["object"]["spec"]["host"], "g");
            break;
        }
    }
    hook.tasks.shutdown().stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn converts_lists_at_once_and_shares_results() {
    let (api, namespace) = (admin(), admin().namespace().await);
    let hook = Webhook::start(shared(), here()).await;
    define(&api, &definition("manys", "Many", &hook.url())).await;
    let [v1, v2] = paths("manys", &namespace);
    for i in 0..20 {
        api.post(&v1, &first("Many", &format!("o{i:02}"), "h:1")).await.ok();
    }
    let page = api.get(&format!("{v2}?limit=15")).await.ok();
    assert_eq!(page["items"].as_array().unwrap().len(), 15);
    assert_eq!((hook.calls(), hook.objects.load(Ordering::Relaxed)), (1, 15));
    let mut watches = Vec::new();
    for _ in 0..8 {
        watches.push(Events::open(&api, &format!("{v2}?watch=true")).await);
    }
    assert_eq!((hook.calls(), hook.objects.load(Ordering::Relaxed)), (2, 5));
    let patch = json!({"spec": {"hostPort": "g:9"}});
    api.patch(&format!("{v1}/o00"), "merge", &patch).await.ok();
    for watch in &mut watches {
        for _ in 0..20 {
            assert!(watch.short().await.starts_with("ADDED o"));
        }
        let event = watch.next().await.unwrap();
        assert_eq!(event["object"]["spec"]["host"], "g");
    }
    assert_eq!(hook.calls(), 3, "eight watchers, one conversion");
    let options = json!({});
    let gone = api.delete(&v2, &options).await.ok();
    assert_eq!(gone["items"][0]["apiVersion"], "conv.example.com/v2");
    assert_eq!(api.get(&v1).await.ok()["items"], json!([]));
    hook.tasks.shutdown().stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn migrates_to_new_storage_version_on_write() {
    let (api, namespace) = (admin(), admin().namespace().await);
    let hook = Webhook::start(shared(), here()).await;
    let mut crd = definition("moves", "Move", &hook.url());
    let name = define(&api, &crd).await;
    let [v1, v2] = paths("moves", &namespace);
    let made = api.post(&v1, &first("Move", "a", "h:1")).await.ok();
    crd["spec"]["versions"][0]["storage"] = json!(false);
    crd["spec"]["versions"][1]["storage"] = json!(true);
    let patch = json!({"spec": {"versions": crd["spec"]["versions"]}});
    let at = format!("{DEFINITIONS}/{name}");
    let changed = api.patch(&at, "merge", &patch).await.ok();
    assert_eq!(changed["status"]["storedVersions"], json!(["v1", "v2"]));
    // The new definition is in use once a new object is stored in its version.
    let started = std::time::Instant::now();
    for i in 0.. {
        let other = format!("b{i}");
        api.post(&v1, &first("Move", &other, "g:2")).await.ok();
        if stored("moves", &namespace, &other).await.0.ends_with("v2") {
            break;
        }
        assert!(started.elapsed().as_secs() < 30);
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert_eq!(stored("moves", &namespace, "a").await.0, "conv.example.com/v1");
    assert_eq!(api.get(&format!("{v1}/a")).await.ok(), made);
    assert_eq!(api.get(&format!("{v2}/a")).await.ok()["spec"]["host"], "h");
    // A write without changes still converts the object.
    let same = api.get(&format!("{v1}/a")).await.ok();
    let moved = api.put(&format!("{v1}/a"), &same).await.ok();
    assert_ne!(moved["metadata"]["resourceVersion"], same["metadata"]["resourceVersion"]);
    let (version, tree) = stored("moves", &namespace, "a").await;
    assert_eq!((&*version, &tree["spec"]["host"]), ("conv.example.com/v2", &json!("h")));
    let again = api.put(&format!("{v1}/a"), &moved).await.ok();
    assert_eq!(again["metadata"]["resourceVersion"], moved["metadata"]["resourceVersion"]);
    // A version with stored objects cannot be removed before they are converted.
    let gone = json!({"spec": {"versions": [crd["spec"]["versions"][1]]}});
    let refused = api.patch(&at, "merge", &gone).await.refused(422, "Invalid");
    assert!(refused.contains("v1 was previously a storage version"), "{refused}");
    api.patch(&format!("{at}/status"), "merge", &json!({"status": {"storedVersions": ["v2"]}}))
        .await
        .ok();
    api.patch(&at, "merge", &gone).await.ok();
    hook.tasks.shutdown().stop();
}

#[track_caller]
fn failed(answer: &Answer, wanted: &str) {
    let status = answer.json();
    let message = status["message"].as_str().unwrap();
    assert_eq!((answer.code, status["status"].as_str()), (500, Some("Failure")), "{status}");
    assert!(message.contains(wanted), "{message}\n{wanted}");
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_errors_of_webhook() {
    let (api, namespace) = (admin(), admin().namespace().await);
    let hook = Webhook::start(shared(), here()).await;
    let name = define(&api, &definition("errs", "Err", &hook.url())).await;
    let [v1, v2] = paths("errs", &namespace);
    api.post(&v1, &first("Err", "a", "h:1")).await.ok();
    let object = json!({"kind": "Err", "apiVersion": "conv.example.com/v2", "metadata": {"name": "b"}, "spec": {"host": "h", "port": "1"}});
    for (mode, wanted) in [
        ("refuse", "failed: I do not want to"),
        ("fail", "failed: response.result.status was 'Failed', not 'Success'"),
        ("uid", "failed: expected response.uid=\""),
        ("none", "failed: no response provided"),
        ("count", "returned 0 objects, expected 1"),
        ("large", "failed: Post "),
        (
            "version",
            "returned invalid object at index 0: invalid groupVersion (expected conv.example.com/v1, received conv.example.com/v7)",
        ),
        ("kind", "returned invalid object at index 0: invalid kind (expected Err, received Other)"),
        ("name", "returned invalid object: must have the same name: b != other"),
        (
            "label",
            "returned invalid metadata: metadata.labels: Invalid value: \"_!\": a valid label must be",
        ),
        ("number", "returned invalid metadata: metadata.labels[a] must be a string, but is"),
        ("review", "failed: expected webhook response of kind"),
        (
            "code 500",
            "failed: an error on the server (\"boom\") has prevented the request from succeeding",
        ),
        ("code 404", "failed: the server could not find the requested resource"),
        ("code 503", "failed: the server is currently unable to handle the request"),
    ] {
        hook.set(mode);
        let wanted = format!("conversion webhook for conv.example.com/v2, Kind=Err {wanted}");
        failed(&api.post(&v2, &object).await, &wanted);
    }
    hook.set("refuse");
    failed(
        &api.get(&format!("{v2}/a")).await,
        "conversion webhook for conv.example.com/v1, Kind=Err failed: I do not want to",
    );
    failed(&api.get(&v2).await, "I do not want to");
    failed(&api.get(&format!("{v2}?watch=true")).await, "I do not want to");
    // An open watch ends with the error, so that no event is missed.
    hook.set("words");
    let mut events = Events::open(&api, &format!("{v2}?watch=true")).await;
    let shown = events.next().await.unwrap()["object"].clone();
    assert_eq!(shown["metadata"]["labels"], json!({"said": "webhook"}));
    assert_eq!((shown["metadata"].get("finalizers"), shown.get("extra")), (None, None));
    hook.set("refuse");
    api.patch(&format!("{v1}/a"), "merge", &json!({"spec": {"hostPort": "g:1"}})).await.ok();
    let event = events.next().await.unwrap();
    assert_eq!((&event["type"], &event["object"]["kind"]), (&json!("ERROR"), &json!("Status")));
    assert!(events.next().await.is_none());
    unreachable(&api, &format!("{DEFINITIONS}/{name}"), &v2).await;
    hook.tasks.shutdown().stop();
}

/// Changes the webhook's address to unreachable ones, and checks the errors.
async fn unreachable(api: &Api, crd: &str, v2: &str) {
    let service = |name: &str, port: u64| json!({"service": {"namespace": "default", "name": name, "path": "/p", "port": port}, "caBundle": bundle()});
    for (client, wanted) in [
        (
            json!({"url": "https://127.0.0.1:9/x", "caBundle": bundle()}),
            "Post \"https://127.0.0.1:9/x?timeout=30s\": dial tcp 127.0.0.1:9: connect: connection refused",
        ),
        (
            service("nosuch", 443),
            "Post \"https://nosuch.default.svc:443/p?timeout=30s\": service \"nosuch\" not found",
        ),
        (
            service("kubernetes", 444),
            "Post \"https://kubernetes.default.svc:444/p?timeout=30s\": no service port 444 found for service \"kubernetes\"",
        ),
    ] {
        let pointer = "/spec/conversion/webhook/clientConfig";
        let change = json!([{"op": "replace", "path": pointer, "value": client}]);
        api.patch(crd, "json", &change).await.ok();
        let started = std::time::Instant::now();
        loop {
            let answer = api.get(&format!("{v2}/a")).await;
            let message = answer.json()["message"].as_str().unwrap_or_default().to_owned();
            if message.ends_with(wanted) {
                break;
            }
            assert!(started.elapsed().as_secs() < 20, "{message}\n{wanted}");
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_webhook_by_service() {
    let (api, namespace) = (admin(), admin().namespace().await);
    let name = AltName::dns(format!("hook.{namespace}.svc"));
    let hook = Webhook::start(shared(), vec![name]).await;
    let service = json!({"kind": "Service", "apiVersion": "v1", "metadata": {"name": "hook"}, "spec": {"type": "ExternalName", "externalName": "localhost"}});
    api.post(&format!("/api/v1/namespaces/{namespace}/services"), &service).await.ok();
    let client = json!({"service": {"namespace": namespace, "name": "hook", "path": "/convert", "port": hook.address.port()}, "caBundle": bundle()});
    define(&api, &definition("bysvcs", "BySvc", &client)).await;
    let [v1, v2] = paths("bysvcs", &namespace);
    api.post(&v1, &first("BySvc", "a", "h:1")).await.ok();
    assert_eq!(api.get(&format!("{v2}/a")).await.ok()["spec"]["host"], "h");
    hook.tasks.shutdown().stop();
}
