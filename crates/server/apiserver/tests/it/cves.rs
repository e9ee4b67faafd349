//! Published vulnerabilities of Kubernetes' API server, one test each.

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::{
    custom::{define, definition},
    harness::{Api, Identity, TestServer, admin, shared, start},
    proxy_targets::{own_address, pod_at},
};

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

/// Grants a user these verbs on a resource in the whole cluster.
async fn grant(api: &Api, user: &str, group: &str, resource: &str, verbs: &[&str]) {
    let rules = json!([{"apiGroups": [group], "resources": [resource], "verbs": verbs}]);
    let role = json!({"metadata": {"name": user}, "rules": rules});
    api.post(&format!("{RBAC}/clusterroles"), &role).await.ok();
    let reference =
        json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": user});
    let subject = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user});
    let binding = json!({"metadata": {"name": user}, "roleRef": reference, "subjects": [subject]});
    api.post(&format!("{RBAC}/clusterrolebindings"), &binding).await.ok();
    // Bindings in a list are also visible to the authorizer.
    api.get(&format!("{RBAC}/clusterrolebindings")).await.ok();
}

async fn metrics(server: &TestServer) -> String {
    let page = server.admin().get("/metrics").await;
    String::from_utf8(page.body.to_vec()).unwrap()
}

/// CVE-2020-8552, CVE-2022-21698: metrics with client-chosen labels exhausted the memory.
#[tokio::test(flavor = "multi_thread")]
async fn cve_2020_8552_bounds_labels_of_metrics() {
    let server = start(|_| {}).await;
    let stranger = server.user("stranger", &[]);
    let before = metrics(&server).await.lines().count();
    for i in 0..50 {
        let chosen = format!("zz-chosen-{i}");
        let headers = [
            ("user-agent", chosen.as_str()),
            ("content-type", &format!("application/{chosen}")),
            ("accept", &format!("application/{chosen}")),
        ];
        for path in [
            format!("/{chosen}"),
            format!("/apis/{chosen}.example.com/{chosen}/{chosen}"),
            format!("/api/v1/{chosen}"),
            format!("/api/v1/namespaces/{chosen}/pods/{chosen}/{chosen}"),
            format!("/api/v1/pods?dryRun={chosen}&fieldManager={chosen}&watch={chosen}"),
        ] {
            stranger.send("GET", &path, &headers, "").await;
            stranger.send(&format!("ZZCHOSEN{i}"), &path, &headers, "").await;
        }
    }
    let after = metrics(&server).await;
    let chosen = after.lines().find(|line| line.to_lowercase().contains("zzchosen"));
    assert_eq!(chosen.or_else(|| after.lines().find(|line| line.contains("zz-chosen"))), None);
    // The first request adds a few dozen lines of buckets; 500 must not add ten times as many.
    let added = after.lines().count().saturating_sub(before);
    assert!(added < 1000, "{added} lines more:\n{after}");
    server.tasks.shutdown().stop();
}

