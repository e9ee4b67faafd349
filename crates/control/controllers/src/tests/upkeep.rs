use std::collections::BTreeSet;

use super::*;

#[tokio::test]
async fn sets_up_and_empties_namespaces() {
    let config = Config { root_ca: Some("pem".into()), ..Config::default() };
    let names = [
        "namespace-controller",
        "serviceaccount-controller",
        "root-ca-certificate-publisher-controller",
    ];
    let cluster = Cluster::start(&names, config);
    let api = &cluster.api;
    api.create(&Resource::NAMESPACES, json!({"metadata": {"name": "a"}})).await;
    api.until("account and CA are there", |api| {
        let ca = api.get(&Resource::CONFIG_MAPS, "a", "kube-root-ca.crt").unwrap_or_default();
        api.get(&Resource::SERVICE_ACCOUNTS, "a", "default").is_some()
            && ca["data"]["ca.crt"] == "pem"
    })
    .await;
    let at = PatchTarget { namespace: "a", name: "kube-root-ca.crt", subresource: "" };
    api.merge(&Resource::CONFIG_MAPS, at, json!({"data": {"ca.crt": "forged"}})).await;
    api.until("the CA is put right", |api| {
        api.get(&Resource::CONFIG_MAPS, "a", "kube-root-ca.crt").unwrap_or_default()["data"]["ca.crt"] == "pem"
    })
    .await;
    let held =
        json!({"metadata": {"name": "held", "namespace": "a", "finalizers": ["example.com/hold"]}});
    api.create(&Resource::SECRETS, held).await;
    api.client("user").delete(&Resource::NAMESPACES, "", "a", &Default::default()).await.unwrap();
    api.until("the condition names the finalizer", |api| {
        let namespace = api.get(&Resource::NAMESPACES, "", "a").unwrap_or_default();
        let conditions = namespace["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|c| {
            c["type"] == "NamespaceFinalizersRemaining"
                && c["status"] == "True"
                && c["message"]
                    .as_str()
                    .unwrap_or("")
                    .contains("example.com/hold in 1 resource instances")
        })
    })
    .await;
    let at = PatchTarget { namespace: "a", name: "held", subresource: "" };
    api.merge(&Resource::SECRETS, at, json!({"metadata": {"finalizers": null}})).await;
    api.until("it is gone", |api| api.get(&Resource::NAMESPACES, "", "a").is_none()).await;
    assert_eq!(api.list(&Resource::CONFIG_MAPS, "a").len(), 0);
    cluster.stop().await;
}

#[tokio::test]
async fn publishes_endpoints_of_service() {
    let cluster =
        Cluster::start(&["endpointslice-controller", "endpoints-controller"], Config::default());
    let api = &cluster.api;
    let service = json!({"metadata": {"name": "web", "namespace": "default"}, "spec": {"clusterIP": "10.0.0.1",
        "ipFamilies": ["IPv4"], "selector": {"app": "web"}, "ports": [{"port": 80, "protocol": "TCP", "targetPort": 8080}]}});
    api.create(&Resource::SERVICES, service).await;
    let pod = |name: &str| json!({"metadata": {"name": name, "namespace": "default", "labels": {"app": "web"}}, "spec": {}});
    for name in ["a", "b"] {
        api.create(&Resource::PODS, pod(name)).await;
    }
    let behind = |api: &FakeApi| -> BTreeSet<String> {
        let slices = api.list(&Resource::ENDPOINT_SLICES, "default");
        let all =
            slices.iter().flat_map(|s| s["endpoints"].as_array().cloned().unwrap_or_default());
        all.map(|e| e["targetRef"]["name"].as_str().unwrap_or_default().to_owned()).collect()
    };
    let older = |api: &FakeApi| -> usize {
        let endpoints = api.get(&Resource::ENDPOINTS, "default", "web").unwrap_or_default();
        endpoints["subsets"][0]["addresses"].as_array().map_or(0, Vec::len)
    };
    api.until("both are behind it", |api| behind(api).len() == 2 && older(api) == 2).await;
    let slice = &api.list(&Resource::ENDPOINT_SLICES, "default")[0];
    assert_eq!((&slice["ports"][0]["port"], &slice["addressType"]), (&json!(8080), &json!("IPv4")));
    api.client("user").delete(&Resource::PODS, "default", "a", &Default::default()).await.unwrap();
    api.until("one is left", |api| {
        behind(api) == BTreeSet::from(["b".to_owned()]) && older(api) == 1
    })
    .await;
    assert_eq!(api.list(&Resource::ENDPOINT_SLICES, "default").len(), 1);
    cluster.stop().await;
}

