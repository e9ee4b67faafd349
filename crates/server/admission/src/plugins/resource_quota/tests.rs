use proptest::prelude::*;

use super::*;
use crate::testing::{Cluster, Try, pod};

fn quota(spec: Value, used: Value) -> Value {
    json!({
        "metadata": {"name": "q", "namespace": "ns", "resourceVersion": "7"},
        "spec": spec,
        "status": {"hard": spec["hard"], "used": used}
    })
}

fn cluster(spec: Value, used: Value) -> Cluster {
    Cluster::default().with(&GroupResource::RESOURCE_QUOTAS, quota(spec, used))
}

fn asks(cpu: &str) -> Value {
    json!({"containers": [{"name": "a", "resources": {"requests": {"cpu": cpu}}}]})
}

/// Returns the usage to write, or the message of the rejection.
fn create(cluster: &Cluster, resource: &GroupResource, object: Value) -> Result<Value, String> {
    match Try::create(cluster, resource).charged(&ResourceQuota::default(), object) {
        Ok(quotas) => Ok(quotas.first().map_or(Value::Null, |q| q["status"]["used"].clone())),
        Err(status) => Err(status.message),
    }
}

#[test]
fn charges_pods_and_their_requests() {
    let cluster = cluster(
        json!({"hard": {"pods": "2", "requests.cpu": "2"}}),
        json!({"pods": "1", "requests.cpu": "1500m"}),
    );
    assert_eq!(
        create(&cluster, &GroupResource::PODS, pod(asks("500m"))),
        Ok(json!({"pods": "2", "requests.cpu": "2"}))
    );
    assert_eq!(
        create(&cluster, &GroupResource::PODS, pod(asks("600m"))),
        Err("pods \"p\" is forbidden: exceeded quota: q, requested: requests.cpu=600m, used: requests.cpu=1500m, limited: requests.cpu=2".into())
    );
    assert_eq!(
        create(
            &cluster,
            &GroupResource::PODS,
            pod(json!({"containers": [{"name": "a"}, {"name": "b"}]}))
        ),
        Err("pods \"p\" is forbidden: failed quota: q: must specify requests.cpu for: a,b".into())
    );
    assert_eq!(
        create(
            &cluster,
            &GroupResource::SECRETS,
            json!({"metadata": {"name": "s", "namespace": "ns"}})
        ),
        Ok(Value::Null)
    );
}

#[test]
fn rejects_request_while_usage_is_unknown() {
    let cluster = cluster(json!({"hard": {"pods": "2"}}), Value::Null);
    assert_eq!(
        create(&cluster, &GroupResource::PODS, pod(json!({}))),
        Err("pods \"p\" is forbidden: status unknown for quota: q, resources: pods".into())
    );
}

#[test]
fn enforces_hard_limits_of_status() {
    let spec = json!({"hard": {"pods": "1", "requests.cpu": "1"}});
    let with = |status: Value| {
        let mut quota = quota(spec.clone(), Value::Null);
        quota["status"] = status;
        Cluster::default().with(&GroupResource::RESOURCE_QUOTAS, quota)
    };
    let bare = || pod(json!({"containers": [{"name": "a"}]}));
    for status in [Value::Null, json!({})] {
        assert_eq!(create(&with(status), &GroupResource::PODS, bare()), Ok(Value::Null));
    }
    let fewer = with(json!({"hard": {"pods": "3"}, "used": {"pods": "1"}}));
    assert_eq!(create(&fewer, &GroupResource::PODS, bare()), Ok(json!({"pods": "2"})));
    let more = with(json!({"hard": {"pods": "3", "requests.cpu": "1"}, "used": {"pods": "1"}}));
    assert_eq!(
        create(&more, &GroupResource::PODS, pod(asks("1"))),
        Err("pods \"p\" is forbidden: status unknown for quota: q, resources: requests.cpu".into())
    );
}

