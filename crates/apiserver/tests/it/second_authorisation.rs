//! Every second authorisation of `auth::second`'s list, tried in every way by somebody who lacks it, and by somebody
//! who has it.
//!
//! The first authorisation is granted to both, so that what refuses is the second one.

use std::collections::BTreeSet;

use auth::second::SECOND;
use base64::{Engine as _, prelude::BASE64_STANDARD as BASE64};
use serde_json::{Value, json};

use crate::{
    harness::{Answer, Api, Identity, TestServer, config_map, pod, start},
    sockets,
};

/// What this server does not serve, because upstream does not by default either.
const NOT_SERVED: [&str; 1] = ["attest for a signer"];

/// An object that is written, and what is asked for beside the verb.
struct Row {
    name: &'static str,
    /// The collection's URL, `NS` for the namespace.
    at: &'static str,
    /// Where the write goes: nothing, or a subresource with its stroke.
    sub: &'static str,
    /// What is there before, for the ways that change something. Null: there are none such.
    old: Value,
    /// What is wanted.
    new: Value,
    /// The field in which they differ, as a JSON pointer of one name.
    field: &'static str,
    ways: &'static [&'static str],
    /// Rules of the one who may and not of the other.
    second: Value,
    code: u16,
    refusal: &'static str,
}

const CREATES: &[&str] = &["POST", "apply-new"];
const UPSERTS: &[&str] = &["PUT-new", "apply-new"];
const CHANGES: &[&str] = &["PUT", "json", "merge", "strategic", "apply"];
const ALL: &[&str] = &["POST", "apply-new", "PUT", "json", "merge", "strategic", "apply"];
const ALL_AND_UPSERT: &[&str] =
    &["POST", "PUT-new", "apply-new", "PUT", "json", "merge", "strategic", "apply"];
/// Apply takes nothing away that another owns.
const CHANGES_BUT_APPLY: &[&str] = &["PUT", "json", "merge", "strategic"];

const RBAC: &str = "rbac.authorization.k8s.io";
const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/NS/roles";
const CLUSTER_ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
const BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/NS/rolebindings";
const CLUSTER_BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
const CLAIMS: &str = "/apis/resource.k8s.io/v1/namespaces/NS/resourceclaims";
const TEMPLATES: &str = "/apis/resource.k8s.io/v1/namespaces/NS/resourceclaimtemplates";
const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";

fn rule(group: &str, resource: &str, verbs: &[&str]) -> Value {
    json!({"apiGroups": [group], "resources": [resource], "verbs": verbs})
}

