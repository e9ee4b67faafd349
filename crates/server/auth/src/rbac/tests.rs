use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Instant};

use api_config::FeatureGates;
use api_meta::{
    Attributes, Authorizer, Changed, Decision, GroupResource, Objects, Observer, UserInfo,
};
use proptest::{prelude::*, sample::select};
use serde_json::{Value, json};

use super::*;
use crate::testing::{Cluster, bootstrapped};

/// Returns the recorded policy of an upstream server, or `None` if the recording is missing.
fn golden(file: &str) -> Option<Vec<Value>> {
    let beside = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../../shared/reference");
    let root = std::env::var_os("WINDLASS_REFERENCE").map_or(beside, PathBuf::from);
    let text = std::fs::read_to_string(root.join("golden/apiserver").join(file)).ok()?;
    Some(text.split("\n---\n").map(|doc| serde_saphyr::from_str(doc).unwrap()).collect())
}

#[test]
fn bootstrap_policy_equals_upstreams() {
    let mut wanted = BTreeMap::new();
    for file in ["rbac-cluster.yaml", "rbac-namespaced.yaml"] {
        let Some(objects) = golden(file) else {
            eprintln!("skipped: no reference at hand; set WINDLASS_REFERENCE");
            return;
        };
        for mut object in objects {
            // A controller fills the rules of aggregated roles.
            if object.get("aggregationRule").is_some() {
                object["rules"] = json!([]);
            }
            let key = format!(
                "{} {} {}",
                object["kind"], object["metadata"]["namespace"], object["metadata"]["name"]
            );
            wanted.insert(key, object);
        }
    }
    let made: BTreeMap<String, Value> = bootstrap_objects()
        .iter()
        .map(|(_, o)| {
            (
                format!("{} {} {}", o["kind"], o["metadata"]["namespace"], o["metadata"]["name"]),
                o.clone(),
            )
        })
        .collect();
    assert_eq!(made.keys().collect::<Vec<_>>(), wanted.keys().collect::<Vec<_>>());
    for (key, object) in &wanted {
        assert_eq!(&made[key], object, "{key}");
    }
}

#[test]
fn features_add_their_roles_and_permissions() {
    let node = UserInfo::new("n", &[]);
    let rules = |flag: &str| {
        let features = FeatureGates::parse([flag]).unwrap();
        let allowed = node_rules(&features).iter().any(|rule| {
            rule.allows(&Attributes::resource(
                &node,
                "watch",
                "certificates.k8s.io",
                "clustertrustbundles",
            ))
        });
        let objects = ensure_bootstrap(&Cluster::default(), &features);
        (allowed, objects.len() - bootstrap_objects().len())
    };
    assert_eq!(rules(""), (false, 0));
    assert_eq!(rules("ClusterTrustBundle=true"), (false, 4));
    assert_eq!(rules("ClusterTrustBundleProjection=true"), (true, 0));
    assert_eq!(rules("PodCertificateRequest=true"), (false, 2));
    assert_eq!(rules("GenericWorkload=true"), (false, 2));
    assert_eq!(rules("DRAResourcePoolStatus=true"), (false, 2));
    assert_eq!(rules("StorageVersionMigrator=true"), (false, 2));
    assert_eq!(rules("DRADeviceTaintRules=true"), (false, 0));
}