#[test]
fn charges_pods_in_scope() {
    let with = |scopes: Value| {
        cluster(json!({"hard": {"pods": "0"}, "scopes": scopes}), json!({"pods": "0"}))
    };
    let selected = |values: Value| {
        let selector = json!({"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": values}]});
        cluster(json!({"hard": {"pods": "0"}, "scopeSelector": selector}), json!({"pods": "0"}))
    };
    let best_effort = json!({"containers": [{"name": "a"}]});
    let counted = |cluster: &Cluster, spec: &Value| {
        create(cluster, &GroupResource::PODS, pod(spec.clone())).is_err()
    };
    let cases = [
        (with(json!(["BestEffort"])), best_effort.clone(), true),
        (with(json!(["BestEffort"])), asks("1"), false),
        (with(json!(["NotBestEffort"])), asks("1"), true),
        (with(json!(["Terminating"])), json!({"activeDeadlineSeconds": 5}), true),
        (with(json!(["Terminating", "BestEffort"])), best_effort.clone(), false),
        (with(json!(["NotTerminating"])), best_effort, true),
        (selected(json!(["high"])), json!({"priorityClassName": "high"}), true),
        (selected(json!(["high"])), json!({"priorityClassName": "low"}), false),
    ];
    for (cluster, spec, want) in cases {
        assert_eq!(counted(&cluster, &spec), want, "{spec}");
    }
    let scoped = cluster(
        json!({"hard": {"count/secrets": "0"}, "scopes": ["BestEffort"]}),
        json!({"count/secrets": "0"}),
    );
    assert!(
        create(
            &scoped,
            &GroupResource::SECRETS,
            json!({"metadata": {"name": "s", "namespace": "ns"}})
        )
        .is_ok()
    );
}

#[test]
fn counts_other_resources() {
    let deployments = GroupResource::new("apps", "deployments");
    let meta = json!({"name": "x", "namespace": "ns"});
    let cases = [
        ("count/deployments.apps", "1", deployments, json!({})),
        ("configmaps", "1", GroupResource::CONFIG_MAPS, json!({})),
        (
            "services.nodeports",
            "2",
            GroupResource::SERVICES,
            json!({"type": "NodePort", "ports": [{}, {}]}),
        ),
        (
            "services.loadbalancers",
            "1",
            GroupResource::SERVICES,
            json!({"type": "LoadBalancer", "ports": [{}]}),
        ),
        (
            "requests.storage",
            "1Gi",
            GroupResource::PERSISTENT_VOLUME_CLAIMS,
            json!({"resources": {"requests": {"storage": "1Gi"}}}),
        ),
        (
            "fast.storageclass.storage.k8s.io/requests.storage",
            "1Gi",
            GroupResource::PERSISTENT_VOLUME_CLAIMS,
            json!({"storageClassName": "fast", "resources": {"requests": {"storage": "1Gi"}}}),
        ),
        (
            "gold.deviceclass.resource.k8s.io/devices",
            "2",
            GroupResource::new("resource.k8s.io", "resourceclaims"),
            json!({"devices": {"requests": [{"exactly":
                {"deviceClassName": "gold", "allocationMode": "ExactCount", "count": 2}}]}}),
        ),
    ];
    for (name, want, resource, spec) in cases {
        let object = json!({"metadata": meta, "spec": spec});
        let hard = |limit: &str| cluster(json!({"hard": {name: limit}}), json!({name: "0"}));
        assert_eq!(
            create(&hard("1Ti"), &resource, object.clone()),
            Ok(json!({name: want})),
            "{name}"
        );
        assert!(
            create(&hard("0"), &resource, object).unwrap_err().contains("exceeded quota"),
            "{name}"
        );
    }
}