fn rbac_rows() -> Vec<Row> {
    let secrets = || json!([rule("", "secrets", &["get"])]);
    let role = |kind: &str, rules: Value| json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "rules": rules});
    let mut labelled = role("ClusterRole", secrets());
    labelled["metadata"] =
        json!({"labels": {"rbac.authorization.k8s.io/aggregate-to-edit": "true"}});
    let selects = json!({"clusterRoleSelectors": [{"matchLabels": {"nobody": "has"}}]});
    let mut aggregating = role("ClusterRole", json!([]));
    aggregating["aggregationRule"] = selects;
    let bind = |kind: &str, role: &str| json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role}, "subjects": []});
    let bound = |kind: &str| {
        let mut binding = bind(kind, "cluster-admin");
        binding["subjects"] = json!([{"apiGroup": RBAC, "kind": "User", "name": "eve"}]);
        binding
    };
    let held = "is attempting to grant RBAC permissions not currently held:";
    let full = "must have cluster-admin privileges to use the aggregationRule";
    let row = |name, at, field, ways, old, new, second, refusal| Row {
        name,
        at,
        sub: "",
        old,
        new,
        field,
        ways,
        second,
        code: 403,
        refusal,
    };
    let escalate = |resource| json!([rule(RBAC, resource, &["escalate"])]);
    let may_bind = || {
        let mut rule = rule(RBAC, "clusterroles", &["bind"]);
        rule["resourceNames"] = json!(["cluster-admin"]);
        json!([rule])
    };
    let everything = json!([rule("*", "*", &["*"]), {"nonResourceURLs": ["*"], "verbs": ["*"]}]);
    vec![
        row(
            "escalate a Role",
            ROLES,
            "/rules",
            ALL_AND_UPSERT,
            role("Role", json!([])),
            role("Role", secrets()),
            escalate("roles"),
            held,
        ),
        row(
            "escalate a Role",
            ROLES,
            "/rules",
            ALL,
            role("Role", json!([])),
            role("Role", secrets()),
            secrets(),
            held,
        ),
        row(
            "escalate a ClusterRole",
            CLUSTER_ROLES,
            "/rules",
            ALL_AND_UPSERT,
            role("ClusterRole", json!([])),
            role("ClusterRole", secrets()),
            escalate("clusterroles"),
            held,
        ),
        // A label hands a role's rules to whoever aggregates by it.
        row(
            "escalate a ClusterRole",
            CLUSTER_ROLES,
            "/metadata",
            CHANGES,
            role("ClusterRole", secrets()),
            labelled,
            escalate("clusterroles"),
            held,
        ),
        row(
            "escalate a ClusterRole",
            CLUSTER_ROLES,
            "/aggregationRule",
            ALL_AND_UPSERT,
            role("ClusterRole", json!([])),
            aggregating.clone(),
            escalate("clusterroles"),
            full,
        ),
        row(
            "escalate a ClusterRole",
            CLUSTER_ROLES,
            "/aggregationRule",
            ALL,
            role("ClusterRole", json!([])),
            aggregating.clone(),
            everything,
            full,
        ),
        row(
            "escalate a ClusterRole",
            CLUSTER_ROLES,
            "/aggregationRule",
            CHANGES_BUT_APPLY,
            aggregating,
            role("ClusterRole", json!([])),
            escalate("clusterroles"),
            full,
        ),
        row(
            "bind in a namespace",
            BINDINGS,
            "/subjects",
            ALL_AND_UPSERT,
            bind("RoleBinding", "cluster-admin"),
            bound("RoleBinding"),
            may_bind(),
            held,
        ),
        row(
            "bind in the cluster",
            CLUSTER_BINDINGS,
            "/subjects",
            ALL_AND_UPSERT,
            bind("ClusterRoleBinding", "cluster-admin"),
            bound("ClusterRoleBinding"),
            may_bind(),
            held,
        ),
    ]
}

