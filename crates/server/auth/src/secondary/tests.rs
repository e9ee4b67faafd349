use api_meta::{Authorizer, Decision, GroupResource, UserInfo};
use serde_json::{Value, json};

use super::*;
use crate::{rbac::Rbac, testing::Cluster};

/// An authorizer that allows the listed requests, as `verb resource/subresource namespace/name`.
struct AllowList(Vec<&'static str>);

impl Authorizer for AllowList {
    fn authorize(&self, a: &Attributes<'_>) -> Decision {
        let (resource, subresource) = (a.resource, a.subresource);
        let asked = format!("{} {resource}/{subresource} {}/{}", a.verb, a.namespace, a.name);
        if self.0.contains(&asked.as_str()) {
            Decision::Allow(None)
        } else {
            Decision::NoOpinion(None)
        }
    }
}

#[test]
fn rows_have_unique_names() {
    for (i, row) in SECONDARY_CHECKS.iter().enumerate() {
        assert!(SECONDARY_CHECKS[..i].iter().all(|other| other.name != row.name), "{}", row.name);
    }
}

#[test]
fn connections_require_create() {
    let user = UserInfo::new("eve", &[]);
    let pods = |verb, subresource| {
        let request = Attributes::resource(&user, verb, "", "pods").in_namespace("ns").named("p");
        request.with_subresource(subresource)
    };
    let ask = |moment, request: &Attributes<'_>, allowed: &[&'static str]| {
        let (authorizer, objects) = (AllowList(allowed.to_vec()), Cluster::default());
        let (new, rbac) = (&Value::Null, Rbac::new());
        AuthorizedRequest {
            request,
            old: None,
            new,
            authorizer: &authorizer,
            rbac: &rbac,
            objects: &objects,
        }
        .at(moment)
        .map_err(|status| status.message)
    };
    for subresource in ["exec", "attach", "portforward"] {
        assert_eq!(
            ask(Moment::Connect, &pods("get", subresource), &["get pods/exec ns/p"]),
            Err(format!(
                "pods \"p\" is forbidden: User \"eve\" cannot create resource \"pods/{subresource}\" in API group \"\" in the namespace \"ns\""
            ))
        );
        assert_eq!(ask(Moment::Connect, &pods("create", subresource), &[]), Ok(()));
    }
    assert_eq!(ask(Moment::Connect, &pods("get", "exec"), &["create pods/exec ns/p"]), Ok(()));
    assert_eq!(ask(Moment::Connect, &pods("get", "log"), &[]), Ok(()));
    assert_eq!(ask(Moment::Connect, &pods("get", "proxy"), &[]), Ok(()));
    assert!(ask(Moment::Create, &pods("patch", ""), &[]).is_err());
    assert_eq!(ask(Moment::Create, &pods("patch", ""), &["create pods/ ns/p"]), Ok(()));
    assert_eq!(ask(Moment::Create, &pods("create", ""), &[]), Ok(()));
}