#[test]
fn charges_update_for_added_usage() {
    let claim = |size: &str| json!({"metadata": {"name": "c", "namespace": "ns"}, "spec": {"resources": {"requests": {"storage": size}}}});
    let cluster = cluster(
        json!({"hard": {"requests.storage": "3Gi", "persistentvolumeclaims": "1"}}),
        json!({"requests.storage": "1Gi", "persistentvolumeclaims": "1"}),
    );
    let update = |new: &str| {
        let quotas = Try::update(&cluster, &GroupResource::PERSISTENT_VOLUME_CLAIMS, claim("1Gi"))
            .charged(&ResourceQuota::default(), claim(new));
        quotas
            .map(|quotas| {
                quotas
                    .first()
                    .map_or(Value::Null, |q| q["status"]["used"]["requests.storage"].clone())
            })
            .map_err(|s| s.message)
    };
    assert_eq!(update("2Gi"), Ok(json!("2Gi")));
    assert_eq!(update("1Gi"), Ok(Value::Null));
    assert!(
        update("4Gi").unwrap_err().contains("exceeded quota: q, requested: requests.storage=3Gi")
    );
}

#[test]
fn charges_whole_pod_that_enters_scope() {
    let spec = |deadline: Value| {
        let mut spec = asks("500m");
        spec["activeDeadlineSeconds"] = deadline;
        spec
    };
    let update = |scope: &str, hard: &str, old: Value, new: Value| {
        let hard = json!({"hard": {"pods": hard, "requests.cpu": "2"}, "scopes": [scope]});
        let cluster = cluster(hard, json!({"pods": "1", "requests.cpu": "1"}));
        let quotas = Try::update(&cluster, &GroupResource::PODS, pod(spec(old)))
            .charged(&ResourceQuota::default(), pod(spec(new)));
        let used = |quotas: Vec<Value>| quotas.first().map(|q| q["status"]["used"].clone());
        quotas.map(used).map_err(|s| s.message)
    };
    let (without, with) = (Value::Null, json!(50));
    let charged = json!({"pods": "2", "requests.cpu": "1500m"});
    assert_eq!(update("Terminating", "2", without.clone(), with.clone()), Ok(Some(charged)));
    let refused = update("Terminating", "1", without.clone(), with.clone()).unwrap_err();
    assert!(refused.contains("exceeded quota: q, requested: pods=1"), "{refused}");
    // A Pod that leaves a scope or stays in it is not charged again.
    assert_eq!(update("NotTerminating", "1", without, with.clone()), Ok(None));
    assert_eq!(update("Terminating", "1", with, json!(40)), Ok(None));
}

#[test]
fn charges_claim_to_scope_of_its_new_class() {
    let claims = GroupResource::PERSISTENT_VOLUME_CLAIMS;
    let claim = |wanted: &str, current: &str| {
        json!({"metadata": {"name": "c", "namespace": "ns"}, "spec": {"volumeAttributesClassName": wanted},
            "status": {"currentVolumeAttributesClassName": current}})
    };
    let scoped = |hard: &str| {
        let term =
            json!({"scopeName": "VolumeAttributesClass", "operator": "In", "values": ["silver"]});
        let spec = json!({"hard": {"persistentvolumeclaims": hard},
            "scopeSelector": {"matchExpressions": [term]}});
        cluster(spec, json!({"persistentvolumeclaims": "0"}))
    };
    let used = |quotas: Vec<Value>| quotas.first().map(|quota| quota["status"]["used"].clone());
    let update = |hard: &str, subresource, old: Value, new: Value| {
        let cluster = scoped(hard);
        let tried = Try::update(&cluster, &claims, old).sub(subresource);
        tried.charged(&ResourceQuota::default(), new).map(used).map_err(|status| status.message)
    };
    let (gold, both, silver) =
        (claim("gold", "gold"), claim("silver", "gold"), claim("silver", "silver"));
    let one = Ok(Some(json!({"persistentvolumeclaims": "1"})));
    assert_eq!(update("1", "", gold.clone(), both.clone()), one);
    let refused = update("0", "", gold.clone(), both.clone()).unwrap_err();
    assert!(
        refused.contains("exceeded quota: q, requested: persistentvolumeclaims=1"),
        "{refused}"
    );
    assert_eq!(update("0", "", both.clone(), both.clone()), Ok(None));
    assert_eq!(update("0", "status", both, silver.clone()), Ok(None));
    // A status reports what the driver did, so it is counted even above the limit.
    assert_eq!(update("0", "status", gold, silver), one);
}

