//! Injects panics into every worker and informer of the controllers at their API calls.

use std::sync::Arc;

use rand::{Rng, SeedableRng, rngs::StdRng};
use testkit::PanicInjector;

use super::*;
use crate::registry;

fn workload(kind: &str, name: &str) -> Value {
    let template = json!({"metadata": {"labels": {"app": name}},
        "spec": {"containers": [{"name": "c", "image": "one"}]}});
    json!({"kind": kind, "metadata": {"name": name, "namespace": "default"}, "spec": {"replicas": 3,
        "selector": {"matchLabels": {"app": name}}, "serviceName": name, "template": template,
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 1}},
        "updateStrategy": {"type": "RollingUpdate"}, "podManagementPolicy": "Parallel"}})
}

fn pods_of(api: &FakeApi, name: &str) -> Vec<Value> {
    let mut pods = api.list(&Resource::PODS, "default");
    pods.retain(|pod| {
        pod["metadata"]["labels"]["app"] == name && pod["metadata"]["deletionTimestamp"].is_null()
    });
    pods
}

/// The number of the Service's ready endpoints.
fn endpoints(api: &FakeApi, service: &str) -> usize {
    let mut slices = api.list(&Resource::ENDPOINT_SLICES, "default");
    slices.retain(|slice| slice["metadata"]["labels"]["kubernetes.io/service-name"] == service);
    slices.iter().filter_map(|slice| Some(slice["endpoints"].as_array()?.len())).sum()
}

/// Changes the workloads while the panics last.
async fn load(api: &FakeApi, panics: &PanicInjector, random: &mut StdRng) {
    let user = api.client("user");
    let names = [("web", Resource::DEPLOYMENTS), ("db", Resource::STATEFUL_SETS)];
    for round in 0.. {
        if panics.left() == 0 {
            return;
        }
        assert!(round < 20_000, "{} panics did not come", panics.left());
        for (name, resource) in &names {
            let at = PatchTarget { namespace: "default", name, subresource: "" };
            let image = format!("image-{}", random.random_range(0..3));
            let template = json!({"metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": "c", "image": image}]}});
            let spec = json!({"replicas": random.random_range(0..5), "template": template});
            api.merge(resource, at, json!({"spec": spec})).await;
        }
        if let Some(pod) = api.list(&Resource::PODS, "default").first() {
            let name = pod["metadata"]["name"].as_str().unwrap();
            let _ = user.delete(&Resource::PODS, "default", name, &Default::default()).await;
        }
        tokio::time::sleep(Duration::from_millis(random.random_range(1..3000))).await;
    }
}

#[tokio::test(start_paused = true)]
async fn controllers_recover_from_thousand_panics() {
    let (api, panics) = (FakeApi::default(), PanicInjector::new(14, 1000, 0.1));
    let tasks = rt::Tasks::new(rt::Shutdown::new());
    let config = Config {
        controllers: registry().iter().map(|controller| controller.name.to_owned()).collect(),
        ..Config::default()
    };
    let (faulty, clients, running) = (panics.clone(), api.clone(), tasks.clone());
    tasks.spawn("controllers", async move {
        let client = move |name: &str| faulty.in_client(clients.clone(), name);
        crate::run(config, client, &running).await.unwrap();
    });
    for (group, plural, kind) in [
        ("networking.k8s.io", "servicecidrs", "ServiceCIDR"),
        ("storage.k8s.io", "volumeattributesclasses", "VolumeAttributesClass"),
    ] {
        api.serve(testkit::ServedResource {
            group,
            version: "v1",
            plural,
            kind,
            namespaced: false,
        });
    }
    tasks.spawn_until_shutdown("kubelet", kubelet(api.clone(), Duration::from_secs(1)));
    api.create(&Resource::NODES, json!({"metadata": {"name": "n"}})).await;
    api.create(&Resource::DEPLOYMENTS, workload("Deployment", "web")).await;
    api.create(&Resource::STATEFUL_SETS, workload("StatefulSet", "db")).await;
    for name in ["web", "db"] {
        let spec = json!({"clusterIP": "10.0.0.1", "ipFamilies": ["IPv4"], "selector": {"app": name},
            "ports": [{"port": 80, "protocol": "TCP", "targetPort": 8080}]});
        let service = json!({"metadata": {"name": name, "namespace": "default"}, "spec": spec});
        api.create(&Resource::SERVICES, service).await;
    }
    load(&api, &panics, &mut StdRng::seed_from_u64(1)).await;

    let caught: u64 = rt::panics().values().sum();
    assert!(caught >= 1000, "{caught} of 1000 panics were caught");
    for (name, resource) in [("web", Resource::DEPLOYMENTS), ("db", Resource::STATEFUL_SETS)] {
        let at = PatchTarget { namespace: "default", name, subresource: "" };
        let template = json!({"metadata": {"labels": {"app": name}},
            "spec": {"containers": [{"name": "c", "image": "last"}]}});
        api.merge(&resource, at, json!({"spec": {"replicas": 4, "template": template}})).await;
        until(&api, &format!("{name} is as wanted at last"), |api| {
            let pods = pods_of(api, name);
            pods.len() == 4
                && pods.iter().all(|pod| pod["spec"]["containers"][0]["image"] == "last")
                && api.get(&resource, "default", name).unwrap()["status"]["readyReplicas"] == 4
        })
        .await;
        until(&api, &format!("the Service {name} has its Pods"), |api| endpoints(api, name) == 4)
            .await;
    }
    // The loop that panicked last has been restarted.
    until(&api, "every loop runs", |_| tasks.missing().is_empty() && tasks.not_ready().is_empty())
        .await;
    let unfinished: Vec<Arc<str>> = tasks.drain(Duration::from_secs(5)).await.unfinished;
    assert_eq!(unfinished, Vec::<Arc<str>>::new());
}