#[test]
fn applies_bootstrap_policy() {
    let rbac = bootstrapped();
    let admin = UserInfo::new("kubernetes-admin", &["system:masters", "system:authenticated"]);
    let nobody = UserInfo::new("bob", &["system:authenticated"]);
    let scheduler = UserInfo::new("system:kube-scheduler", &["system:authenticated"]);
    let replicas = UserInfo::service_account("kube-system", "replicaset-controller");
    let anonymous = UserInfo::anonymous();
    let on = Attributes::resource;
    let cases = [
        (on(&admin, "delete", "apps", "deployments").in_namespace("x"), true),
        (on(&nobody, "list", "", "pods").in_namespace("default"), false),
        (on(&nobody, "create", "authorization.k8s.io", "selfsubjectaccessreviews"), true),
        (on(&scheduler, "create", "", "pods").with_subresource("binding").in_namespace("x"), true),
        (on(&scheduler, "create", "", "pods").in_namespace("x"), false),
        (
            on(&scheduler, "update", "coordination.k8s.io", "leases")
                .in_namespace("kube-system")
                .named("kube-scheduler"),
            true,
        ),
        (
            on(&scheduler, "update", "coordination.k8s.io", "leases")
                .in_namespace("default")
                .named("other"),
            false,
        ),
        (on(&replicas, "create", "", "pods").in_namespace("x"), true),
        (on(&replicas, "create", "", "secrets").in_namespace("x"), false),
        (Attributes::path(&anonymous, "get", "/livez"), true),
        (Attributes::path(&anonymous, "get", "/apis"), false),
        (Attributes::path(&nobody, "get", "/apis/apps"), true),
    ];
    for (request, want) in cases {
        assert_eq!(rbac.authorize(&request).is_allowed(), want, "{request}");
    }
    assert_eq!(
        rbac.authorize(&on(&admin, "get", "", "pods")).reason(),
        "RBAC: allowed by ClusterRoleBinding \"cluster-admin\" of ClusterRole \"cluster-admin\" to Group \"system:masters\""
    );
}

fn binding(namespace: &str, name: &str, kind: &str, role: &str, subject: Value) -> Value {
    json!({"metadata": {"name": name, "namespace": namespace}, "roleRef": {"kind": kind, "name": role}, "subjects": [subject]})
}

