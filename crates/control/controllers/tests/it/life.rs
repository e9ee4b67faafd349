use client::{DeleteOptions, Resource};
use serde_json::{Value, json};
use testkit::until;

use crate::api::Cluster;

fn template(image: &str) -> Value {
    json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": image}]}})
}

fn status<'a>(object: &'a Option<Value>, field: &str) -> &'a Value {
    object.as_ref().map_or(&Value::Null, |object| &object["status"][field])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[allow(clippy::too_many_lines, reason = "one scenario")]
async fn application_is_created_and_fully_deleted() {
    let config = controllers::Config {
        root_ca: Some("pem".into()),
        allocate_node_cidrs: true,
        cluster_cidrs: vec!["10.244.0.0/16".into()],
        ..controllers::Config::default()
    };
    let cluster = Cluster::start(config).await;
    until("the default account exists", || async {
        cluster.get(&Resource::SERVICE_ACCOUNTS, "default", "default").await.is_some()
            && cluster.get(&Resource::CONFIG_MAPS, "default", "kube-root-ca.crt").await.is_some()
    })
    .await;
    cluster.create(&Resource::NODES, json!({"metadata": {"name": "n"}})).await;
    until("the node has its range", || async {
        let node = cluster.get(&Resource::NODES, "", "n").await.unwrap();
        node["spec"]["podCIDR"] == "10.244.0.0/24"
    })
    .await;
    cluster
        .create(
            &Resource::SERVICES,
            json!({"metadata": {"name": "web", "namespace": "default"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]}}),
        )
        .await;
    cluster
        .create(
            &Resource::DEPLOYMENTS,
            json!({"metadata": {"name": "web", "namespace": "default"}, "spec": {"replicas": 3,
        "selector": {"matchLabels": {"app": "web"}}, "template": template("one")}}),
        )
        .await;
    let done = |generation: i64| {
        let cluster = &cluster;
        move || async move {
            let web = cluster.get(&Resource::DEPLOYMENTS, "default", "web").await;
            *status(&web, "observedGeneration") == generation
                && *status(&web, "updatedReplicas") == 3
                && *status(&web, "availableReplicas") == 3
                && *status(&web, "replicas") == 3
        }
    };
    until("it is rolled out", done(1)).await;
    cluster
        .create(
            &Resource::POD_DISRUPTION_BUDGETS,
            json!({"metadata": {"name": "web", "namespace": "default"}, "spec": {"maxUnavailable": 1,
                "selector": {"matchLabels": {"app": "web"}}}}),
        )
        .await;
    until("its budget allows one to go", || async {
        let budget = cluster.get(&Resource::POD_DISRUPTION_BUDGETS, "default", "web").await;
        *status(&budget, "disruptionsAllowed") == 1 && *status(&budget, "expectedPods") == 3
    })
    .await;
    until("its endpoints are known", || async {
        let slices = cluster.list(&Resource::ENDPOINT_SLICES, "default").await;
        slices.iter().any(|s| {
            s["metadata"]["labels"]["kubernetes.io/service-name"] == "web"
                && s["endpoints"].as_array().is_some_and(|e| e.len() == 3)
        })
    })
    .await;
    cluster
        .merge(&Resource::DEPLOYMENTS, "web", json!({"spec": {"template": template("two")}}))
        .await;
    until("it is updated", done(2)).await;
    let options =
        DeleteOptions { propagation_policy: Some("Foreground"), ..DeleteOptions::default() };
    cluster.user.delete(&Resource::DEPLOYMENTS, "default", "web", &options).await.unwrap();
    until("all of it is gone", || async {
        cluster.get(&Resource::DEPLOYMENTS, "default", "web").await.is_none()
            && cluster.list(&Resource::REPLICA_SETS, "default").await.is_empty()
            && cluster.list(&Resource::PODS, "default").await.is_empty()
    })
    .await;
    cluster
        .user
        .delete(&Resource::SERVICES, "default", "web", &DeleteOptions::default())
        .await
        .unwrap();
    until("its slices too", || async {
        let slices = cluster.list(&Resource::ENDPOINT_SLICES, "default").await;
        slices.iter().all(|s| s["metadata"]["labels"]["kubernetes.io/service-name"] != "web")
    })
    .await;
    cluster.stop().await;
}

