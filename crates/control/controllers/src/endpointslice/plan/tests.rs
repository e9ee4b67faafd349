use std::collections::BTreeSet;

use super::*;

fn service(extra: Value) -> Service {
    let mut object = json!({"metadata": {"name": "web", "namespace": "default", "uid": "s", "labels": {"a": "b"}},
        "spec": {"clusterIP": "10.0.0.1", "selector": {"app": "web"},
            "ports": [{"name": "http", "port": 80, "targetPort": "web"}]}});
    for (key, value) in extra.as_object().unwrap() {
        object["spec"][key] = value.clone();
    }
    serde_json::from_value(object).unwrap()
}

fn pod(number: usize, port: u16, ready: bool) -> Arc<Pod> {
    let name = format!("p{number}");
    let status = if ready { "True" } else { "False" };
    Arc::new(
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "default", "uid": name},
            "spec": {"nodeName": "n", "containers": [{"ports": [{"name": "web", "containerPort": port}]}]},
            "status": {"phase": "Running", "podIP": format!("10.1.{}.{}", number / 250, number % 250 + 1),
                "conditions": [{"type": "Ready", "status": status}]},
        }))
        .unwrap(),
    )
}

const NOWHERE: Topology<'_> = Topology { zone: &|_| None, zones: &Err(Unbalanced::Nodes) };

/// Applies a plan to slices.
fn applied(slices: &[Arc<Slice>], plan: Plan) -> Vec<Arc<Slice>> {
    let mut next = slices.len();
    let mut out: Vec<Arc<Slice>> = slices.to_vec();
    out.retain(|slice| !plan.delete.iter().any(|meta| meta.name == slice.metadata.name));
    for (name, object) in plan.update {
        out.retain(|slice| slice.metadata.name != name);
        out.push(Arc::new(serde_json::from_value(object).unwrap()));
    }
    for mut object in plan.create {
        while out.iter().any(|s| s.metadata.name == format!("web-{next}")) {
            next += 1;
        }
        object["metadata"]["name"] = json!(format!("web-{next}"));
        out.push(Arc::new(serde_json::from_value(object).unwrap()));
        next += 1;
    }
    out
}

fn addresses(slices: &[Arc<Slice>]) -> BTreeSet<String> {
    slices.iter().flat_map(|s| &s.endpoints).map(|e| e.addresses[0].clone()).collect()
}

fn settle(service: &Service, pods: &[Arc<Pod>], slices: &[Arc<Slice>]) -> (Vec<Arc<Slice>>, usize) {
    let plan = plan(service, pods, slices, &NOWHERE, 100);
    let writes = plan.create.len() + plan.update.len() + plan.delete.len();
    let after = applied(slices, plan);
    let again = super::plan(service, pods, &after, &NOWHERE, 100);
    assert_eq!(
        (again.create.len(), again.update.len(), again.delete.len()),
        (0, 0, 0),
        "a second plan must be empty: {again:?}"
    );
    (after, writes)
}

#[test]
fn keeps_one_empty_slice_without_pods() {
    let (slices, writes) = settle(&service(json!({})), &[], &[]);
    assert_eq!((slices.len(), writes), (1, 1));
    assert_eq!(slices[0].metadata.labels["kubernetes.io/service-name"], "web");
    assert_eq!(slices[0].metadata.labels["a"], "b");
    // The first Pod goes into that slice.
    let (slices, writes) = settle(&service(json!({})), &[pod(1, 8080, true)], &slices);
    assert_eq!((slices.len(), writes, slices[0].ports[0].port), (1, 1, Some(8080)));
    // And back.
    let (slices, _) = settle(&service(json!({})), &[], &slices);
    assert_eq!((slices.len(), addresses(&slices).len()), (1, 0));
}