#[tokio::test]
async fn hints_endpoints_to_zones_and_reports_it() {
    let cluster = Cluster::start(&["endpointslice-controller"], Config::default());
    let api = &cluster.api;
    let node = |name: &str| {
        json!({"metadata": {"name": name, "labels": {"topology.kubernetes.io/zone": format!("zone-{name}")}},
            "status": {"allocatable": {"cpu": "2"}, "conditions": [{"type": "Ready", "status": "True"}]}})
    };
    api.create(&Resource::NODES, node("a")).await;
    let service = json!({"metadata": {"name": "web", "namespace": "default",
            "annotations": {"service.kubernetes.io/topology-mode": "Auto"}},
        "spec": {"clusterIP": "10.0.0.1", "ipFamilies": ["IPv4"], "selector": {"app": "web"},
            "trafficDistribution": "PreferSameNode", "ports": [{"port": 80, "protocol": "TCP"}]}});
    api.create(&Resource::SERVICES, service).await;
    for (name, node) in [("1", "a"), ("2", "a"), ("3", "a"), ("4", "b")] {
        let pod = json!({"metadata": {"name": name, "namespace": "default", "labels": {"app": "web"}},
            "spec": {"nodeName": node}});
        api.create(&Resource::PODS, pod).await;
    }
    let hints = |api: &FakeApi| -> Vec<Value> {
        let slices = api.list(&Resource::ENDPOINT_SLICES, "default");
        let all =
            slices.iter().flat_map(|s| s["endpoints"].as_array().cloned().unwrap_or_default());
        all.map(|endpoint| endpoint["hints"].clone()).collect()
    };
    let disabled = "Nodes only ready in one zone, addressType: IPv4";
    api.until("one zone is too few", |api| {
        hints(api).len() == 4
            && events(api, "TopologyAwareHintsDisabled").contains(&disabled.to_owned())
    })
    .await;
    assert!(hints(api).iter().all(Value::is_null));
    api.create(&Resource::NODES, node("b")).await;
    let of = |api: &FakeApi, zone: &str| {
        let hint = json!({"forZones": [{"name": zone}]});
        hints(api).iter().filter(|hints| **hints == hint).count()
    };
    api.until("each zone has half", |api| of(api, "zone-a") == 2 && of(api, "zone-b") == 2).await;
    api.until("and an Event", |api| !events(api, "TopologyAwareHintsEnabled").is_empty()).await;
    let at = PatchTarget { namespace: "default", name: "web", subresource: "" };
    let change =
        json!({"metadata": {"annotations": {"service.kubernetes.io/topology-mode": null}}});
    api.merge(&Resource::SERVICES, at, change).await;
    let on = |api: &FakeApi, node: &str| {
        let hint =
            json!({"forZones": [{"name": format!("zone-{node}")}], "forNodes": [{"name": node}]});
        hints(api).iter().filter(|hints| **hints == hint).count()
    };
    api.until("without it the field counts", |api| on(api, "a") == 3 && on(api, "b") == 1).await;
    cluster.stop().await;
}

#[tokio::test]
async fn allocates_separate_node_ranges() {
    let config = Config {
        cluster_cidrs: vec!["10.244.0.0/16".into()],
        allocate_node_cidrs: true,
        ..Config::default()
    };
    let cluster = Cluster::start(&["node-ipam-controller"], config);
    let api = &cluster.api;
    for i in 0..5 {
        api.create(&Resource::NODES, json!({"metadata": {"name": format!("n{i}")}, "spec": {}}))
            .await;
    }
    api.until("each has one", |api| {
        let nodes = api.list(&Resource::NODES, "");
        let ranges: BTreeSet<_> =
            nodes.iter().filter_map(|n| n["spec"]["podCIDR"].as_str()).collect();
        ranges.len() == 5 && nodes.iter().all(|n| n["spec"]["podCIDRs"][0] == n["spec"]["podCIDR"])
    })
    .await;
    cluster.stop().await;
}

#[tokio::test]
async fn annotates_nodes_with_time_to_cache() {
    let cluster = Cluster::start(&["ttl-controller"], Config::default());
    let api = &cluster.api;
    let annotation = "node.alpha.kubernetes.io/ttl";
    let hostile = json!({annotation: "-1"});
    api.create(&Resource::NODES, json!({"metadata": {"name": "a", "annotations": hostile}})).await;
    api.create(&Resource::NODES, json!({"metadata": {"name": "b"}})).await;
    api.until("both may cache nothing", |api| {
        let nodes = api.list(&Resource::NODES, "");
        nodes.iter().all(|node| node["metadata"]["annotations"][annotation] == "0")
    })
    .await;
    cluster.stop().await;
}

