//! Tests every additional authorization check of `auth::secondary` by a user without and a user with the permission, in
//! every kind of write.
//!
//! Both users have the permission that the request pipeline checks, so that a rejection is due to the additional check.

mod rows;

use std::collections::BTreeSet;

use api_config::FeatureGates;
use apiserver::flags::RuntimeConfig;
use auth::secondary::SECONDARY_CHECKS;
use serde_json::{Value, json};

use self::rows::*;
use crate::{
    harness::{Answer, Api, Identity, TestServer, config_map, pod, start},
    sockets,
};

/// Checks of features that this server does not serve, because upstream disables them by default.
const NOT_SERVED: [&str; 1] = ["attest for a signer"];

struct Trial<'s> {
    server: &'s TestServer,
    admin: Api,
    namespace: String,
    count: u32,
    /// The failures of all rows, so that one run reports all of them.
    wrong: Vec<String>,
}

impl Trial<'_> {
    /// Creates a user with these rules in the whole cluster.
    async fn user(&mut self, rules: &[Value]) -> Api {
        self.count += 1;
        let name = format!("user-{}", self.count);
        self.grant(&name, "User", rules).await;
        self.server.user(&name, &[])
    }

    async fn grant(&self, name: &str, kind: &str, rules: &[Value]) {
        let role = json!({"metadata": {"name": name}, "rules": rules});
        self.admin.post(CLUSTER_ROLES, &role).await.ok();
        let mut subject = json!({"kind": kind, "name": name});
        if kind == "ServiceAccount" {
            (subject["name"], subject["namespace"]) = (json!("default"), json!(self.namespace));
        }
        let binding = json!({"metadata": {"name": name}, "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": name}, "subjects": [subject]});
        self.admin.post(CLUSTER_BINDINGS, &binding).await.ok();
        // Bindings in a list are also visible to the authorizer.
        self.admin.get(CLUSTER_BINDINGS).await.ok();
    }

    async fn row(&mut self, row: &Row) {
        let at = row.at.replace("NS", &self.namespace);
        let plural = at.rsplit('/').next().unwrap();
        let group = at.strip_prefix("/apis/").and_then(|p| p.split('/').next()).unwrap_or("");
        let resource = format!("{plural}{}", row.sub);
        for way in row.ways {
            let verbs: &[&str] = match *way {
                "POST" => &["create"],
                "PUT" | "PUT-new" => &["update"],
                _ => &["patch"],
            };
            let mut first = vec![rule(group, &resource, verbs)];
            if row.name != "create by update or apply" {
                first.push(rule(group, plural, &["create"]));
            }
            let second = row.second.as_array().unwrap();
            let lacking = self.user(&first).await;
            let having = self.user(&[&first[..], second].concat()).await;
            let (name, before) = self.prepare(row, &at, way).await;
            let told = format!("{} of {at}{} by {way}", row.name, row.sub);
            let refused = write(&lacking, row, &at, way, &name, &before).await;
            let status = refused.json();
            let message = status["message"].as_str().unwrap_or_default();
            if refused.code != row.code || !message.contains(row.refusal) {
                self.wrong.push(format!("{told}, by one who lacks it: {status}"));
            }
            let after = self.admin.get(&format!("{at}/{name}")).await;
            let same = if before.is_null() { after.code == 404 } else { after.json() == before };
            if !same {
                self.wrong.push(format!("{told}: something was written: {}", after.json()));
            }
            let passed = write(&having, row, &at, way, &name, &before).await;
            if passed.code >= 300 {
                self.wrong.push(format!("{told}, by one who has it: {}", passed.json()));
            }
        }
    }

    /// Creates the object that the write changes. Returns its name.
    async fn prepare(&mut self, row: &Row, at: &str, way: &str) -> (String, Value) {
        self.count += 1;
        let name = format!("object-{}", self.count);
        if way == "POST" || way.ends_with("-new") {
            return (name, Value::Null);
        }
        let mut old = row.old.clone();
        old["metadata"]["name"] = json!(name);
        self.admin.post(at, &old).await.ok();
        if !row.sub.is_empty() && row.old["status"] != json!({}) {
            let status = json!({"status": row.old["status"]});
            self.admin.patch(&format!("{at}/{name}{}", row.sub), "merge", &status).await.ok();
        }
        let before = self.admin.get(&format!("{at}/{name}")).await.ok();
        (name, before)
    }
}