fn policy_rows() -> Vec<Row> {
    let at = |plural| format!("/apis/admissionregistration.k8s.io/v1/{plural}");
    let constraints = json!({"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}]});
    let policy = |kind: &str, parameter: &str| {
        let mut policy = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "spec": {"matchConstraints": constraints, "paramKind": {"apiVersion": "v1", "kind": parameter}}});
        if kind.starts_with('V') {
            policy["spec"]["validations"] = json!([{"expression": "true"}]);
        } else {
            policy["spec"]["reinvocationPolicy"] = json!("Never");
            policy["spec"]["mutations"] = json!([{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": "Object{}"}}]);
        }
        policy
    };
    let binding = |kind: &str, secret: &str| {
        let reference =
            json!({"name": secret, "namespace": "kube-system", "parameterNotFoundAction": "Deny"});
        let mut binding = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "spec": {"policyName": "of-secrets", "paramRef": reference}});
        if kind.starts_with('V') {
            binding["spec"]["validationActions"] = json!(["Deny"]);
        }
        binding
    };
    let row = |name, plural, old, new, refusal| Row {
        name,
        at: Box::leak(at(plural).into_boxed_str()),
        sub: "",
        old,
        new,
        field: "/spec",
        ways: ALL,
        second: json!([rule("", "secrets", &["get"])]),
        code: 422,
        refusal,
    };
    let kind = "must have \"get\" permission on all objects of the referenced paramKind (kind=Secret, apiVersion=v1)";
    let reference = "does not have \"get\" permission on the object referenced by paramRef";
    let (v, m) = ("ValidatingAdmissionPolicy", "MutatingAdmissionPolicy");
    let (vb, mb) = ("ValidatingAdmissionPolicyBinding", "MutatingAdmissionPolicyBinding");
    vec![
        row(
            "get all of a ValidatingAdmissionPolicy's paramKind",
            "validatingadmissionpolicies",
            policy(v, "ConfigMap"),
            policy(v, "Secret"),
            kind,
        ),
        row(
            "get all of a MutatingAdmissionPolicy's paramKind",
            "mutatingadmissionpolicies",
            policy(m, "ConfigMap"),
            policy(m, "Secret"),
            kind,
        ),
        row(
            "read a ValidatingAdmissionPolicyBinding's paramRef",
            "validatingadmissionpolicybindings",
            binding(vb, "a"),
            binding(vb, "b"),
            reference,
        ),
        row(
            "read a MutatingAdmissionPolicyBinding's paramRef",
            "mutatingadmissionpolicybindings",
            binding(mb, "a"),
            binding(mb, "b"),
            reference,
        ),
    ]
}

fn claim_rows() -> Vec<Row> {
    let spec =
        json!({"devices": {"requests": [{"name": "a", "exactly": {"deviceClassName": "c"}}]}});
    let claim = |status: Value| json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "spec": spec, "status": status});
    let results = json!({"devices": {"results": [{"request": "a", "driver": "d.example", "pool": "p", "device": "x"}]}});
    let devices = json!([{"driver": "d.example", "pool": "p", "device": "x", "data": {"a": "b"}}]);
    let row = |new: Value, old: Value, ways, second, refusal| Row {
        name: "status of a ResourceClaim",
        at: CLAIMS,
        sub: "/status",
        old: claim(old),
        new: claim(new),
        field: "/status",
        ways,
        second: json!([second]),
        code: 422,
        refusal,
    };
    let bind = "changing status.allocation or status.reservedFor requires resource=\"resourceclaims/binding\"";
    let drive = "changing status.devices requires resource=\"resourceclaims/driver\"";
    let mut driver = rule(
        "resource.k8s.io",
        "resourceclaims/driver",
        &["arbitrary-node:update", "arbitrary-node:patch"],
    );
    driver["resourceNames"] = json!(["d.example"]);
    vec![
        row(
            json!({"allocation": results}),
            json!({}),
            CHANGES,
            rule("resource.k8s.io", "resourceclaims/binding", &["update", "patch"]),
            bind,
        ),
        row(
            json!({"allocation": results, "devices": devices}),
            json!({"allocation": results}),
            // Apply wants all keys of a device, of which a claim that shares nothing has no `shareID`.
            CHANGES_BUT_APPLY,
            driver,
            drive,
        ),
    ]
}

fn certificate_rows() -> Vec<Row> {
    let key = pki::Key::generate(pki::KeyAlgorithm::EcdsaP256).unwrap();
    let request = pki::SigningRequest::create(&pki::Subject::new("someone"), &[], &key).unwrap();
    let spec = json!({"request": BASE64.encode(request.to_pem()), "signerName": "example.com/x", "usages": ["client auth"]});
    let csr = |conditions: Value| json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "spec": spec, "status": {"conditions": conditions}});
    let condition =
        |kind: &str| json!([{"type": kind, "status": "True", "reason": "R", "message": "m"}]);
    let row = |name, sub, kind: &str, verb: &str, refusal| Row {
        name,
        at: REQUESTS,
        sub,
        old: csr(json!([])),
        new: csr(condition(kind)),
        field: "/status",
        ways: CHANGES,
        second: json!([rule("certificates.k8s.io", "signers", &[verb])]),
        code: 403,
        refusal,
    };
    vec![
        row(
            "approve for a signer",
            "/approval",
            "Approved",
            "approve",
            "user not permitted to approve requests with signerName \"example.com/x\"",
        ),
        row(
            "sign for a signer",
            "/status",
            "Failed",
            "sign",
            "user not permitted to sign requests with signerName \"example.com/x\"",
        ),
    ]
}