#[allow(clippy::too_many_lines, reason = "one scenario")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_every_workload_and_deletes_namespace() {
    let cluster = Cluster::start(controllers::Config::default()).await;
    cluster.create(&Resource::NAMESPACES, json!({"metadata": {"name": "shop"}})).await;
    until("its account exists", || async {
        cluster.get(&Resource::SERVICE_ACCOUNTS, "shop", "default").await.is_some()
    })
    .await;
    cluster.create(&Resource::NODES, json!({"metadata": {"name": "n"}})).await;
    let meta = json!({"name": "w", "namespace": "shop"});
    let selector = json!({"matchLabels": {"app": "web"}});
    cluster
        .create(
            &Resource::STATEFUL_SETS,
            json!({"metadata": meta, "spec": {"replicas": 2, "serviceName": "w",
        "selector": selector, "template": template("one")}}),
        )
        .await;
    cluster.create(&Resource::DAEMON_SETS, json!({"metadata": meta, "spec": {"selector": {"matchLabels": {"app": "d"}},
        "template": {"metadata": {"labels": {"app": "d"}}, "spec": {"tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "c", "image": "i"}]}}}})).await;
    cluster
        .create(
            &Resource::JOBS,
            // A deadline beyond the range of any clock.
            json!({"metadata": meta, "spec": {"activeDeadlineSeconds": i64::MAX, "template": {"spec": {
        "restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}}}),
        )
        .await;
    cluster
        .create(
            &Resource::REPLICATION_CONTROLLERS,
            json!({"metadata": meta, "spec": {"replicas": 1,
        "selector": {"app": "rc"}, "template": {"metadata": {"labels": {"app": "rc"}},
            "spec": {"containers": [{"name": "c", "image": "i"}]}}}}),
        )
        .await;
    cluster
        .create(
            &Resource::RESOURCE_QUOTAS,
            json!({"metadata": meta, "spec": {"hard": {"pods": "50", "count/jobs.batch": "5"}}}),
        )
        .await;
    until("its quota is counted", || async {
        let quota = cluster.get(&Resource::RESOURCE_QUOTAS, "shop", "w").await;
        status(&quota, "used")["count/jobs.batch"] == "1"
    })
    .await;
    cluster
        .create(
            &Resource::SERVICES,
            json!({"metadata": {"name": "by-hand", "namespace": "shop"}, "spec": {"ports": [{"port": 80}]}}),
        )
        .await;
    cluster
        .create(
            &Resource::ENDPOINTS,
            json!({"metadata": {"name": "by-hand", "namespace": "shop"}, "subsets": [
                {"addresses": [{"ip": "192.0.2.9"}], "ports": [{"port": 80}]}]}),
        )
        .await;
    until("endpoints made by hand are mirrored", || async {
        let slices = cluster.list(&Resource::ENDPOINT_SLICES, "shop").await;
        slices.iter().any(|s| s["endpoints"][0]["addresses"][0] == "192.0.2.9")
    })
    .await;
    for (resource, field, number) in [
        (Resource::STATEFUL_SETS, "readyReplicas", 2),
        (Resource::DAEMON_SETS, "numberReady", 1),
        (Resource::JOBS, "ready", 1),
        (Resource::REPLICATION_CONTROLLERS, "readyReplicas", 1),
    ] {
        until(&format!("the {} runs", resource.kind), || async {
            *status(&cluster.get(&resource, "shop", "w").await, field) == number
        })
        .await;
    }
    cluster
        .user
        .delete(&Resource::NAMESPACES, "", "shop", &DeleteOptions::default())
        .await
        .unwrap();
    until("the namespace is gone", || async {
        cluster.get(&Resource::NAMESPACES, "", "shop").await.is_none()
    })
    .await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn approves_and_signs_kubelet_request() {
    use base64::{Engine, engine::general_purpose::STANDARD};
    use pki::{Authority, Key, KeyAlgorithm, SigningRequest, Subject, Validity};
    let validity =
        Validity::starting(std::time::SystemTime::now(), std::time::Duration::from_secs(7200));
    let ca = Authority::create("kubernetes", KeyAlgorithm::EcdsaP256, validity).unwrap();
    let config = controllers::Config {
        // The signer has a certificate of its own (--cluster-signing-kubelet-client-cert-file).
        signers: [(
            "kubernetes.io/kube-apiserver-client-kubelet",
            (ca.cert().to_pem(), ca.key().to_pem().unwrap()),
        )]
        .into(),
        ..controllers::Config::default()
    };
    let cluster = Cluster::start(config).await;
    let key = Key::generate(KeyAlgorithm::EcdsaP256).unwrap();
    let subject = Subject::new("system:node:n").in_group("system:nodes");
    let request = SigningRequest::create(&subject, &[], &key).unwrap();
    cluster
        .create(
            &Resource::CERTIFICATE_SIGNING_REQUESTS,
            json!({"metadata": {"name": "c"}, "spec": {
                "request": STANDARD.encode(request.to_pem()),
                "username": "admin", "groups": ["system:masters", "system:authenticated"],
                "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
                "usages": ["client auth", "digital signature"]}}),
        )
        .await;
    until("it has its certificate", || async {
        let csr = cluster.get(&Resource::CERTIFICATE_SIGNING_REQUESTS, "", "c").await;
        status(&csr, "certificate").is_string()
    })
    .await;
    let csr = cluster.get(&Resource::CERTIFICATE_SIGNING_REQUESTS, "", "c").await;
    let pem = STANDARD.decode(status(&csr, "certificate").as_str().unwrap()).unwrap();
    let certificate = pki::Cert::from_pem(std::str::from_utf8(&pem).unwrap()).unwrap();
    certificate.check_signed_by(ca.cert()).unwrap();
    certificate.check_key(&key).unwrap();
    assert_eq!(certificate.info().unwrap().subject, subject);
    cluster.stop().await;
}
