use super::*;

fn claim(name: &str, spec: Value) -> Value {
    let own =
        json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    json!({"metadata": {"name": name, "namespace": "default"}, "spec": crate::context::merged(&own, &spec)})
}

fn volume(name: &str, spec: Value) -> Value {
    let own = json!({"capacity": {"storage": "2Gi"}, "accessModes": ["ReadWriteOnce"],
        "persistentVolumeReclaimPolicy": "Retain", "hostPath": {"path": "/srv/data"}});
    json!({"metadata": {"name": name}, "spec": crate::context::merged(&own, &spec)})
}

fn at<'a>(name: &'a str, subresource: &'static str) -> PatchTarget<'a> {
    PatchTarget { namespace: "default", name, subresource }
}

fn get_claim(api: &FakeApi, name: &str) -> Value {
    api.get(&Resource::PERSISTENT_VOLUME_CLAIMS, "default", name).unwrap_or_default()
}

fn phase_of_volume(api: &FakeApi, name: &str) -> Value {
    api.get(&Resource::PERSISTENT_VOLUMES, "", name).unwrap_or_default()["status"]["phase"].clone()
}

#[tokio::test]
async fn binds_claim_and_releases_volume() {
    let controllers = [
        "persistentvolume-binder-controller",
        "persistentvolume-protection-controller",
        "persistentvolumeclaim-protection-controller",
    ];
    let cluster = Cluster::start(&controllers, Config::default());
    let api = &cluster.api;
    api.create(&Resource::PERSISTENT_VOLUME_CLAIMS, claim("data", json!({}))).await;
    api.until("the missing volume is reported", |api| {
        get_claim(api, "data")["status"]["phase"] == "Pending"
            && !events(api, "FailedBinding").is_empty()
    })
    .await;
    api.create(&Resource::PERSISTENT_VOLUMES, volume("disk", json!({}))).await;
    api.until("both are bound", |api| {
        get_claim(api, "data")["status"]["phase"] == "Bound"
            && phase_of_volume(api, "disk") == "Bound"
    })
    .await;
    let bound = get_claim(api, "data");
    assert_eq!(bound["spec"]["volumeName"], "disk");
    assert_eq!(bound["status"]["capacity"]["storage"], "2Gi");
    assert_eq!(bound["status"]["accessModes"], json!(["ReadWriteOnce"]));
    for mark in ["pv.kubernetes.io/bind-completed", "pv.kubernetes.io/bound-by-controller"] {
        assert_eq!(bound["metadata"]["annotations"][mark], "yes");
    }
    // Neither is deleted while it is in use.
    let user = api.client("user");
    let none = Default::default();
    user.delete(&Resource::PERSISTENT_VOLUMES, "", "disk", &none).await.unwrap();
    assert_eq!(phase_of_volume(api, "disk"), "Bound");
    let pod = json!({"metadata": {"name": "db", "namespace": "default"}, "spec": {"nodeName": "n", "volumes": [
        {"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]}});
    api.create(&Resource::PODS, pod).await;
    user.delete(&Resource::PERSISTENT_VOLUME_CLAIMS, "default", "data", &none).await.unwrap();
    api.until("the Pod runs", |api| {
        api.get(&Resource::PODS, "default", "db").unwrap()["status"]["phase"] == "Running"
    })
    .await;
    assert_eq!(get_claim(api, "data")["status"]["phase"], "Bound");
    user.delete(&Resource::PODS, "default", "db", &none).await.unwrap();
    api.until("claim and volume are gone", |api| {
        get_claim(api, "data").is_null() && phase_of_volume(api, "disk").is_null()
    })
    .await;
    cluster.stop().await;
}

#[tokio::test]
async fn retained_volume_stays_released() {
    let cluster = Cluster::start(&["persistentvolume-binder-controller"], Config::default());
    let api = &cluster.api;
    api.create(&Resource::PERSISTENT_VOLUMES, volume("disk", json!({}))).await;
    api.create(&Resource::PERSISTENT_VOLUME_CLAIMS, claim("data", json!({}))).await;
    api.until("it is bound", |api| get_claim(api, "data")["status"]["phase"] == "Bound").await;
    let user = api.client("user");
    let none = Default::default();
    user.delete(&Resource::PERSISTENT_VOLUME_CLAIMS, "default", "data", &none).await.unwrap();
    api.until("it is released", |api| phase_of_volume(api, "disk") == "Released").await;
    // A new claim of the same name and one that names the volume both wait.
    api.create(&Resource::PERSISTENT_VOLUME_CLAIMS, claim("data", json!({}))).await;
    let named = claim("thief", json!({"volumeName": "disk"}));
    api.create(&Resource::PERSISTENT_VOLUME_CLAIMS, named).await;
    api.until("the other claim has an Event", |api| {
        events(api, "FailedBinding").iter().any(|e| e.contains("already bound to a different"))
            && get_claim(api, "data")["status"]["phase"] == "Pending"
    })
    .await;
    assert_eq!(phase_of_volume(api, "disk"), "Released");
    // An administrator makes the volume available.
    let free = json!({"spec": {"claimRef": null}});
    let disk = PatchTarget { namespace: "", name: "disk", subresource: "" };
    api.merge(&Resource::PERSISTENT_VOLUMES, disk, free).await;
    api.until("a claim has it", |api| phase_of_volume(api, "disk") == "Bound").await;
    let phases = ["data", "thief"].map(|name| get_claim(api, name)["status"]["phase"].clone());
    assert!(phases.iter().filter(|phase| **phase == "Bound").count() <= 1, "{phases:?}");
    cluster.stop().await;
}

#[tokio::test]
async fn creates_ephemeral_claim_and_ignores_foreign_one() {
    let cluster = Cluster::start(&["ephemeral-volume-controller"], Config::default());
    let api = &cluster.api;
    let pod = |name: &str| {
        json!({"metadata": {"name": name, "namespace": "default"}, "spec": {"volumes": [{"name": "scratch",
            "ephemeral": {"volumeClaimTemplate": {"metadata": {"labels": {"a": "b"}},
                "spec": {"accessModes": ["ReadWriteOnce"]}}}}]}})
    };
    api.create(&Resource::PERSISTENT_VOLUME_CLAIMS, claim("thief-scratch", json!({}))).await;
    let made = api.create(&Resource::PODS, pod("own")).await;
    api.create(&Resource::PODS, pod("thief")).await;
    api.until("the claim is made", |api| !get_claim(api, "own-scratch").is_null()).await;
    let own = get_claim(api, "own-scratch");
    assert_eq!(own["metadata"]["ownerReferences"][0]["uid"], made["metadata"]["uid"]);
    assert_eq!(
        (&own["metadata"]["labels"]["a"], &own["spec"]["accessModes"][0]),
        (&json!("b"), &json!("ReadWriteOnce"))
    );
    api.until("the other Pod has an Event", |api| {
        events(api, "FailedBinding").iter().any(|e| e.contains("(pod is not owner)"))
    })
    .await;
    assert!(get_claim(api, "thief-scratch")["metadata"]["ownerReferences"].is_null());
    cluster.stop().await;
}

#[tokio::test]
async fn deletes_claims_of_scaled_down_pods() {
    let controllers = ["statefulset-controller", "garbage-collector-controller"];
    let cluster = Cluster::start(&controllers, Config::default());
    let api = &cluster.api;
    let set = json!({"metadata": {"name": "db", "namespace": "default"}, "spec": {"replicas": 2, "serviceName": "db",
        "selector": {"matchLabels": {"app": "d"}},
        "template": {"metadata": {"labels": {"app": "d"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}},
        "persistentVolumeClaimRetentionPolicy": {"whenScaled": "Delete", "whenDeleted": "Retain"},
        "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {}}]}});
    api.create(&Resource::STATEFUL_SETS, set).await;
    let ready = |api: &FakeApi| {
        let set = api.get(&Resource::STATEFUL_SETS, "default", "db").unwrap();
        set["status"]["readyReplicas"].as_i64().unwrap_or_default()
    };
    api.until("two run", |api| ready(api) == 2).await;
    let first = get_claim(api, "data-db-1")["metadata"]["uid"].clone();
    let scale = async |replicas: i64| {
        let patch = json!({"spec": {"replicas": replicas}});
        api.merge(&Resource::STATEFUL_SETS, at("db", ""), patch).await;
    };
    scale(1).await;
    api.until("the claim is deleted with its Pod", |api| get_claim(api, "data-db-1").is_null())
        .await;
    assert!(!get_claim(api, "data-db-0").is_null());
    scale(2).await;
    api.until("two run again", |api| ready(api) == 2).await;
    let second = get_claim(api, "data-db-1")["metadata"]["uid"].clone();
    assert!(second.is_string() && second != first, "a new Pod has a new claim");
    cluster.stop().await;
}

/// Requests more for the claim `data`. The kubelet, which the test does not run, would do the rest.
async fn grow(api: &FakeApi, volume: &str) {
    let more = json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}});
    api.merge(&Resource::PERSISTENT_VOLUME_CLAIMS, at("data", ""), more).await;
    api.until("the volume has grown", |api| {
        get_claim(api, "data")["status"]["conditions"][0]["type"] == "FileSystemResizePending"
    })
    .await;
    let grown = api.get(&Resource::PERSISTENT_VOLUMES, "", volume).unwrap();
    assert_eq!(grown["spec"]["capacity"]["storage"], "2Gi");
    assert_eq!(get_claim(api, "data")["status"]["capacity"]["storage"], "1Gi");
    assert_eq!(events(api, "FileSystemResizeRequired").len(), 1);
}

#[tokio::test]
async fn provisions_expands_and_removes_volume_of_claim() {
    let controllers = ["persistentvolume-binder-controller", "local-volume-provisioner-controller"];
    let cluster = Cluster::start(&controllers, Config::default());
    let api = &cluster.api;
    let class = json!({"metadata": {"name": "local"}, "provisioner": "windlass.local/volumes",
        "volumeBindingMode": "WaitForFirstConsumer", "reclaimPolicy": "Delete"});
    api.create(&Resource::STORAGE_CLASSES, class).await;
    let offers = json!({"windlass.local/volumes": "/kubelet/local-volumes"});
    for (name, annotations) in [("silent", json!({})), ("offers", offers)] {
        let labels = json!({"kubernetes.io/hostname": name});
        let meta = json!({"name": name, "labels": labels, "annotations": annotations});
        api.create(&Resource::NODES, json!({ "metadata": meta })).await;
    }
    let wanted = claim("data", json!({"storageClassName": "local"}));
    api.create(&Resource::PERSISTENT_VOLUME_CLAIMS, wanted).await;
    api.until("it waits", |api| !events(api, "WaitForFirstConsumer").is_empty()).await;
    let select = async |node: &str| {
        let chosen = json!({"volume.kubernetes.io/selected-node": node});
        let change = json!({"metadata": {"annotations": chosen}});
        api.merge(&Resource::PERSISTENT_VOLUME_CLAIMS, at("data", ""), change).await;
    };
    // The scheduler selects a node; the selection of a node without directories is reset.
    select("silent").await;
    api.until("the node is given back", |api| {
        let told = events(api, "ProvisioningFailed");
        let annotations = &get_claim(api, "data")["metadata"]["annotations"];
        told.iter().any(|e| e.contains("offers no local volumes"))
            && annotations["volume.kubernetes.io/selected-node"].is_null()
    })
    .await;
    select("offers").await;
    api.until("it is bound", |api| get_claim(api, "data")["status"]["phase"] == "Bound").await;
    let name = get_claim(api, "data")["spec"]["volumeName"].as_str().unwrap().to_owned();
    let volume = api.get(&Resource::PERSISTENT_VOLUMES, "", &name).unwrap();
    assert_eq!(volume["spec"]["local"]["path"], format!("/kubelet/local-volumes/{name}"));
    // A kubelet may not write the label that the volume requires.
    let label = "windlass.node-restriction.kubernetes.io/local-volumes";
    let required = &volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"][0];
    assert_eq!(
        required["matchExpressions"],
        json!([{"key": label, "operator": "In", "values": ["offers"]}])
    );
    let node = api.get(&Resource::NODES, "", "offers").unwrap();
    assert_eq!(node["metadata"]["labels"][label], "offers");
    grow(api, &name).await;
    // Another node that takes over the host name gets no request about the volume.
    let stolen = json!({"metadata": {"labels": {"kubernetes.io/hostname": "offers"}}});
    let thief = PatchTarget { namespace: "", name: "silent", subresource: "" };
    api.merge(&Resource::NODES, thief, stolen).await;
    let user = api.client("user");
    user.delete(&Resource::PERSISTENT_VOLUME_CLAIMS, "default", "data", &Default::default())
        .await
        .unwrap();
    let key = format!("remove.windlass.local/{name}");
    let asked = |api: &FakeApi| {
        api.get(&Resource::NODES, "", "offers").unwrap()["metadata"]["annotations"][&key].clone()
    };
    api.until("the node is asked", |api| asked(api) == "asked").await;
    let silent = api.get(&Resource::NODES, "", "silent").unwrap();
    assert!(silent["metadata"]["annotations"][&key].is_null());
    // A client that deletes the volume object does not cause its directory to be leaked.
    user.delete(&Resource::PERSISTENT_VOLUMES, "", &name, &Default::default()).await.unwrap();
    let answer = async |text: &str| {
        let node = PatchTarget { namespace: "", name: "offers", subresource: "" };
        let change = json!({"metadata": {"annotations": {&key: text}}});
        api.merge(&Resource::NODES, node, change).await;
    };
    answer("failed: it is busy").await;
    api.until("an Event is recorded and the node is asked again", |api| {
        events(api, "VolumeFailedDelete").iter().any(|e| e.contains("it is busy"))
            && asked(api) == "asked"
    })
    .await;
    assert_eq!(phase_of_volume(api, &name), "Released");
    answer("removed").await;
    api.until("nothing is left", |api| {
        phase_of_volume(api, &name).is_null() && asked(api).is_null()
    })
    .await;
    cluster.stop().await;
}