fn other_rows() -> Vec<Row> {
    let owned = |owners: Value| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"ownerReferences": owners}});
    let blocking = json!([{"apiVersion": "v1", "kind": "Secret", "name": "s", "uid": "u", "blockOwnerDeletion": true}]);
    let maps = "/api/v1/namespaces/NS/configmaps";
    let name = "update finalizers of an owner, delete what is handed over";
    let row = |name, at, old, new, field, ways, second, refusal| Row {
        name,
        at,
        sub: "",
        old,
        new,
        field,
        ways,
        second: json!(second),
        code: 403,
        refusal,
    };
    let finalizers = || rule("", "secrets/finalizers", &["update"]);
    let limits = "/api/v1/namespaces/NS/limitranges";
    let lease = "/apis/coordination.k8s.io/v1/namespaces/NS/leases";
    let create = "\" cannot create resource \"";
    let creates = "create by update or apply";
    vec![
        row(
            creates,
            maps,
            Value::Null,
            config_map("", json!({"a": "b"})),
            "/data",
            &["apply-new"],
            vec![rule("", "configmaps", &["create"])],
            create,
        ),
        row(
            creates,
            limits,
            Value::Null,
            json!({"apiVersion": "v1", "kind": "LimitRange", "spec": {"limits": []}}),
            "/spec",
            UPSERTS,
            vec![rule("", "limitranges", &["create"])],
            create,
        ),
        row(
            creates,
            lease,
            Value::Null,
            json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": {}}),
            "/spec",
            UPSERTS,
            vec![rule("coordination.k8s.io", "leases", &["create"])],
            create,
        ),
        row(
            creates,
            ROLES,
            Value::Null,
            json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "rules": []}),
            "/rules",
            UPSERTS,
            vec![rule(RBAC, "roles", &["create"])],
            create,
        ),
        row(
            name,
            maps,
            Value::Null,
            owned(blocking.clone()),
            "/metadata",
            CREATES,
            vec![finalizers()],
            "cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on",
        ),
        row(
            name,
            maps,
            owned(json!([])),
            owned(blocking),
            "/metadata",
            CHANGES,
            vec![finalizers(), rule("", "configmaps", &["delete"])],
            "cannot set an ownerRef on a resource you can't delete: ",
        ),
    ]
}

struct Trial<'s> {
    server: &'s TestServer,
    admin: Api,
    namespace: String,
    count: u32,
    /// What rows found, so that one run tells all.
    wrong: Vec<String>,
}

impl Trial<'_> {
    /// A new user with these rules, in the whole cluster.
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
        // What lists shows, the authoriser has seen.
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

    /// What the write meets, and its name.
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
            let operation = match wanted.is_null() {
                true => json!([{"op": "remove", "path": row.field}]),
                false => json!([{"op": "add", "path": row.field, "value": wanted}]),
            };
            user.patch(&path, "json", &operation).await
        }
        kind => user.patch(&path, kind, &json!({field: wanted})).await,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_second_authorisation_is_asked_for_in_every_way() {
    let server = start(|config| {
        config.enable_admission.push("OwnerReferencesPermissionEnforcement".to_owned());
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
    let listed: BTreeSet<&str> = SECOND.iter().map(|row| row.name).collect();
    assert_eq!(tried, listed, "each row of the list is tried here");
    server.tasks.shutdown().stop();
}

/// What is lacking here is a label of the namespace.
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

/// By WebSocket and by a plain request; a Pod that no node runs shows that the check comes before the connection.
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
        // As somebody else one may do no more than that one.
        assert_eq!(user.send("GET", &pods, &headers, "").await.code, 403, "{rules:?}");
        let master = [("impersonate-user", "target"), ("impersonate-group", "system:masters")];
        assert_eq!(user.send("GET", &maps, &master, "").await.code, 403, "{rules:?}");
    }
    "impersonate"
}

/// A node asks for tokens of its Pods for the audiences that their volumes name, and others where it may.
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
    // What the body says of the account is the URL's.
    let other = json!({"metadata": {"name": "other"}, "spec": {}});
    trial.admin.post(&path, &other).await.refused(422, "Invalid");
    let gone = json!({"metadata": {"uid": "another"}, "spec": {}});
    trial.admin.post(&path, &gone).await.refused(409, "Conflict");
    name
}

/// Verbs and subresources that are rights of their own: a neighbour's right is not enough.
#[tokio::test(flavor = "multi_thread")]
async fn a_neighbouring_right_is_not_enough() {
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
