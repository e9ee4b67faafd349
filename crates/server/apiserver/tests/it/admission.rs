//! Admission receives the right attributes for each request, before the request has effects.

use std::sync::Arc;

use admission::{AdmissionResult, Outcome, Plugin, Request};
use api_meta::Status;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::harness::{Answer, Api, TestServer, config_map, deployment, pod, start_with};

/// The attributes that a plugin received in one phase.
#[derive(Clone, Debug, PartialEq)]
struct RecordedCall {
    phase: &'static str,
    /// Operation, kind, resource, namespace and name, the types of the object and of the old one.
    line: String,
    options: Value,
    dry_run: bool,
}

/// A plugin that records the requests of users named `admin`.
#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Vec<RecordedCall>>>);

impl Recorder {
    fn note(&self, phase: &'static str, request: &Request<'_>, object: &Value) {
        if request.user.name != "admin" {
            return;
        }
        let kind = match &*request.kind.group {
            "" => format!("{}/{}", request.kind.version, request.kind.kind),
            group => format!("{group}/{}/{}", request.kind.version, request.kind.kind),
        };
        let resource = match request.subresource {
            "" => request.resource.resource.to_string(),
            subresource => format!("{}/{subresource}", request.resource.resource),
        };
        let type_of = |tree: &Value| match tree {
            Value::Null => "-".to_owned(),
            tree => format!(
                "{}/{}",
                tree["apiVersion"].as_str().unwrap_or("?"),
                tree["kind"].as_str().unwrap_or("?")
            ),
        };
        let line = format!(
            "{} {kind} {resource} {}/{} {} {}",
            request.operation,
            request.namespace,
            request.name,
            type_of(object),
            type_of(request.old.unwrap_or(&Value::Null)),
        );
        let (options, dry_run) = (request.options.clone(), request.dry_run);
        self.0.lock().push(RecordedCall { phase, line, options, dry_run });
    }

    fn take(&self) -> Vec<RecordedCall> {
        std::mem::take(&mut self.0.lock())
    }
}

impl Plugin for Recorder {
    fn precheck(&self, request: &Request<'_>, object: &Value) -> AdmissionResult {
        self.note("mutate", request, object);
        Ok(())
    }

    fn validate(&self, request: &Request<'_>, object: &Value, _: &mut Outcome) -> AdmissionResult {
        self.note("validate", request, object);
        Ok(())
    }

    fn charge(&self, request: &Request<'_>, object: &Value) -> Result<Vec<Value>, Status> {
        self.note("charge", request, object);
        Ok(Vec::new())
    }
}

/// A server with recorded admission.
struct Recorded {
    server: TestServer,
    recorder: Recorder,
}

impl Recorded {
    async fn start() -> (Self, Api, String) {
        let recorder = Recorder::default();
        let plugin = recorder.clone();
        let server = start_with(|_| {}, |chain| chain.and(plugin)).await;
        let api = server.admin();
        let namespace = api.namespace().await;
        (Self { server, recorder }, api, namespace)
    }

    /// Asserts that all phases received one request with these attributes.
    #[track_caller]
    fn saw(&self, what: &str, line: &str, options: &Value) {
        let seen = self.recorder.take();
        let phases: Vec<&str> = seen.iter().map(|seen| seen.phase).collect();
        assert_eq!(phases, ["mutate", "validate", "charge"], "{what}: {seen:#?}");
        for seen in seen {
            assert_eq!((seen.line.as_str(), &seen.options), (line, options), "{what}");
        }
    }
}

fn options(kind: &str) -> Value {
    json!({"kind": kind, "apiVersion": "meta.k8s.io/v1"})
}

pub(crate) const JSON: &str = "application/json";
const JSON_PATCH: &str = "application/json-patch+json";
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

pub(crate) async fn send(api: &Api, method: &str, path: &str, media: &str, body: &Value) -> Answer {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let mut headers = vec![("content-type", media)];
    if media.is_empty() {
        headers = vec![("connection", "upgrade"), ("upgrade", "websocket")];
    }
    api.send(method, path, &headers, body).await
}

