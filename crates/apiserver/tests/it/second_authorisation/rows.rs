//! What each second authorisation is tried with: objects that need it.

use base64::{Engine as _, prelude::BASE64_STANDARD as BASE64};
use serde_json::{Value, json};

use crate::harness::config_map;

/// An object that is written, and what is asked for beside the verb.
pub(super) struct Row {
    pub(super) name: &'static str,
    /// The collection's URL, `NS` for the namespace.
    pub(super) at: &'static str,
    /// Where the write goes: nothing, or a subresource with its stroke.
    pub(super) sub: &'static str,
    /// What is there before, for the ways that change something. Null: there are none such.
    pub(super) old: Value,
    /// What is wanted.
    pub(super) new: Value,
    /// The field in which they differ, as a JSON pointer of one name.
    pub(super) field: &'static str,
    pub(super) ways: &'static [&'static str],
    /// Rules of the one who may and not of the other.
    pub(super) second: Value,
    pub(super) code: u16,
    pub(super) refusal: &'static str,
}

pub(super) const CREATES: &[&str] = &["POST", "apply-new"];
pub(super) const UPSERTS: &[&str] = &["PUT-new", "apply-new"];
pub(super) const CHANGES: &[&str] = &["PUT", "json", "merge", "strategic", "apply"];
pub(super) const ALL: &[&str] =
    &["POST", "apply-new", "PUT", "json", "merge", "strategic", "apply"];
pub(super) const ALL_AND_UPSERT: &[&str] =
    &["POST", "PUT-new", "apply-new", "PUT", "json", "merge", "strategic", "apply"];
/// Apply takes nothing away that another owns.
pub(super) const CHANGES_BUT_APPLY: &[&str] = &["PUT", "json", "merge", "strategic"];

pub(super) const RBAC: &str = "rbac.authorization.k8s.io";
pub(super) const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/NS/roles";
pub(super) const CLUSTER_ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
pub(super) const BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/NS/rolebindings";
pub(super) const CLUSTER_BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
pub(super) const CLAIMS: &str = "/apis/resource.k8s.io/v1/namespaces/NS/resourceclaims";
pub(super) const TEMPLATES: &str = "/apis/resource.k8s.io/v1/namespaces/NS/resourceclaimtemplates";
pub(super) const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";

pub(super) fn rule(group: &str, resource: &str, verbs: &[&str]) -> Value {
    json!({"apiGroups": [group], "resources": [resource], "verbs": verbs})
}

pub(super) fn rbac_rows() -> Vec<Row> {
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

pub(super) fn policy_rows() -> Vec<Row> {
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

pub(super) fn claim_rows() -> Vec<Row> {
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

pub(super) fn certificate_rows() -> Vec<Row> {
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

pub(super) fn other_rows() -> Vec<Row> {
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
