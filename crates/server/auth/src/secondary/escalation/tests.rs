use api_meta::{Attributes, Changed, GroupResource, Observer, UserInfo};
use serde_json::{Value, json};

use crate::{
    rbac::Rbac,
    secondary::{AuthorizedRequest, Moment},
    testing::{Cluster, bootstrapped},
};

fn binding(namespace: &str, name: &str, kind: &str, role: &str, subject: Value) -> Value {
    json!({"metadata": {"name": name, "namespace": namespace}, "roleRef": {"kind": kind, "name": role}, "subjects": [subject]})
}

#[test]
fn rejects_grant_of_permissions_not_held() {
    let rbac = Rbac::new();
    let bob = UserInfo::new("bob", &["dev"]);
    let role = json!({"metadata": {"name": "r"}, "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]});
    rbac.changed(Changed::of(&GroupResource::CLUSTER_ROLES, &role));
    let bound = binding("", "b", "ClusterRole", "r", json!({"kind": "Group", "name": "dev"}));
    rbac.changed(Changed::of(&GroupResource::CLUSTER_ROLE_BINDINGS, &bound));
    let held = |user: &UserInfo,
                verb: &str,
                resource: &str,
                namespace: &str,
                old: Option<Value>,
                new: Value| {
        let request = Attributes::resource(user, verb, "rbac.authorization.k8s.io", resource);
        let request = request.in_namespace(namespace);
        let objects = Cluster::default();
        let (authorizer, objects) = (&rbac, &objects);
        AuthorizedRequest {
            request: &request,
            old: old.as_ref(),
            new: &new,
            authorizer,
            rbac: &rbac,
            objects,
        }
        .at(Moment::Write)
    };
    let role = |verb: &str| json!({"metadata": {"name": "new"}, "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": [verb]}]});
    let create = |user, new| held(user, "create", "roles", "ns", None, new);
    assert!(create(&bob, role("get")).is_ok());
    assert_eq!(
        create(&bob, role("delete")).unwrap_err().message,
        "roles.rbac.authorization.k8s.io \"new\" is forbidden: user \"bob\" (groups=[\"dev\"]) is attempting to grant RBAC permissions not currently held:\n{APIGroups:[\"\"], Resources:[\"pods\"], Verbs:[\"delete\"]}"
    );
    assert!(create(&bob, json!({"rules": "every"})).is_err(), "what cannot be read grants nothing");
    let masters = UserInfo::new("root", &["system:masters"]);
    assert!(create(&masters, role("delete")).is_ok());

    // The garbage collector may change roles with permissions that it does not hold. Labels matter to an
    // aggregationRule.
    let changed = |field: &str, value: Value| {
        let mut new = role("delete");
        new["metadata"][field] = value;
        held(&bob, "update", "clusterroles", "", Some(role("delete")), new)
    };
    assert!(changed("finalizers", json!(["f"])).is_ok());
    assert!(
        changed("labels", json!({"rbac.authorization.k8s.io/aggregate-to-edit": "true"})).is_err()
    );

    let bind = |user: &UserInfo, name: &str| {
        let new = binding("ns", "b2", "ClusterRole", name, json!({"kind": "User", "name": "eve"}));
        held(user, "create", "rolebindings", "ns", None, new)
    };
    assert!(bind(&bob, "r").is_ok());
    assert_eq!(bind(&bob, "none").unwrap_err().code, 404);
    assert_eq!(bind(&UserInfo::new("eve", &[]), "r").unwrap_err().code, 403);
}

/// A user who sets an aggregation rule must hold all permissions, because the rule could aggregate any of them.
#[test]
fn requires_cluster_admin_to_aggregate() {
    let rbac = bootstrapped();
    let all = json!({"clusterRoleSelectors": [{"matchExpressions": [{"key": "x", "operator": "DoesNotExist"}]}]});
    let role = |aggregation: &Value| json!({"metadata": {"name": "mine"}, "aggregationRule": aggregation, "rules": []});
    let plain = role(&Value::Null);
    for (old, new) in [
        (None, role(&all)),
        (Some(plain.clone()), role(&all)),
        // The role would keep its aggregated rules.
        (Some(role(&all)), plain.clone()),
    ] {
        let write = |user: &UserInfo| {
            let request =
                Attributes::resource(user, "update", "rbac.authorization.k8s.io", "clusterroles");
            let objects = Cluster::default();
            let (old, objects) = (old.as_ref(), &objects);
            AuthorizedRequest {
                request: &request,
                old,
                new: &new,
                authorizer: &rbac,
                rbac: &rbac,
                objects,
            }
            .at(Moment::Write)
        };
        let refused = write(&UserInfo::new("eve", &[])).unwrap_err();
        assert_eq!(
            refused.message,
            "clusterroles.rbac.authorization.k8s.io \"mine\" is forbidden: must have cluster-admin privileges to use the aggregationRule"
        );
        assert!(write(&UserInfo::new("root", &["system:masters"])).is_ok());
        let controller =
            UserInfo::service_account("kube-system", "clusterrole-aggregation-controller");
        assert!(write(&controller).is_ok(), "it may escalate");
    }
}