#[tokio::test(flavor = "multi_thread")]
#[allow(clippy::too_many_lines, reason = "one scenario")]
async fn admits_each_write_with_its_attributes() {
    let (recorded, api, ns) = Recorded::start().await;
    let maps = format!("/api/v1/namespaces/{ns}/configmaps");
    let (a, deployments) =
        (format!("{maps}/a"), format!("/apis/apps/v1/namespaces/{ns}/deployments"));
    let map = config_map("a", json!({"k": "v"}));
    let applied = |name: &str| config_map(name, json!({"k": "applied"}));
    let add = json!([{"op": "add", "path": "/data/j", "value": "1"}]);
    let (create, update, delete) =
        (options("CreateOptions"), options("UpdateOptions"), options("DeleteOptions"));
    let with = |base: &Value, more: Value| {
        let mut all = base.clone();
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        all
    };
    let managed = json!({"fieldManager": "m"});
    let strict = json!({"fieldManager": "m", "fieldValidation": "Strict", "dryRun": ["All"]});
    let strict_query = "fieldManager=m&fieldValidation=Strict&dryRun=All";
    let scale = json!({"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": {"name": "d"}, "spec": {"replicas": 2}});
    let one = |method, path: &str, media, body: &Value, line: &str, options: Value| {
        let line = line.replace("NS", &ns);
        (method, path.to_owned(), media, body.clone(), line, options)
    };
    let updated = "UPDATE v1/ConfigMap configmaps NS/a v1/ConfigMap v1/ConfigMap";
    let scaled = "UPDATE autoscaling/v1/Scale deployments/scale NS/d autoscaling/v1/Scale autoscaling/v1/Scale";
    let d = format!("{deployments}/d");
    let rows = [
        one(
            "POST",
            &format!("{maps}?{strict_query}"),
            JSON,
            &map,
            "CREATE v1/ConfigMap configmaps NS/a v1/ConfigMap -",
            with(&create, strict.clone()),
        ),
        one(
            "POST",
            &maps,
            JSON,
            &map,
            "CREATE v1/ConfigMap configmaps NS/a v1/ConfigMap -",
            create.clone(),
        ),
        one("PUT", &a, JSON, &map, updated, update.clone()),
        one(
            "PATCH",
            &format!("{a}?{strict_query}"),
            JSON_PATCH,
            &add,
            updated,
            with(&update, strict),
        ),
        one("PATCH", &a, JSON_PATCH, &add, updated, update.clone()),
        one("PATCH", &a, MERGE, &json!({"data": {"m": "1"}}), updated, update.clone()),
        one("PATCH", &a, STRATEGIC, &json!({"data": {"s": "1"}}), updated, update.clone()),
        one(
            "PATCH",
            &format!("{a}?fieldManager=m&force=true"),
            APPLY,
            &applied("a"),
            updated,
            with(&update, managed.clone()),
        ),
        one(
            "PATCH",
            &format!("{maps}/b?fieldManager=m"),
            APPLY,
            &applied("b"),
            "CREATE v1/ConfigMap configmaps NS/b v1/ConfigMap -",
            with(&create, managed),
        ),
        one(
            "DELETE",
            &a,
            JSON,
            &json!({"gracePeriodSeconds": 3, "orphanDependents": false, "dryRun": ["All"]}),
            "DELETE v1/ConfigMap configmaps NS/a - v1/ConfigMap",
            with(
                &delete,
                json!({"gracePeriodSeconds": 3, "orphanDependents": false, "dryRun": ["All"]}),
            ),
        ),
        one(
            "DELETE",
            &format!("{a}?propagationPolicy=Background"),
            JSON,
            &Value::Null,
            "DELETE v1/ConfigMap configmaps NS/a - v1/ConfigMap",
            with(&delete, json!({"propagationPolicy": "Background"})),
        ),
        one(
            "DELETE",
            &maps,
            JSON,
            &Value::Null,
            "DELETE v1/ConfigMap configmaps NS/ - v1/ConfigMap",
            delete.clone(),
        ),
        one(
            "POST",
            &deployments,
            JSON,
            &deployment("d"),
            "CREATE apps/v1/Deployment deployments NS/d apps/v1/Deployment -",
            create.clone(),
        ),
        one(
            "PATCH",
            &format!("{d}/status"),
            MERGE,
            &json!({"status": {"replicas": 1}}),
            "UPDATE apps/v1/Deployment deployments/status NS/d apps/v1/Deployment apps/v1/Deployment",
            update.clone(),
        ),
        one("PUT", &format!("{d}/scale"), JSON, &scale, scaled, update.clone()),
        one(
            "PATCH",
            &format!("{d}/scale"),
            MERGE,
            &json!({"spec": {"replicas": 3}}),
            scaled,
            update.clone(),
        ),
        one(
            "POST",
            "/api/v1/namespaces",
            JSON,
            &json!({"metadata": {"name": "new"}}),
            "CREATE v1/Namespace namespaces new/new v1/Namespace -",
            create.clone(),
        ),
        one(
            "DELETE",
            "/api/v1/namespaces/new",
            JSON,
            &Value::Null,
            "DELETE v1/Namespace namespaces new/new - v1/Namespace",
            delete,
        ),
        one(
            "POST",
            &format!("/api/v1/namespaces/{ns}/serviceaccounts/default/token"),
            JSON,
            &json!({"spec": {}}),
            "CREATE authentication.k8s.io/v1/TokenRequest serviceaccounts/token NS/default authentication.k8s.io/v1/TokenRequest -",
            create.clone(),
        ),
        one(
            "POST",
            "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
            JSON,
            &json!({"spec": {"nonResourceAttributes": {"path": "/", "verb": "get"}}}),
            "CREATE authorization.k8s.io/v1/SelfSubjectAccessReview selfsubjectaccessreviews / authorization.k8s.io/v1/SelfSubjectAccessReview -",
            create,
        ),
    ];
    recorded.recorder.take();
    for (method, path, media, body, line, options) in rows {
        let answer = send(&api, method, &path, media, &body).await;
        assert!(answer.code < 300, "{method} {path}: {answer:?}");
        recorded.saw(&format!("{method} {path}"), &line, &options);
    }
    recorded.server.tasks.shutdown().stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn admits_each_pod_subresource_with_its_attributes() {
    let (recorded, api, ns) = Recorded::start().await;
    let pods = format!("/api/v1/namespaces/{ns}/pods");
    for name in ["p", "q"] {
        api.post(&pods, &pod(name)).await.ok();
    }
    let (create, update) = (options("CreateOptions"), options("UpdateOptions"));
    let bind =
        |name: &str| json!({"metadata": {"name": name}, "target": {"kind": "Node", "name": "n"}});
    let debug = json!({"spec": {"ephemeralContainers": [{"name": "d", "image": "i", "terminationMessagePolicy": "File"}]}});
    let resources = json!({"spec": {"containers": [{"name": "c", "resources": {}}]}});
    let rehearsal = json!({"metadata": {"name": "p"}, "deleteOptions": {"dryRun": ["All"]}});
    let updated = |sub: &str| format!("UPDATE v1/Pod pods/{sub} {ns}/p v1/Pod v1/Pod");
    let bound = format!("CREATE v1/Binding pods/binding {ns}/p v1/Binding -");
    let rows = [
        (
            "PATCH",
            "p/status",
            STRATEGIC,
            json!({"status": {"phase": "Running"}}),
            updated("status"),
            &update,
        ),
        (
            "PATCH",
            "p/ephemeralcontainers",
            STRATEGIC,
            debug,
            updated("ephemeralcontainers"),
            &update,
        ),
        ("PATCH", "p/resize", STRATEGIC, resources, updated("resize"), &update),
        ("POST", "p/binding", JSON, bind("p"), bound, &create),
        (
            "POST",
            "p/eviction",
            JSON,
            rehearsal,
            format!("CREATE policy/v1/Eviction pods/eviction {ns}/p policy/v1/Eviction -"),
            &create,
        ),
        (
            "POST",
            "p/eviction",
            JSON,
            json!({"metadata": {"name": "p"}}),
            format!("CREATE policy/v1/Eviction pods/eviction {ns}/p policy/v1/Eviction -"),
            &create,
        ),
    ];
    recorded.recorder.take();
    for (method, sub, media, body, line, options) in rows {
        let answer = send(&api, method, &format!("{pods}/{sub}"), media, &body).await;
        assert!(answer.code < 300, "{method} {sub}: {answer:?}");
        recorded.saw(&format!("{method} {sub}"), &line, options);
    }
    // The legacy collection of bindings is a separate resource.
    api.post(&format!("/api/v1/namespaces/{ns}/bindings"), &bind("q")).await.ok();
    recorded.saw("bindings", &format!("CREATE v1/Binding bindings {ns}/q v1/Binding -"), &create);
    recorded.server.tasks.shutdown().stop();
}

#[allow(clippy::too_many_lines, reason = "one scenario")]
#[tokio::test(flavor = "multi_thread")]
async fn admits_each_connection_with_its_options() {
    let recorder = Recorder::default();
    let objects = Arc::new(Mutex::new(Vec::new()));
    struct Objects(Arc<Mutex<Vec<Value>>>);
    impl Plugin for Objects {
        fn validate(
            &self,
            request: &Request<'_>,
            object: &Value,
            _: &mut Outcome,
        ) -> AdmissionResult {
            if request.user.name == "admin" {
                self.0.lock().push(object.clone());
            }
            Ok(())
        }
    }
    let plugins = (recorder.clone(), Objects(objects.clone()));
    let server = start_with(|_| {}, |chain| chain.and(plugins.0).and(plugins.1)).await;
    let api = server.admin();
    let ns = api.namespace().await;
    let pods = format!("/api/v1/namespaces/{ns}/pods");
    api.post(&pods, &pod("p")).await.ok();
    let services = format!("/api/v1/namespaces/{ns}/services");
    api.post(&services, &json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}}))
        .await
        .ok();
    api.post("/api/v1/nodes", &json!({"metadata": {"name": "n"}})).await.ok();
    let p = format!("{pods}/p");
    let proxied = format!("{services}/http:s:80/proxy");
    let exec = json!({"kind": "PodExecOptions", "apiVersion": "v1", "stdin": true, "tty": true, "container": "c", "command": ["sh", "-c"]});
    let exec_query = "stdin=true&stdout=false&tty&container=c&command=sh&command=-c";
    let attach = json!({"kind": "PodAttachOptions", "apiVersion": "v1", "stdout": true});
    let forward =
        json!({"kind": "PodPortForwardOptions", "apiVersion": "v1", "ports": [80, 81, 443]});
    let path = |kind: &str, path: &str| json!({"kind": kind, "apiVersion": "v1", "path": path});
    let bare = |kind: &str| json!({"kind": kind, "apiVersion": "v1"});
    let at = |kind: &str, resource: &str, name: &str| {
        let ns = if resource.starts_with("nodes") { "" } else { ns.as_str() };
        format!("CONNECT v1/{kind} {resource} {ns}/{name} v1/{kind} -")
    };
    let rows = [
        (
            "POST",
            format!("{p}/exec?{exec_query}"),
            at("PodExecOptions", "pods/exec", "p"),
            exec.clone(),
        ),
        ("GET", format!("{p}/exec?{exec_query}"), at("PodExecOptions", "pods/exec", "p"), exec),
        (
            "POST",
            format!("{p}/attach?stdout=1"),
            at("PodAttachOptions", "pods/attach", "p"),
            attach.clone(),
        ),
        ("GET", format!("{p}/attach?stdout=1"), at("PodAttachOptions", "pods/attach", "p"), attach),
        (
            "POST",
            format!("{p}/portforward?ports=80,81&ports=443"),
            at("PodPortForwardOptions", "pods/portforward", "p"),
            forward.clone(),
        ),
        (
            "GET",
            format!("{p}/portforward?ports=80,81&ports=443"),
            at("PodPortForwardOptions", "pods/portforward", "p"),
            forward,
        ),
        (
            "GET",
            format!("{p}/proxy/a/b/"),
            at("PodProxyOptions", "pods/proxy", "p"),
            path("PodProxyOptions", "/a/b/"),
        ),
        (
            "DELETE",
            format!("{p}/proxy"),
            at("PodProxyOptions", "pods/proxy", "p"),
            bare("PodProxyOptions"),
        ),
        (
            "POST",
            format!("{proxied}/a"),
            at("ServiceProxyOptions", "services/proxy", "http:s:80"),
            path("ServiceProxyOptions", "/a"),
        ),
        (
            "PUT",
            "/api/v1/nodes/n/proxy/".to_owned(),
            at("NodeProxyOptions", "nodes/proxy", "n"),
            path("NodeProxyOptions", "/"),
        ),
    ];
    for (method, url, line, object) in rows {
        recorder.take();
        objects.lock().clear();
        // There is no backend, so the response is ignored.
        let media = if method == "GET" { "" } else { JSON };
        send(&api, method, &url, media, &Value::Null).await;
        let seen = recorder.take();
        let phases: Vec<&str> = seen.iter().map(|seen| seen.phase).collect();
        assert_eq!(phases, ["mutate", "validate", "charge"], "{method} {url}: {seen:#?}");
        for seen in seen {
            assert_eq!((seen.line.as_str(), &seen.options), (line.as_str(), &Value::Null), "{url}");
        }
        assert_eq!(*objects.lock(), [object], "{method} {url}");
    }
    recorder.take();
    api.post(&format!("{p}/exec?dryRun=All"), &Value::Null).await.refused(400, "BadRequest");
    api.post(&format!("{p}/portforward?ports=x"), &Value::Null).await.refused(400, "BadRequest");
    // A log is read, and not a connection.
    api.get(&format!("{p}/log")).await;
    assert_eq!(recorder.take(), []);
    server.tasks.shutdown().stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn omits_generated_name_before_generation() {
    let (recorded, api, ns) = Recorded::start().await;
    recorded.recorder.take();
    let maps = format!("/api/v1/namespaces/{ns}/configmaps");
    let made = api.post(&maps, &json!({"metadata": {"generateName": "x-"}})).await.ok();
    let name = made["metadata"]["name"].as_str().unwrap();
    let lines: Vec<String> = recorded.recorder.take().into_iter().map(|seen| seen.line).collect();
    let line = |name: &str| format!("CREATE v1/ConfigMap configmaps {ns}/{name} v1/ConfigMap -");
    assert_eq!(lines, [line(""), line(name), line(name)]);
    recorded.server.tasks.shutdown().stop();
}