#[tokio::test]
async fn waits_longer_for_starting_node() {
    let config = Config {
        node_monitor_period: Duration::from_millis(20),
        node_monitor_grace_period: Duration::from_millis(20),
        node_startup_grace_period: Duration::from_secs(3600),
        ..Config::default()
    };
    let cluster = Cluster::start(&["node-lifecycle-controller"], config);
    let api = &cluster.api;
    api.create(&Resource::NODES, json!({"metadata": {"name": "starts"}})).await;
    let ready = json!({"conditions": [{"type": "Ready", "status": "True"}]});
    api.create(&Resource::NODES, json!({"metadata": {"name": "silent"}, "status": ready})).await;
    let ready = |api: &FakeApi, name: &str| {
        let node = api.get(&Resource::NODES, "", name).unwrap();
        node["status"]["conditions"][0]["status"].clone()
    };
    api.until("the silent node is unknown", |api| ready(api, "silent") == "Unknown").await;
    assert_eq!(ready(api, "starts"), Value::Null);
    cluster.stop().await;
}

#[tokio::test]
async fn taints_silent_node_and_evicts_pods() {
    let config = Config {
        node_monitor_period: Duration::from_millis(20),
        node_monitor_grace_period: Duration::from_millis(300),
        ..Config::default()
    };
    let cluster =
        Cluster::start(&["node-lifecycle-controller", "taint-eviction-controller"], config);
    let api = &cluster.api;
    let ready = json!({"conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:00Z"}]});
    // A second node stays healthy: if all nodes were silent, none would be evicted.
    api.create(&Resource::NODES, json!({"metadata": {"name": "well"}, "status": ready})).await;
    let lease = json!({"metadata": {"name": "well", "namespace": "kube-node-lease"}, "spec": {}});
    api.create(&Resource::LEASES, lease).await;
    let renewing = api.clone();
    cluster.tasks.spawn_until_shutdown("the other node", async move {
        for beat in 0.. {
            let at = PatchTarget { namespace: "kube-node-lease", name: "well", subresource: "" };
            renewing
                .merge(&Resource::LEASES, at, json!({"spec": {"renewTime": beat.to_string()}}))
                .await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    let node = json!({"metadata": {"name": "n"}, "spec": {"taints": [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]},
        "status": ready});
    api.create(&Resource::NODES, node).await;
    api.until("the taint of new nodes is taken off", |api| {
        let node = api.get(&Resource::NODES, "", "n").unwrap();
        node["spec"]["taints"].as_array().is_none_or(Vec::is_empty)
    })
    .await;
    let pod = |name: &str, tolerations: Value| json!({"metadata": {"name": name, "namespace": "default"}, "spec": {"nodeName": "n", "tolerations": tolerations}});
    api.create(&Resource::PODS, pod("goes", json!([]))).await;
    api.create(&Resource::PODS, pod("stays", json!([{"operator": "Exists"}]))).await;
    api.until("the Pods are ready", |api| {
        api.list(&Resource::PODS, "default").iter().all(|p| p["status"]["phase"] == "Running")
    })
    .await;
    api.until("the silent node is unknown and tainted", |api| {
        let node = api.get(&Resource::NODES, "", "n").unwrap();
        let taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
        node["status"]["conditions"][0]["status"] == "Unknown"
            && taints
                .iter()
                .any(|t| t["key"] == "node.kubernetes.io/unreachable" && t["effect"] == "NoExecute")
    })
    .await;
    api.until("one Pod is deleted, the other is not ready", |api| {
        let stays = api.get(&Resource::PODS, "default", "stays").unwrap();
        api.get(&Resource::PODS, "default", "goes").is_none()
            && stays["status"]["conditions"][0]["status"] == "False"
    })
    .await;
    let at = PatchTarget { namespace: "", name: "n", subresource: "status" };
    api.merge(
        &Resource::NODES,
        at,
        json!({"status": {"conditions": [
        {"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:01:00Z"}]}}),
    )
    .await;
    api.until("a node that is back loses its taints", |api| {
        api.get(&Resource::NODES, "", "n").unwrap()["spec"]["taints"]
            .as_array()
            .is_none_or(Vec::is_empty)
    })
    .await;
    cluster.stop().await;
}