#[test]
fn reports_missing_role_and_follows_changes() {
    let rbac = Rbac::new();
    let user = UserInfo::new("bob", &[]);
    let bob = json!({"kind": "User", "name": "bob"});
    let bound = binding("ns", "b", "Role", "reader", bob);
    rbac.changed(Changed::of(&GroupResource::ROLE_BINDINGS, &bound));
    let request = Attributes::resource(&user, "get", "", "pods").in_namespace("ns");
    assert_eq!(
        rbac.authorize(&request).reason(),
        "RBAC: role.rbac.authorization.k8s.io \"reader\" not found"
    );

    let role = json!({"metadata": {"name": "reader", "namespace": "ns"}, "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]});
    rbac.changed(Changed::of(&GroupResource::ROLES, &role));
    assert_eq!(
        rbac.authorize(&request).reason(),
        "RBAC: allowed by RoleBinding \"b/ns\" of Role \"reader\" to User \"bob\""
    );
    assert!(!rbac.authorize(&request.in_namespace("other")).is_allowed());

    rbac.changed(Changed::of(&GroupResource::ROLE_BINDINGS, &bound).gone());
    assert_eq!(rbac.authorize(&request), Decision::NoOpinion(None));
}

#[test]
fn writes_only_differing_bootstrap_objects() {
    let mut cluster = Cluster::default();
    assert_eq!(
        ensure_bootstrap(&cluster, &FeatureGates::default()).len(),
        bootstrap_objects().len()
    );
    for (resource, object) in bootstrap_objects() {
        cluster.put(resource, object.clone());
    }
    assert_eq!(ensure_bootstrap(&cluster, &FeatureGates::default()), []);

    let get = |cluster: &Cluster, name: &str| {
        (*cluster.get(&GroupResource::CLUSTER_ROLES, "", name).unwrap()).clone()
    };
    let mut view = get(&cluster, "system:basic-user");
    view["rules"] = json!([{"apiGroups": ["x"], "resources": ["y"], "verbs": ["z"]}]);
    cluster.put(&GroupResource::CLUSTER_ROLES, view);
    let mut kept = get(&cluster, "system:discovery");
    kept["rules"] = json!([]);
    kept["metadata"]["annotations"]["rbac.authorization.kubernetes.io/autoupdate"] = "false".into();
    cluster.put(&GroupResource::CLUSTER_ROLES, kept);
    let mut moved =
        (*cluster.get(&GroupResource::CLUSTER_ROLE_BINDINGS, "", "system:basic-user").unwrap())
            .clone();
    moved["roleRef"]["name"] = "other".into();
    cluster.put(&GroupResource::CLUSTER_ROLE_BINDINGS, moved);

    let actions = ensure_bootstrap(&cluster, &FeatureGates::default());
    assert_eq!(actions.len(), 2, "{actions:?}");
    let Ensure::Update(updated) = &actions[0].1 else { panic!("{actions:?}") };
    assert_eq!(
        updated["rules"].as_array().unwrap().len(),
        4,
        "an administrator's rule stays: {updated}"
    );
    assert!(
        matches!(&actions[1].1, Ensure::Replace(b) if b["roleRef"]["name"] == "system:basic-user")
    );
}

/// Decides by a scan of all bindings, as documented.
fn naive(objects: &[(GroupResource, Value)], request: &Attributes<'_>) -> bool {
    let role = |kind: &str, namespace: &str, name: &str| {
        let wanted = if kind == "Role" { namespace } else { "" };
        objects.iter().rev().find(|(r, o)| {
            (r == &GroupResource::ROLES || r == &GroupResource::CLUSTER_ROLES)
                && o["metadata"]["name"] == name
                && o["metadata"]["namespace"].as_str().unwrap_or("") == wanted
        })
    };
    objects.iter().filter(|(r, _)| r.resource.ends_with("bindings")).any(|(_, b)| {
        let namespace = b["metadata"]["namespace"].as_str().unwrap_or("");
        let subject = &b["subjects"][0];
        let named = match subject["kind"].as_str().unwrap() {
            "Group" => request.user.in_group(subject["name"].as_str().unwrap()),
            _ => subject["name"] == request.user.name.as_str(),
        };
        let kind = b["roleRef"]["kind"].as_str().unwrap();
        (namespace.is_empty() || namespace == request.namespace)
            && named
            && role(kind, namespace, b["roleRef"]["name"].as_str().unwrap()).is_some_and(
                |(_, role)| {
                    let rules: Vec<PolicyRule> =
                        serde_json::from_value(role["rules"].clone()).unwrap();
                    rules.iter().any(|r| r.allows(request))
                },
            )
    })
}

fn any_object() -> impl Strategy<Value = (GroupResource, Value)> {
    let name = || select(vec!["a", "b"]);
    let namespace = || select(vec!["", "x", "y"]);
    let role = (namespace(), name(), select(vec!["get", "list"]), select(vec!["pods", "secrets"]))
        .prop_map(|(ns, name, verb, resource)| {
            let kind =
                if ns.is_empty() { GroupResource::CLUSTER_ROLES } else { GroupResource::ROLES };
            let rules = json!([{"apiGroups": [""], "resources": [resource], "verbs": [verb]}]);
            (kind, json!({"metadata": {"name": name, "namespace": ns}, "rules": rules}))
        });
    let bind = (namespace(), name(), any::<bool>(), name(), any::<bool>(), name()).prop_map(
        |(ns, name, local, role, group, who)| {
            let kind = if ns.is_empty() {
                GroupResource::CLUSTER_ROLE_BINDINGS
            } else {
                GroupResource::ROLE_BINDINGS
            };
            let role_kind = if local && !ns.is_empty() { "Role" } else { "ClusterRole" };
            let subject = json!({"kind": if group { "Group" } else { "User" }, "name": who});
            (kind, binding(ns, name, role_kind, role, subject))
        },
    );
    prop_oneof![role, bind]
}

proptest! {
    #[test]
    fn index_decides_like_scan(changes in prop::collection::vec((any_object(), any::<bool>()), 0..40)) {
        let rbac = Rbac::new();
        let mut objects: Vec<(GroupResource, Value)> = Vec::new();
        for ((resource, object), delete) in changes {
            let same = |(r, o): &(GroupResource, Value)| *r == resource && o["metadata"] == object["metadata"];
            objects.iter().position(same).map(|at| objects.remove(at));
            let change = Changed::of(&resource, &object);
            if delete {
                rbac.changed(change.gone());
            } else {
                rbac.changed(change);
                objects.push((resource, object));
            }
        }
        for (name, groups) in [("a", vec![]), ("b", vec!["a"]), ("c", vec!["a", "b"])] {
            let user = UserInfo::new(name, &groups);
            for verb in ["get", "list"] {
                for resource in ["pods", "secrets"] {
                    for namespace in ["", "x", "y"] {
                        let request = Attributes::resource(&user, verb, "", resource).in_namespace(namespace);
                        prop_assert_eq!(rbac.authorize(&request).is_allowed(), naive(&objects, &request), "{}", request);
                    }
                }
            }
        }
    }
}

#[test]
fn cost_is_independent_of_other_bindings() {
    let rbac = bootstrapped();
    let user = UserInfo::service_account("ns-7", "app");
    let seconds = |rbac: &Rbac| {
        let request = Attributes::resource(&user, "get", "", "secrets").in_namespace("ns-7");
        let start = Instant::now();
        for _ in 0..2000 {
            std::hint::black_box(rbac.authorize(&request));
        }
        start.elapsed().as_secs_f64()
    };
    let before = seconds(&rbac).max(1e-6);
    for i in 0..2000 {
        let subject = json!({"kind": "User", "name": format!("user-{i}")});
        let bound =
            binding(&format!("ns-{}", i % 50), &format!("b{i}"), "ClusterRole", "view", subject);
        rbac.changed(Changed::of(&GroupResource::ROLE_BINDINGS, &bound));
    }
    let after = seconds(&rbac);
    eprintln!(
        "a decision takes {:.2} µs, {:.2} µs with 2,000 more bindings",
        before * 500.0,
        after * 500.0
    );
    assert!(after < before * 20.0 + 0.05, "{before} s became {after} s");
}

const _: fn() = || {
    fn shared<T: Send + Sync>() {}
    shared::<Arc<Rbac>>();
};

/// A `get` of `nodes/proxy` by WebSocket runs commands in all Pods of the node, like a `create`.
#[test]
fn grants_nodes_proxy_only_to_administrators_and_api_server() {
    let grants = |object: &Value| {
        let has = |rule: &Value, field: &str, wanted: &[&str]| {
            let given = rule[field].as_array().into_iter().flatten();
            given.filter_map(Value::as_str).any(|given| wanted.contains(&given))
        };
        let rules = object["rules"].as_array().into_iter().flatten();
        rules.into_iter().any(|rule| {
            // The verbs of a WebSocket and of a POST.
            has(rule, "verbs", &["get", "create", "*"])
                && has(rule, "apiGroups", &["", "*"])
                && has(rule, "resources", &["*", "*/proxy", "nodes/proxy", "nodes/*"])
        })
    };
    let name = |object: &Value| object["metadata"]["name"].as_str().unwrap().to_owned();
    let objects = policy::bootstrap_objects();
    let granting: Vec<_> =
        objects.iter().filter(|(_, o)| grants(o)).map(|(_, o)| name(o)).collect();
    let mut others = granting.clone();
    // Controllers that read owners and delete dependents may access every resource, but reach no kubelet.
    others.retain(|name| !name.starts_with("system:controller:"));
    assert_eq!(others, ["cluster-admin", "system:kubelet-api-admin"]);
    let bound = objects
        .iter()
        .filter(|(_, o)| granting.iter().any(|role| o["roleRef"]["name"] == role.as_str()));
    let bound: Vec<_> = bound.map(|(_, o)| name(o)).collect();
    assert!(
        bound.iter().all(|name| name == "cluster-admin" || name.starts_with("system:controller:")),
        "{bound:?}"
    );
}