proptest! {
    /// The recorded usage never exceeds the quota and equals the admitted requests.
    #[test]
    fn usage_never_exceeds_quota(requests in prop::collection::vec(1_i64..800, 1..30)) {
        let mut quota = quota(json!({"hard": {"requests.cpu": "2"}}), json!({"requests.cpu": "0"}));
        let mut admitted = 0;
        for milli in requests {
            let cluster = Cluster::default().with(&GroupResource::RESOURCE_QUOTAS, quota.clone());
            let wanted = pod(asks(&format!("{milli}m")));
            match Try::create(&cluster, &GroupResource::PODS).charged(&ResourceQuota::default(), wanted) {
                Ok(quotas) => {
                    quota = quotas[0].clone();
                    admitted += milli;
                }
                Err(_) => prop_assert!(admitted + milli > 2000),
            }
            let used: Quantity = quota["status"]["used"]["requests.cpu"].as_str().unwrap().parse().unwrap();
            prop_assert_eq!(used.milli_value(), admitted);
            prop_assert!(admitted <= 2000);
        }
    }
}

fn limiting(limited: Value) -> Result<ResourceQuota, ConfigurationError> {
    ResourceQuota::configured(&json!({
        "apiVersion": "apiserver.config.k8s.io/v1", "kind": "ResourceQuotaConfiguration", "limitedResources": limited,
    }))
}

#[test]
fn requires_quota_for_limited_resources() {
    let plugin = limiting(json!([{"resource": "pods", "matchContains": ["cpu"],
        "matchScopes": [{"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}]}]))
    .unwrap();
    let asks = |class: &str, requests: Value| {
        pod(
            json!({"priorityClassName": class, "containers": [{"name": "c", "image": "i", "resources": {"requests": requests}}]}),
        )
    };
    let told = |cluster: &Cluster, pod: Value| {
        let charged = Try::create(cluster, &GroupResource::PODS).charged(&plugin, pod);
        charged.map_or_else(|status| status.message, |_| "charged".to_owned())
    };
    let bare = Cluster::default();
    assert_eq!(told(&bare, asks("", json!({"memory": "1Mi"}))), "charged");
    assert_eq!(
        told(&bare, asks("", json!({"cpu": "1"}))),
        "pods \"p\" is forbidden: insufficient quota to consume: cpu,requests.cpu"
    );
    assert_eq!(
        told(&bare, asks("high", json!({}))),
        "insufficient quota to match these scopes: [{PriorityClass In [high]}]"
    );
    let quota = |name: &str, spec: Value, hard: Value| json!({"metadata": {"name": name, "namespace": "ns"}, "spec": spec, "status": {"hard": hard, "used": {"cpu": "0", "requests.cpu": "0", "pods": "0"}}});
    let cpu = json!({"cpu": "4", "requests.cpu": "4"});
    let counted = Cluster::default()
        .with(&GroupResource::RESOURCE_QUOTAS, quota("q", json!({"hard": cpu}), cpu.clone()));
    assert_eq!(told(&counted, asks("", json!({"cpu": "1"}))), "charged");
    let term = json!({"scopeName": "PriorityClass", "operator": "Exists"});
    let spec = json!({"hard": {"pods": "1"}, "scopeSelector": {"matchExpressions": [term]}});
    let scoped = Cluster::default()
        .with(&GroupResource::RESOURCE_QUOTAS, quota("s", spec, json!({"pods": "1"})));
    assert_eq!(told(&scoped, asks("high", json!({}))), "charged");
    assert!(told(&scoped, asks("high", json!({"cpu": "1"}))).contains("to consume: cpu"));
}

#[test]
fn rejects_limit_without_resource() {
    let told = limiting(json!([{"matchContains": ["cpu"]}])).err().unwrap().to_string();
    assert_eq!(told, "limitedResources[0].resource: Required value");
    assert!(limiting(json!([{"resources": "pods"}])).is_err(), "a field that is unknown");
    assert!(ResourceQuota::configured(&json!({"kind": "Pod"})).is_err());
}
