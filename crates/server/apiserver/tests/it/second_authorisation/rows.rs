//! The objects that need an additional authorization check.

use base64::{Engine as _, prelude::BASE64_STANDARD as BASE64};
use serde_json::{Value, json};

use crate::{harness::config_map, on_demand::PodCertificate};

/// An object to write, and the additional permission that it needs.
pub(super) struct Row {
    pub(super) name: &'static str,
    /// The URL of the collection, with `NS` for the namespace.
    pub(super) at: &'static str,
    /// Empty, or a subresource with a leading slash.
    pub(super) sub: &'static str,
    /// The existing object for writes that change one. Null if there are none.
    pub(super) old: Value,
    /// The object to write.
    pub(super) new: Value,
    /// The field in which they differ, as a JSON pointer.
    pub(super) field: &'static str,
    pub(super) ways: &'static [&'static str],
    /// The rules of the user with the permission.
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
/// Without apply, which removes no fields of other owners.
pub(super) const CHANGES_BUT_APPLY: &[&str] = &["PUT", "json", "merge", "strategic"];

pub(super) const RBAC: &str = "rbac.authorization.k8s.io";
pub(super) const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/NS/roles";
pub(super) const CLUSTER_ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
pub(super) const BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/NS/rolebindings";
pub(super) const CLUSTER_BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
pub(super) const CLAIMS: &str = "/apis/resource.k8s.io/v1/namespaces/NS/resourceclaims";
pub(super) const TEMPLATES: &str = "/apis/resource.k8s.io/v1/namespaces/NS/resourceclaimtemplates";
pub(super) const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
const POD_REQUESTS: &str = "/apis/certificates.k8s.io/v1beta1/namespaces/NS/podcertificaterequests";

pub(super) fn rule(group: &str, resource: &str, verbs: &[&str]) -> Value {
    json!({"apiGroups": [group], "resources": [resource], "verbs": verbs})
}

/// Returns a typical row: a write of the object itself, which is rejected with 403.
fn row(
    (name, at, field): (&'static str, &'static str, &'static str),
    ways: &'static [&'static str],
    [old, new]: [Value; 2],
    second: Value,
    refusal: &'static str,
) -> Row {
    Row { name, at, sub: "", old, new, field, ways, second, code: 403, refusal }
}

pub(super) fn rbac_rows() -> Vec<Row> {
    let secrets = || json!([rule("", "secrets", &["get"])]);
    let role = |kind: &str, rules: Value| json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "rules": rules});
    let none = |kind| role(kind, json!([]));
    let some = |kind| role(kind, secrets());
    let mut labelled = some("ClusterRole");
    labelled["metadata"] =
        json!({"labels": {"rbac.authorization.k8s.io/aggregate-to-edit": "true"}});
    let aggregating = || {
        let mut role = none("ClusterRole");
        role["aggregationRule"] =
            json!({"clusterRoleSelectors": [{"matchLabels": {"nobody": "has"}}]});
        role
    };
    let bind = |kind: &str| {
        let bind = |subjects: Value| json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "cluster-admin"}, "subjects": subjects});
        [bind(json!([])), bind(json!([{"apiGroup": RBAC, "kind": "User", "name": "eve"}]))]
    };
    let held = "is attempting to grant RBAC permissions not currently held:";
    let full = "must have cluster-admin privileges to use the aggregationRule";
    let escalate = |resource| json!([rule(RBAC, resource, &["escalate"])]);
    let all = || escalate("clusterroles");
    let may_bind = || {
        let mut rule = rule(RBAC, "clusterroles", &["bind"]);
        rule["resourceNames"] = json!(["cluster-admin"]);
        json!([rule])
    };
    let everything = json!([rule("*", "*", &["*"]), {"nonResourceURLs": ["*"], "verbs": ["*"]}]);
    let of_role = ("escalate a Role", ROLES, "/rules");
    let of = |field| ("escalate a ClusterRole", CLUSTER_ROLES, field);
    let to_role = || [none("Role"), some("Role")];
    let to_all = || [none("ClusterRole"), some("ClusterRole")];
    let to_aggregating = || [none("ClusterRole"), aggregating()];
    let label = [some("ClusterRole"), labelled];
    let from_aggregating = [aggregating(), none("ClusterRole")];
    let of_binding = ("bind in a namespace", BINDINGS, "/subjects");
    let of_all = ("bind in the cluster", CLUSTER_BINDINGS, "/subjects");
    vec![
        row(of_role, ALL_AND_UPSERT, to_role(), escalate("roles"), held),
        row(of_role, ALL, to_role(), secrets(), held),
        row(of("/rules"), ALL_AND_UPSERT, to_all(), all(), held),
        // With the label, the role's rules are added to aggregating roles.
        row(of("/metadata"), CHANGES, label, all(), held),
        row(of("/aggregationRule"), ALL_AND_UPSERT, to_aggregating(), all(), full),
        row(of("/aggregationRule"), ALL, to_aggregating(), everything, full),
        row(of("/aggregationRule"), CHANGES_BUT_APPLY, from_aggregating, all(), full),
        row(of_binding, ALL_AND_UPSERT, bind("RoleBinding"), may_bind(), held),
        row(of_all, ALL_AND_UPSERT, bind("ClusterRoleBinding"), may_bind(), held),
    ]
}