/// Returns the errors of a claim write in namespace `ns` by the driver on one node.
fn errors(
    (resource, subresource): (&'static str, &'static str),
    old: Option<&Value>,
    new: &Value,
    allowed: &[&'static str],
    objects: &Cluster,
) -> Vec<String> {
    let mut user = UserInfo::service_account("ns", "driver");
    user.extra.insert("authentication.kubernetes.io/node-name".into(), vec!["n1".into()]);
    let group = if resource.ends_with("policies") { POLICIES } else { DEVICES };
    let request = Attributes::resource(&user, "update", group, resource).in_namespace("ns");
    let request = request.with_subresource(subresource).named("c");
    let (authorizer, rbac) = (AllowList(allowed.to_vec()), Rbac::new());
    let mut errors = ErrorList::new();
    AuthorizedRequest {
        request: &request,
        old,
        new,
        authorizer: &authorizer,
        rbac: &rbac,
        objects,
    }
    .validate(&mut errors);
    errors.iter().map(ToString::to_string).collect()
}

#[test]
fn requires_admin_namespace_for_admin_access() {
    let requests = json!([{"name": "a"}, {"name": "b", "exactly": {"adminAccess": true}}]);
    let beta = json!([{"name": "a"}, {"name": "b", "adminAccess": true}]);
    let claim = |requests: &Value| json!({"spec": {"devices": {"requests": requests}}});
    let template = |requests: &Value| json!({"spec": claim(requests)});
    let objects = [&requests, &beta].into_iter().flat_map(|requests| {
        [("resourceclaims", claim(requests)), ("resourceclaimtemplates", template(requests))]
    });
    let mut labelled = Cluster::default();
    let label = json!({"resource.kubernetes.io/admin-access": "true"});
    labelled.put(&GroupResource::NAMESPACES, json!({"metadata": {"name": "ns", "labels": label}}));
    for (resource, object) in objects {
        let ask = |old, objects: &_| errors((resource, ""), old, &object, &[], objects);
        assert_eq!(
            ask(None, &Cluster::default()),
            [
                "spec.devices.requests[1].adminAccess: Forbidden: admin access to devices requires the `resource.kubernetes.io/admin-access: true` label on the containing namespace"
            ]
        );
        assert!(ask(None, &labelled).is_empty());
        assert!(ask(Some(&object), &Cluster::default()).is_empty());
    }
}

#[test]
fn checks_permissions_for_parts_of_claim_status() {
    let at = |node: &str| json!({"devices": {"results": []}, "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]}});
    let claim = |node: &str, devices: Value| json!({"status": {"allocation": at(node), "devices": devices}});
    let device = |data: &str| json!([{"driver": "d", "pool": "p", "device": "x", "data": data}]);
    let ask = |old: &Value, new: &Value, allowed: &[&'static str]| {
        errors(("resourceclaims", "status"), Some(old), new, allowed, &Cluster::default())
    };
    let bare = json!({"status": {}});
    let allocated = claim("n1", json!([]));
    let binding = "update resourceclaims/binding /";
    let refused = ask(&bare, &allocated, &[]);
    assert_eq!(
        refused,
        [
            "status.allocation: Forbidden: changing status.allocation or status.reservedFor requires resource=\"resourceclaims/binding\", verb=\"update\" permission: resourceclaims.resource.k8s.io is forbidden: User \"system:serviceaccount:ns:driver\" cannot update resource \"resourceclaims/binding\" in API group \"resource.k8s.io\" at the cluster scope"
        ]
    );
    assert!(ask(&bare, &allocated, &[binding]).is_empty());
    assert!(ask(&allocated, &claim("n1", json!([])), &[]).is_empty(), "nothing changes");

    // The permission on the claim's node, and the permission on any node.
    let here = "associated-node:update resourceclaims/driver ns/d";
    let anywhere = "arbitrary-node:update resourceclaims/driver ns/d";
    for (node, allowed, lets) in [
        ("n1", here, true),
        ("n1", anywhere, true),
        ("n2", anywhere, true),
        ("n2", here, false),
        ("n1", binding, false),
    ] {
        let (old, new) = (claim(node, device("a")), claim(node, device("b")));
        let refused = ask(&old, &new, &[allowed]);
        assert_eq!(refused.is_empty(), lets, "{node} {allowed}: {refused:?}");
        assert!(
            refused.iter().all(|e| e.starts_with(
                "status.devices: Forbidden: changing status.devices requires resource=\"resourceclaims/driver\""
            )),
            "{refused:?}"
        );
        // A removed entry is a change, and a duplicate entry hides none.
        let gone = claim(node, json!([]));
        assert_eq!(ask(&old, &gone, &[allowed]).is_empty(), lets, "{node} {allowed}");
        let twice = json!([device("b")[0], device("a")[0]]);
        assert_eq!(ask(&old, &claim(node, twice), &[allowed]).is_empty(), lets);
    }
    let granted =
        json!({"status": {"allocation": {"devices": {"results": [{"adminAccess": true}]}}}});
    let refused = ask(&bare, &granted, &[binding]);
    assert!(
        refused[0].starts_with("status.allocation.devices.results[0].adminAccess: Forbidden"),
        "{refused:?}"
    );
}

#[test]
fn requires_read_access_to_policy_parameters() {
    let policy = |kind: &str| json!({"spec": {"paramKind": {"apiVersion": "v1", "kind": kind}}});
    let old = policy("ConfigMap");
    let ask = |old: Option<&Value>, allowed: &[&'static str]| {
        let objects = Cluster::default();
        errors(("validatingadmissionpolicies", ""), old, &policy("Secret"), allowed, &objects)
    };
    // This test cluster resolves no kinds, so permission for all resources is required.
    let refused = ask(Some(&old), &["get secrets/ */*"]);
    assert_eq!(
        refused,
        [
            "spec.paramKind: Forbidden: user &{system:serviceaccount:ns:driver  [system:serviceaccounts system:serviceaccounts:ns system:authenticated] map[authentication.kubernetes.io/node-name:[n1]]} must have \"get\" permission on all objects of the referenced paramKind (kind=Secret, apiVersion=v1)"
        ]
    );
    assert!(ask(None, &["get */ */*"]).is_empty());
    assert!(ask(Some(&policy("Secret")), &[]).is_empty());
}