async fn write(user: &Api, row: &Row, at: &str, way: &str, name: &str, before: &Value) -> Answer {
    let path = format!("{at}/{name}{}", row.sub);
    let mut new = row.new.clone();
    new["metadata"]["name"] = json!(name);
    let field = &row.field[1..];
    let mut wanted = new[field].clone();
    let version = before["metadata"]["resourceVersion"].clone();
    match way {
        "POST" => user.post(at, &new).await,
        "PUT-new" => user.put(&path, &new).await,
        "PUT" => {
            new["metadata"]["resourceVersion"] = version;
            user.put(&path, &new).await
        }
        "apply" | "apply-new" => {
            let path = format!("{path}?fieldManager=it&force=true");
            if row.sub.is_empty() {
                return user.patch(&path, "apply", &new).await;
            }
            let mut only = json!({"metadata": {"name": name}});
            for part in ["apiVersion", "kind", field] {
                only[part] = new[part].clone();
            }
            user.patch(&path, "apply", &only).await
        }
        "json" => {
            if field == "metadata" {
                wanted = before["metadata"].clone();
                for (key, value) in new["metadata"].as_object().unwrap() {
                    wanted[key] = value.clone();
                }
            }
            let operation = if wanted.is_null() {
                json!([{"op": "remove", "path": row.field}])
            } else {
                json!([{"op": "add", "path": row.field, "value": wanted}])
            };
            user.patch(&path, "json", &operation).await
        }
        kind => user.patch(&path, kind, &json!({field: wanted})).await,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn checks_each_additional_permission_for_every_write() {
    let server = start(|config| {
        config.enable_admission.push("OwnerReferencesPermissionEnforcement".to_owned());
        let on = "certificates.k8s.io/v1beta1=true".to_owned();
        config.runtime_config = RuntimeConfig::parse(&[on]).unwrap();
        config.features = FeatureGates::parse(["PodCertificateRequest=true"]).unwrap();
    })
    .await;
    let admin = server.admin();
    let namespace = admin.namespace().await;
    let mut trial = Trial { server: &server, admin, namespace, count: 0, wrong: Vec::new() };
    for kind in ["ValidatingAdmissionPolicy", "MutatingAdmissionPolicy"] {
        let plural = kind.to_lowercase().replace("policy", "policies");
        let row = policy_rows().into_iter().find(|row| row.at.ends_with(&plural)).unwrap();
        let mut policy = row.new;
        policy["metadata"] = json!({"name": "of-secrets"});
        trial.admin.post(row.at, &policy).await.ok();
    }
    let rows = [rbac_rows(), policy_rows(), claim_rows(), certificate_rows(), other_rows()];
    let rows: Vec<Row> = rows.into_iter().flatten().collect();
    let mut tried: BTreeSet<&str> = rows.iter().map(|row| row.name).collect();
    for row in &rows {
        trial.row(row).await;
    }
    assert!(trial.wrong.is_empty(), "{}", trial.wrong.join("\n"));
    tried.insert(admin_access(&mut trial, CLAIMS, "adminAccess of a ResourceClaim").await);
    tried.insert(
        admin_access(&mut trial, TEMPLATES, "adminAccess of a ResourceClaimTemplate").await,
    );
    tried.insert(connections(&mut trial).await);
    tried.insert(impersonation(&mut trial).await);
    tried.insert(audiences(&mut trial).await);
    tried.extend(NOT_SERVED);
    let listed: BTreeSet<&str> = SECONDARY_CHECKS.iter().map(|row| row.name).collect();
    assert_eq!(tried, listed, "each row of the list is tried here");
    server.tasks.shutdown().stop();
}

/// Admin access depends on a label of the namespace.
async fn admin_access(trial: &mut Trial<'_>, at: &str, name: &'static str) -> &'static str {
    let claim = json!({"devices": {"requests": [{"name": "a", "exactly": {"deviceClassName": "c", "adminAccess": true}}]}});
    let user = trial.user(&[rule("resource.k8s.io", "*", &["create", "patch"])]).await;
    let label = json!({"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}});
    let plain = trial.admin.namespace().await;
    let labelled = trial.admin.namespace().await;
    let path = format!("/api/v1/namespaces/{labelled}");
    trial.admin.patch(&path, "merge", &label).await.ok();
    for (namespace, code) in [(&plain, 422), (&labelled, 201)] {
        let at = at.replace("NS", namespace);
        let kind =
            if name.ends_with("Template") { "ResourceClaimTemplate" } else { "ResourceClaim" };
        let spec = if name.ends_with("Template") { json!({"spec": claim}) } else { claim.clone() };
        let mut object = json!({"apiVersion": "resource.k8s.io/v1", "kind": kind, "spec": spec, "metadata": {"name": "posted"}});
        let posted = user.post(&at, &object).await;
        object["metadata"]["name"] = json!("applied");
        let applied = user.patch(&format!("{at}/applied?fieldManager=it"), "apply", &object).await;
        for answer in [posted, applied] {
            let text = String::from_utf8_lossy(&answer.body).into_owned();
            assert_eq!(answer.code, code, "{text}");
            let words = "admin access to devices requires the `resource.kubernetes.io/admin-access: true` label on the containing namespace";
            assert_eq!(text.contains(words), code == 422, "{text}");
        }
        let kept = trial.admin.get(&at).await.ok()["items"].as_array().unwrap().len();
        assert_eq!(kept, if code == 422 { 0 } else { 2 });
    }
    name
}

/// Tests WebSocket and plain requests. With a Pod without a node, a successful check leads to another error.
async fn connections(trial: &mut Trial<'_>) -> &'static str {
    let namespace = trial.namespace.clone();
    let pods = format!("/api/v1/namespaces/{namespace}/pods");
    trial.admin.post(&pods, &pod("p")).await.ok();
    let token = format!("/api/v1/namespaces/{namespace}/serviceaccounts/default/token");
    let token = trial.admin.post(&token, &json!({"spec": {}})).await.ok();
    let token = token["status"]["token"].as_str().unwrap().to_owned();
    let by_socket = async |path: &str| {
        let bearer = [(http::header::AUTHORIZATION, format!("Bearer {token}"))];
        sockets::refused(sockets::connect(trial.server, path, &bearer).await)
    };
    let holder = trial.server.tls(Identity::Token(token.clone()));
    let subresources = ["exec", "attach", "portforward"];
    let rules = |verb: &str| -> Vec<Value> {
        subresources.iter().map(|sub| rule("", &format!("pods/{sub}"), &[verb])).collect()
    };
    let paths: Vec<String> =
        subresources.iter().map(|sub| format!("{pods}/p/{sub}?command=id&stdout=1")).collect();
    for path in &paths {
        assert_eq!(by_socket(path).await, 403, "{path}: the first authorisation");
    }
    trial.grant("connect-get", "ServiceAccount", &rules("get")).await;
    for (path, sub) in paths.iter().zip(subresources) {
        assert_eq!(by_socket(path).await, 403, "{path}");
        let message = holder.get(path).await.refused(403, "Forbidden");
        let wanted = format!(
            "pods \"p\" is forbidden: User \"system:serviceaccount:{namespace}:default\" cannot create resource \"pods/{sub}\" in API group \"\" in the namespace \"{namespace}\""
        );
        assert_eq!(message, wanted);
    }
    trial.grant("connect-create", "ServiceAccount", &rules("create")).await;
    for path in &paths {
        let code = by_socket(path).await;
        assert!(code >= 400 && code != 403, "{path}: {code} shows that no node runs the Pod");
    }
    "create to connect"
}

async fn impersonation(trial: &mut Trial<'_>) -> &'static str {
    trial.grant("target", "User", &[rule("", "configmaps", &["list"])]).await;
    let on = rule("", "configmaps", &["impersonate-on:user-info:list"]);
    let be = rule("authentication.k8s.io", "users", &["impersonate:user-info"]);
    let maps = format!("/api/v1/namespaces/{}/configmaps", trial.namespace);
    let pods = format!("/api/v1/namespaces/{}/pods", trial.namespace);
    let headers = [("impersonate-user", "target")];
    let legacy = rule("", "users", &["impersonate"]);
    for (rules, code) in
        [(vec![on.clone()], 403), (vec![be.clone()], 403), (vec![on, be], 200), (vec![legacy], 200)]
    {
        let user = trial.user(&rules).await;
        assert_eq!(user.send("GET", &maps, &headers, "").await.code, code, "{rules:?}");
        // An impersonated user has only the permissions of that user.
        assert_eq!(user.send("GET", &pods, &headers, "").await.code, 403, "{rules:?}");
        let master = [("impersonate-user", "target"), ("impersonate-group", "system:masters")];
        assert_eq!(user.send("GET", &maps, &master, "").await.code, 403, "{rules:?}");
    }
    "impersonate"
}

/// A node requests tokens for the audiences in its Pods' volumes, and for others if it has permission.
async fn audiences(trial: &mut Trial<'_>) -> &'static str {
    let name = "request-serviceaccounts-token-audience";
    let node = trial.server.user("system:node:n1", &["system:nodes"]);
    let mut bound = pod("bound");
    bound["spec"]["nodeName"] = json!("n1");
    let base = format!("/api/v1/namespaces/{}", trial.namespace);
    let bound = trial.admin.post(&format!("{base}/pods"), &bound).await.ok();
    trial.admin.get(&format!("{base}/pods")).await.ok();
    let reference = json!({"kind": "Pod", "apiVersion": "v1", "name": "bound", "uid": bound["metadata"]["uid"]});
    let request = json!({"spec": {"audiences": ["vault"], "boundObjectRef": reference}});
    let path = format!("{base}/serviceaccounts/default/token");
    let message = node.post(&path, &request).await.refused(403, "Forbidden");
    assert!(
        message.ends_with("audience \"vault\" not found in pod spec volume, system:node:n1 is not authorized to request tokens for this audience"),
        "{message}"
    );
    trial.grant("system:node:n1", "User", &[rule("", "vault", &[name])]).await;
    node.post(&path, &request).await.ok();
    // The service account in the body must match the URL.
    let other = json!({"metadata": {"name": "other"}, "spec": {}});
    trial.admin.post(&path, &other).await.refused(422, "Invalid");
    let gone = json!({"metadata": {"uid": "another"}, "spec": {}});
    trial.admin.post(&path, &gone).await.refused(409, "Conflict");
    name
}

/// Verbs and subresources are separate permissions.
#[tokio::test(flavor = "multi_thread")]
async fn rejects_related_permissions() {
    let server = start(|_| {}).await;
    let admin = server.admin();
    let namespace = admin.namespace().await;
    let mut trial = Trial { server: &server, admin, namespace, count: 0, wrong: Vec::new() };
    let base = format!("/api/v1/namespaces/{}", trial.namespace);
    trial.admin.post(&format!("{base}/pods"), &pod("p")).await.ok();
    let maps = format!("{base}/configmaps");
    trial.admin.post(&maps, &config_map("m", json!({}))).await.ok();
    let user = trial
        .user(&[
            rule("", "configmaps", &["delete", "list", "get", "create", "update", "patch"]),
            rule("", "pods", &["*"]),
            rule("", "serviceaccounts", &["*"]),
        ])
        .await;
    user.delete(&maps, &json!({})).await.refused(403, "Forbidden");
    trial.admin.get(&format!("{maps}/m")).await.ok();
    let container = json!({"spec": {"ephemeralContainers": [{"name": "e", "image": "i"}]}});
    let debug = format!("{base}/pods/p/ephemeralcontainers");
    for kind in ["merge", "strategic"] {
        user.patch(&debug, kind, &container).await.refused(403, "Forbidden");
        let main = user.patch(&format!("{base}/pods/p"), kind, &container).await;
        let after = trial.admin.get(&format!("{base}/pods/p")).await.ok();
        assert!(after["spec"]["ephemeralContainers"].is_null(), "{}: {after}", main.code);
    }
    for (path, body) in [
        ("pods/p/eviction", json!({"metadata": {"name": "p"}})),
        ("pods/p/binding", json!({"target": {"name": "n"}})),
        ("bindings", json!({"metadata": {"name": "p"}, "target": {"name": "n"}})),
        ("serviceaccounts/default/token", json!({"spec": {}})),
    ] {
        user.post(&format!("{base}/{path}"), &body).await.refused(403, "Forbidden");
    }
    server.tasks.shutdown().stop();
}