pub(super) fn policy_rows() -> Vec<Row> {
    let constraints = json!({"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["replicationcontrollers"]}]});
    let object = |kind: &str, spec: Value| json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "spec": spec});
    let validating = |parameter: &str| {
        object(
            "ValidatingAdmissionPolicy",
            json!({"matchConstraints": constraints, "paramKind": {"apiVersion": "v1", "kind": parameter}, "validations": [{"expression": "true"}]}),
        )
    };
    let mutating = |parameter: &str| {
        object(
            "MutatingAdmissionPolicy",
            json!({"matchConstraints": constraints, "paramKind": {"apiVersion": "v1", "kind": parameter}, "reinvocationPolicy": "Never",
                "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": "Object{}"}}]}),
        )
    };
    let reference = |secret: &str| json!({"name": secret, "namespace": "kube-system", "parameterNotFoundAction": "Deny"});
    let validates = |secret: &str| {
        object(
            "ValidatingAdmissionPolicyBinding",
            json!({"policyName": "of-secrets", "paramRef": reference(secret), "validationActions": ["Deny"]}),
        )
    };
    let mutates = |secret: &str| {
        object(
            "MutatingAdmissionPolicyBinding",
            json!({"policyName": "of-secrets", "paramRef": reference(secret)}),
        )
    };
    let row = |name, at, objects, refusal| {
        let secrets = json!([rule("", "secrets", &["get"])]);
        Row { code: 422, ..row((name, at, "/spec"), ALL, objects, secrets, refusal) }
    };
    let kind = "must have \"get\" permission on all objects of the referenced paramKind (kind=Secret, apiVersion=v1)";
    let reference = "does not have \"get\" permission on the object referenced by paramRef";
    vec![
        row(
            "get all of a ValidatingAdmissionPolicy's paramKind",
            "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
            ["ConfigMap", "Secret"].map(validating),
            kind,
        ),
        row(
            "get all of a MutatingAdmissionPolicy's paramKind",
            "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies",
            ["ConfigMap", "Secret"].map(mutating),
            kind,
        ),
        row(
            "read a ValidatingAdmissionPolicyBinding's paramRef",
            "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
            ["a", "b"].map(validates),
            reference,
        ),
        row(
            "read a MutatingAdmissionPolicyBinding's paramRef",
            "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicybindings",
            ["a", "b"].map(mutates),
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
    let row = |ways, statuses: [Value; 2], second: Value, refusal| {
        let at = ("status of a ResourceClaim", CLAIMS, "/status");
        let row = row(at, ways, statuses.map(claim), json!([second]), refusal);
        Row { sub: "/status", code: 422, ..row }
    };
    let bind = "changing status.allocation or status.reservedFor requires resource=\"resourceclaims/binding\"";
    let drive = "changing status.devices requires resource=\"resourceclaims/driver\"";
    let binding = rule("resource.k8s.io", "resourceclaims/binding", &["update", "patch"]);
    let verbs = ["arbitrary-node:update", "arbitrary-node:patch"];
    let mut driver = rule("resource.k8s.io", "resourceclaims/driver", &verbs);
    driver["resourceNames"] = json!(["d.example"]);
    let allocated = json!({"allocation": results});
    let driven = json!({"allocation": results, "devices": devices});
    vec![
        row(CHANGES, [json!({}), allocated.clone()], binding, bind),
        // Apply requires all keys of a device, but a claim without sharing has no `shareID`.
        row(CHANGES_BUT_APPLY, [allocated, driven], driver, drive),
    ]
}

pub(super) fn certificate_rows() -> Vec<Row> {
    let key = pki::Key::generate(pki::KeyAlgorithm::EcdsaP256).unwrap();
    let request = pki::SigningRequest::create(&pki::Subject::new("someone"), &[], &key).unwrap();
    let spec = json!({"request": BASE64.encode(request.to_pem()), "signerName": "example.com/x", "usages": ["client auth"]});
    let csr = |conditions: Value| json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "spec": spec, "status": {"conditions": conditions}});
    let row = |name, sub, kind: &str, verb: &str, refusal| {
        let condition = json!([{"type": kind, "status": "True", "reason": "R", "message": "m"}]);
        let objects = [json!([]), condition].map(csr);
        let second = json!([rule("certificates.k8s.io", "signers", &[verb])]);
        Row { sub, ..row((name, REQUESTS, "/status"), CHANGES, objects, second, refusal) }
    };
    let approve = "user not permitted to approve requests with signerName \"example.com/x\"";
    let sign = "user not permitted to sign requests with signerName \"example.com/x\"";
    vec![
        row("approve for a signer", "/approval", "Approved", "approve", approve),
        row("sign for a signer", "/status", "Failed", "sign", sign),
        pod_certificate_row(),
    ]
}