/// CVE-2020-8559: the API server followed redirects of upgrade requests, with credentials.
#[tokio::test(flavor = "multi_thread")]
async fn cve_2020_8559_follows_no_redirect_of_an_upgrade() {
    let Some(address) = own_address() else {
        eprintln!("skipped: this machine has no address but loopback's");
        return;
    };
    let namespace = admin().namespace().await;
    let first = tokio::net::TcpListener::bind((address, 0)).await.unwrap();
    let second = tokio::net::TcpListener::bind((address, 0)).await.unwrap();
    let (port, elsewhere) = (first.local_addr().unwrap().port(), second.local_addr().unwrap());
    pod_at(&admin(), &namespace, "p", &address.to_string(), port).await;
    let path = format!("/api/v1/namespaces/{namespace}/pods/p:{port}/proxy/a");
    let headers = [
        ("connection", "Upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];
    let redirect = async {
        let (mut stream, _) = first.accept().await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        let moved = format!(
            "HTTP/1.1 307 Temporary Redirect\r\nlocation: http://{elsewhere}/b\r\ncontent-length: 0\r\n\r\n"
        );
        stream.write_all(moved.as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
    };
    let token = Identity::Token(shared().powerful_token(&namespace).await);
    let api = shared().tls(token);
    let (answer, ()) = tokio::join!(api.send("GET", &path, &headers, ""), redirect);
    assert_eq!(answer.code, 307, "{:?}", answer.body);
    // The response has arrived, so a client that follows the redirect would have connected by now.
    let nobody = std::future::poll_fn(|cx| std::task::Poll::Ready(second.poll_accept(cx)));
    assert!(nobody.await.is_pending(), "the redirect was followed");
}

/// CVE-2021-25735: admission of a node's update saw the new object in place of the old one.
#[tokio::test(flavor = "multi_thread")]
async fn cve_2021_25735_shows_admission_the_old_node() {
    let server = start(|_| {}).await;
    let api = server.admin();
    let group = "/apis/admissionregistration.k8s.io/v1";
    let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"],
        "resources": ["nodes", "nodes/status"]});
    let same = |field: &str| json!({"expression": format!("oldObject.{field} == object.{field}"), "message": field});
    let validations = ["metadata.labels", "spec.unschedulable", "status.capacity"].map(|field| {
        let has = format!("!has(oldObject.{field}) && !has(object.{field}) || has(oldObject.{field}) && has(object.{field}) && ");
        let mut validation = same(field);
        let expression = format!("{has}{}", validation["expression"].as_str().unwrap());
        validation["expression"] = expression.into();
        validation
    });
    let spec = json!({"matchConstraints": {"resourceRules": [rule]}, "validations": validations});
    let policy = json!({"metadata": {"name": "p"}, "spec": spec});
    let node = |labels: Value, spec: Value, status: Value| json!({"metadata": {"name": "n", "labels": labels}, "spec": spec, "status": status});
    let old = node(json!({"tier": "a"}), json!({}), json!({"capacity": {"cpu": "1"}}));
    api.post("/api/v1/nodes", &old).await.ok();
    api.put("/api/v1/nodes/n/status", &old).await.ok();
    api.post(&format!("{group}/validatingadmissionpolicies"), &policy).await.ok();
    let binding = json!({"metadata": {"name": "b"}, "spec": {"policyName": "p", "validationActions": ["Deny"]}});
    api.post(&format!("{group}/validatingadmissionpolicybindings"), &binding).await.ok();
    for plural in ["policies", "policybindings"] {
        api.get(&format!("{group}/validatingadmission{plural}")).await.ok();
    }
    let kept = json!({"capacity": {"cpu": "1"}});
    for (path, changed, field) in [
        ("n", node(json!({"tier": "b"}), json!({}), kept.clone()), "metadata.labels"),
        (
            "n",
            node(json!({"tier": "a"}), json!({"unschedulable": true}), kept),
            "spec.unschedulable",
        ),
        (
            "n/status",
            node(json!({"tier": "a"}), json!({}), json!({"capacity": {"cpu": "2"}})),
            "status.capacity",
        ),
    ] {
        let message =
            api.put(&format!("/api/v1/nodes/{path}"), &changed).await.refused(422, "Invalid");
        assert!(message.ends_with(&format!("denied request: {field}")), "{message}");
    }
    server.tasks.shutdown().stop();
}

/// CVE-2022-3162: a crafted namespace or name of one custom kind led to the objects of another in the group.
#[tokio::test(flavor = "multi_thread")]
async fn cve_2022_3162_shows_no_other_custom_kind() {
    let server = start(|_| {}).await;
    let api = server.admin();
    // One plural is a prefix of the other, and hence their keys are.
    define(&api, &definition("alphas", "Alpha")).await;
    define(&api, &definition("alphasecrets", "AlphaSecret")).await;
    let group = "/apis/test.example.com/v1";
    let marker = "zz-hidden";
    let secret = json!({"kind": "AlphaSecret", "apiVersion": "test.example.com/v1",
        "metadata": {"name": "s", "annotations": {"marker": marker}}, "spec": {}});
    api.post(&format!("{group}/namespaces/default/alphasecrets"), &secret).await.ok();
    grant(&api, "reader", "test.example.com", "alphas", &["get", "list", "watch"]).await;
    let reader = server.user("reader", &[]);
    assert_eq!(reader.get(&format!("{group}/alphas")).await.code, 200);
    reader.get(&format!("{group}/alphasecrets")).await.refused(403, "Forbidden");
    let mut paths = Vec::new();
    for up in ["..", "%2e%2e", "..%2f..", "%2e%2e%2falphasecrets", "..%2falphasecrets%2fdefault"] {
        paths.extend([
            format!("{group}/alphas/{up}"),
            format!("{group}/alphas/{up}/alphasecrets"),
            format!("{group}/alphas/{up}%2falphasecrets"),
            format!("{group}/alphas/{up}%2falphasecrets%2fdefault%2fs"),
            format!("{group}/namespaces/{up}/alphas"),
            format!("{group}/namespaces/{up}%2falphasecrets/alphas"),
            format!("{group}/namespaces/{up}%2falphasecrets%2fdefault/alphas"),
            format!("{group}/namespaces/{up}%2falphasecrets/alphas/s"),
            format!("{group}/namespaces/{up}%2falphasecrets%2fdefault/alphas/s"),
            format!("{group}/watch/namespaces/{up}%2falphasecrets/alphas?timeoutSeconds=1"),
            format!("{group}/alphas?fieldSelector=metadata.namespace%3D{up}%252falphasecrets"),
            format!("{group}/alphas?fieldSelector=metadata.namespace%3D{up}%2Falphasecrets"),
            format!("{group}/namespaces/default/alphas?fieldSelector=metadata.name%3D{up}%2Fs"),
        ]);
    }
    paths.extend([
        format!("{group}/namespaces/ecrets/alphas"),
        format!("{group}/alphas?continue=zz"),
        format!("{group}/alphas%2f..%2falphasecrets"),
        format!("{group}/alphas/../alphasecrets"),
    ]);
    for path in &paths {
        for query in ["", "watch=true&timeoutSeconds=1"] {
            if !query.is_empty() && (path.contains("alphas/") || path.contains("/watch/")) {
                continue;
            }
            let joint = if path.contains('?') { '&' } else { '?' };
            let asked = format!("{path}{joint}{query}");
            let answer = reader.get(&asked).await;
            let text = String::from_utf8_lossy(&answer.body).into_owned();
            assert!(!text.contains(marker), "{asked} shows the other kind: {text}");
        }
    }
    server.tasks.shutdown().stop();
}

/// CVE-2024-0793: a v1 autoscaler with an undecodable annotation crashed the controller manager.
#[tokio::test(flavor = "multi_thread")]
async fn cve_2024_0793_stores_no_autoscaler_that_v2_rejects() {
    let namespace = admin().namespace().await;
    let at = |version: &str| {
        format!("/apis/autoscaling/{version}/namespaces/{namespace}/horizontalpodautoscalers")
    };
    let scaler = |name: &str, annotation: &str, text: &str| {
        json!({"metadata": {"name": name, "annotations": {format!("autoscaling.alpha.kubernetes.io/{annotation}"): text}},
            "spec": {"maxReplicas": 3, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}}})
    };
    let dropped = [
        ("behavior", "7"),
        ("behavior", "{\"ScaleUp\": 7}"),
        ("behavior", "{"),
        ("metrics", "[7]"),
        ("metrics", "{\"a\": []}"),
        ("conditions", "{\"type\": []}"),
        ("current-metrics", "true"),
    ];
    for (i, (annotation, text)) in dropped.into_iter().enumerate() {
        let name = format!("h{i}");
        admin().post(&at("v1"), &scaler(&name, annotation, text)).await.ok();
        let stored = admin().get(&format!("{}/{name}", at("v2"))).await.ok();
        assert!(stored["spec"].get("behavior").is_none(), "{text}: {stored}");
        assert!(stored["status"].get("conditions").is_none_or(Value::is_null), "{text}: {stored}");
        assert_eq!(stored["metadata"].get("annotations"), None, "{text}: {stored}");
        // The result of a read in v2 is accepted by v2.
        admin().put(&format!("{}/{name}", at("v2")), &stored).await.ok();
    }
    let wrong = "{\"ScaleUp\": {\"SelectPolicy\": \"Sometimes\", \"Policies\": []}}";
    let message =
        admin().post(&at("v1"), &scaler("w", "behavior", wrong)).await.refused(422, "Invalid");
    assert!(message.contains("spec.behavior.scaleUp.policies: Required value"), "{message}");
    assert!(message.contains("spec.behavior.scaleUp.selectPolicy: Unsupported value"), "{message}");
    let wrong = "[{\"type\": \"Resource\", \"resource\": {\"name\": \"memory\"}}]";
    admin().post(&at("v1"), &scaler("w", "metrics", wrong)).await.refused(422, "Invalid");
    let patch = json!({"metadata": {"annotations": {"autoscaling.alpha.kubernetes.io/behavior": "{\"ScaleDown\": {\"SelectPolicy\": \"x\", \"Policies\": []}}"}}});
    let merge = "merge";
    let path = format!("{}/h0", at("v1"));
    admin().patch(&path, merge, &patch).await.refused(422, "Invalid");
    // An annotation set in v2 must not take effect in v1.
    admin()
        .post(
            &at("v2"),
            &scaler("v2", "behavior", "{\"ScaleDown\": {\"SelectPolicy\": \"Disabled\"}}"),
        )
        .await
        .ok();
    let shown = admin().get(&format!("{}/v2", at("v1"))).await.ok();
    let annotations = &shown["metadata"]["annotations"];
    assert!(annotations.get("autoscaling.alpha.kubernetes.io/behavior").is_none(), "{shown}");
}