#[test]
fn leaves_full_slices_unchanged() {
    let pods: Vec<_> = (0..250).map(|n| pod(n, 80, true)).collect();
    let (slices, _) = settle(&service(json!({})), &pods, &[]);
    assert_eq!((slices.len(), addresses(&slices).len()), (3, 250));
    let more: Vec<_> = (0..260).map(|n| pod(n, 80, true)).collect();
    let (slices, writes) = settle(&service(json!({})), &more, &slices);
    assert_eq!((slices.len(), writes, addresses(&slices).len()), (3, 1, 260));
    let (slices, writes) = settle(&service(json!({})), &more[1..], &slices);
    assert_eq!((writes, addresses(&slices).len()), (1, 259));
    assert!(slices.iter().all(|s| s.endpoints.len() <= 100));
}

#[test]
fn separates_slices_by_port_number() {
    let pods = [pod(1, 80, true), pod(2, 81, true)];
    let (slices, _) = settle(&service(json!({})), &pods, &[]);
    assert_eq!(slices.len(), 2);
    let (slices, _) = settle(&service(json!({})), &pods[..1], &slices);
    assert_eq!((slices.len(), addresses(&slices).len()), (1, 1));
}

#[test]
fn conditions_follow_readiness_and_termination() {
    let mut ending = (*pod(3, 80, true)).clone();
    ending.metadata.deletion_timestamp = Some("2026-01-01T00:00:00Z".parse().unwrap());
    let pods = [pod(1, 80, true), pod(2, 80, false), Arc::new(ending)];
    let (slices, _) = settle(&service(json!({})), &pods, &[]);
    let of = |name: &str| {
        let mut all = slices.iter().flat_map(|s| &s.endpoints);
        let c = all.find(|e| e.target_ref.as_ref().unwrap().name == name).unwrap().conditions;
        (c.ready, c.serving, c.terminating)
    };
    assert_eq!(
        [of("p1"), of("p2"), of("p3")],
        [(true, true, false), (false, false, false), (false, true, true)]
    );
    let (slices, _) = settle(&service(json!({"publishNotReadyAddresses": true})), &pods[1..2], &[]);
    assert!(slices[0].endpoints[0].conditions.ready);
}

#[test]
fn hints_follow_traffic_distribution_of_service() {
    let place = Topology {
        zone: &|node| (node == "n").then(|| "z".to_owned()),
        zones: &Err(Unbalanced::OneZone),
    };
    let pods = [pod(1, 80, true), pod(2, 80, false)];
    let hints = |service: Value, slices: &[Arc<Slice>]| {
        let plan = plan(&super::tests::service(service), &pods, slices, &place, 100);
        let after = applied(slices, plan);
        let hints = after[0].endpoints.iter().map(|e| json!(e.hints)).collect::<Vec<_>>();
        (after, hints)
    };
    let zone = json!({"forZones": [{"name": "z"}]});
    let node = json!({"forZones": [{"name": "z"}], "forNodes": [{"name": "n"}]});
    let (slices, got) = hints(json!({"trafficDistribution": "PreferSameZone"}), &[]);
    assert_eq!(got, [zone.clone(), zone]);
    let (slices, got) = hints(json!({"trafficDistribution": "PreferSameNode"}), &slices);
    assert_eq!(got, [node.clone(), node]);
    let (slices, got) = hints(json!({}), &slices);
    assert_eq!(got, [Value::Null, Value::Null], "the hints go with the field");
    // A node without a zone has no zone's hint.
    let nowhere = Topology { zone: &|_| None, ..place };
    let service = super::tests::service(json!({"trafficDistribution": "PreferClose"}));
    let plan = plan(&service, &pods, &slices, &nowhere, 100);
    assert!(applied(&slices, plan)[0].endpoints.iter().all(|e| e.hints.is_none()));
}

#[test]
fn limits_endpoints_of_slice() {
    let pods: Vec<_> = (0..5).map(|n| pod(n, 80, true)).collect();
    let plan = plan(&service(json!({})), &pods, &[], &NOWHERE, 2);
    let sizes: Vec<usize> =
        plan.create.iter().map(|slice| slice["endpoints"].as_array().unwrap().len()).collect();
    assert_eq!(sizes, [2, 2, 1]);
}