fn pod_certificate_row() -> Row {
    let certificate = PodCertificate::new();
    let mut pending = certificate.request("");
    pending["apiVersion"] = json!("certificates.k8s.io/v1beta1");
    pending["kind"] = json!("PodCertificateRequest");
    pending["status"] = json!({});
    let mut issued = pending.clone();
    issued["status"] = certificate.status()["status"].take();
    let second = json!([rule("certificates.k8s.io", "signers", &["sign"])]);
    let refusal = "is not permitted to \"sign\" for signer \"a.b/c\"";
    let at = ("sign for a signer of Pods", POD_REQUESTS, "/status");
    let usual = row(at, CHANGES, [pending, issued], second, refusal);
    Row { sub: "/status", code: 422, ..usual }
}

pub(super) fn other_rows() -> Vec<Row> {
    let owned = |owners: Value| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"ownerReferences": owners}});
    let blocking = json!([{"apiVersion": "v1", "kind": "Secret", "name": "s", "uid": "u", "blockOwnerDeletion": true}]);
    let maps = "/api/v1/namespaces/NS/configmaps";
    let limits = "/api/v1/namespaces/NS/limitranges";
    let leases = "/apis/coordination.k8s.io/v1/namespaces/NS/leases";
    let finalizers = || rule("", "secrets/finalizers", &["update"]);
    let hand = ("update finalizers of an owner, delete what is handed over", maps, "/metadata");
    let create = |at, field, ways, new, second| {
        let (name, refusal) = ("create by update or apply", "\" cannot create resource \"");
        row((name, at, field), ways, [Value::Null, new], json!([second]), refusal)
    };
    let data = config_map("", json!({"a": "b"}));
    let limit = json!({"apiVersion": "v1", "kind": "LimitRange", "spec": {"limits": []}});
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": {}});
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "rules": []});
    let lease_group = "coordination.k8s.io";
    vec![
        create(maps, "/data", &["apply-new"], data, rule("", "configmaps", &["create"])),
        create(limits, "/spec", UPSERTS, limit, rule("", "limitranges", &["create"])),
        create(leases, "/spec", UPSERTS, lease, rule(lease_group, "leases", &["create"])),
        create(ROLES, "/rules", UPSERTS, role, rule(RBAC, "roles", &["create"])),
        row(
            hand,
            CREATES,
            [Value::Null, owned(blocking.clone())],
            json!([finalizers()]),
            "cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on",
        ),
        row(
            hand,
            CHANGES,
            [owned(json!([])), owned(blocking)],
            json!([finalizers(), rule("", "configmaps", &["delete"])]),
            "cannot set an ownerRef on a resource you can't delete: ",
        ),
    ]
}
