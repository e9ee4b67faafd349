//! Creates the objects of a new cluster: system namespaces, the RBAC bootstrap policy, priority classes, flow control,
//! the `kubernetes` Service with its endpoints, and the published authorities. All writes pass through the pipeline as
//! `system:apiserver`.

use std::{collections::BTreeSet, time::Duration};

use tokio::time::Instant;

use api_meta::{GroupResource, Objects, Tree as _};
use auth::rbac::Ensure;
use client::{Client, Error, PatchKind, PatchTarget, Resource};
use futures_util::{StreamExt as _, TryStreamExt as _, future::try_join5, stream};
use serde_json::{Value, json};

use super::{
    cluster_authentication,
    endpoints::EndpointReconciler,
    ensure::ensure,
    progress::{Progress, Step},
};
use crate::{config::Config, registry::set_condition};

const SERVICE_CIDRS: Resource =
    Resource::constant("networking.k8s.io", "v1", "servicecidrs", "ServiceCIDR", false);

const NAMESPACES: [&str; 4] = ["kube-system", "kube-public", "kube-node-lease", "default"];

const PRIORITY_CLASSES: [(&str, i64, &str); 2] = [
    (
        "system-node-critical",
        2_000_001_000,
        "Used for system critical pods that must not be moved from their current node.",
    ),
    (
        "system-cluster-critical",
        2_000_000_000,
        "Used for system critical pods that must run in the cluster, but can be moved to another \
         node if necessary.",
    ),
];

/// The number of concurrent writes of initial objects: enough to share the flushes of the log, few enough for an etcd
/// on a slow disk to answer in time.
const AT_ONCE: usize = 32;
/// Longer than the grace period of an address without a Service.
const FIRST_SERVICE: Duration = Duration::from_secs(75);

/// Creates the initial objects. It is idempotent and runs at every start.
pub(crate) async fn run(
    config: &Config,
    objects: &dyn Objects,
    endpoints: &EndpointReconciler,
    client: &Client,
    progress: &Progress,
) -> Result<(), Error> {
    // First, because namespaced objects are rejected while their namespace is missing.
    let kind = Resource::NAMESPACES;
    let namespaces = NAMESPACES.map(|name| json!({"metadata": {"name": name}}));
    let namespaces = run_concurrently(namespaces.iter().map(|it| ensure(client, &kind, "", it)));
    progress.after(Step::Namespaces, namespaces).await?;
    let service = kubernetes_service(config, objects, endpoints, client);
    try_join5(
        progress.after(Step::PriorityClasses, priority_classes(client)),
        progress.after(Step::Roles, bootstrap_policy(config, objects, client)),
        progress.after(Step::FlowControl, flow_control(objects, client)),
        progress.after(Step::KubernetesService, service),
        progress.after(Step::Authorities, cluster_authentication::run(config, client)),
    )
    .await
    .map(drop)
}

/// Runs writes concurrently. Each one waits for the disk; concurrent writes share a flush.
async fn run_concurrently<W>(writes: impl IntoIterator<Item = W>) -> Result<(), Error>
where
    W: Future<Output = Result<(), Error>>,
{
    stream::iter(writes).map(Ok).try_for_each_concurrent(AT_ONCE, |write| write).await
}

async fn priority_classes(client: &Client) -> Result<(), Error> {
    let classes = PRIORITY_CLASSES.map(|(name, value, description)| {
        json!({"metadata": {"name": name}, "value": value, "description": description})
    });
    let kind = Resource::PRIORITY_CLASSES;
    run_concurrently(classes.iter().map(|it| ensure(client, &kind, "", it))).await
}

async fn bootstrap_policy(
    config: &Config,
    objects: &dyn Objects,
    client: &Client,
) -> Result<(), Error> {
    let actions = auth::rbac::ensure_bootstrap(objects, &config.features);
    run_concurrently(actions.iter().filter_map(|(kind, action)| {
        rbac_resource(kind).map(|resource| follow_policy(client, resource, action))
    }))
    .await
}

async fn follow_policy(client: &Client, resource: Resource, action: &Ensure) -> Result<(), Error> {
    let (Ensure::Create(object) | Ensure::Update(object) | Ensure::Replace(object)) = action;
    let (namespace, name) = (object.namespace(), object.name());
    match action {
        Ensure::Create(object) => ensure(client, &resource, namespace, object).await,
        Ensure::Update(object) => {
            client.update::<_, Value>(&resource, namespace, name, object).await.map(drop)
        }
        Ensure::Replace(object) => {
            let options = client::DeleteOptions::default();
            client.delete(&resource, namespace, name, &options).await?;
            ensure(client, &resource, namespace, object).await
        }
    }
}

/// Ensures upstream's suggested flow schemas and priority levels.
async fn flow_control(objects: &dyn Objects, client: &Client) -> Result<(), Error> {
    let actions = flow::ensure_bootstrap(objects);
    run_concurrently(actions.iter().map(|(kind, action)| async move {
        let resource = flow_resource(kind);
        match action {
            flow::Ensure::Create(object) => ensure(client, &resource, "", object).await,
            flow::Ensure::Update(object) => {
                let name = object.name();
                client.update::<_, Value>(&resource, "", name, object).await.map(drop)
            }
        }
    }))
    .await
}

fn flow_resource(kind: &GroupResource) -> Resource {
    let name = match &*kind.resource {
        "flowschemas" => "FlowSchema",
        _ => "PriorityLevelConfiguration",
    };
    Resource {
        group: "flowcontrol.apiserver.k8s.io".into(),
        version: "v1".into(),
        plural: kind.resource.to_string().into(),
        kind: name.into(),
        namespaced: false,
    }
}

fn rbac_resource(kind: &GroupResource) -> Option<Resource> {
    [
        Resource::CLUSTER_ROLES,
        Resource::CLUSTER_ROLE_BINDINGS,
        Resource::ROLES,
        Resource::ROLE_BINDINGS,
    ]
    .into_iter()
    .find(|r| *r.plural == *kind.resource)
}

/// Ensures the `kubernetes` Service at the first address of the Service range, and its endpoints.
async fn kubernetes_service(
    config: &Config,
    objects: &dyn Objects,
    endpoints: &EndpointReconciler,
    client: &Client,
) -> Result<(), Error> {
    let Some(range) = config.service_cidrs.first() else { return Ok(()) };
    let address = range.nth(1).unwrap_or(range.address).to_string();
    let family = if range.address.is_ipv4() { "IPv4" } else { "IPv6" };
    let ranges: Vec<String> =
        config.service_cidrs.iter().map(|range| range.network().to_string()).collect();
    let cidr = json!({"metadata": {"name": "kubernetes"}, "spec": {"cidrs": ranges}});
    ensure(client, &SERVICE_CIDRS, "", &cidr).await?;
    add_family(objects, client, &ranges).await?;
    ensure_ready(objects, client).await?;
    let labels = json!({"component": "apiserver", "provider": "kubernetes"});
    let service = json!({
        "metadata": {"name": "kubernetes", "labels": labels},
        "spec": {
            "clusterIP": address,
            "clusterIPs": [address],
            "ipFamilies": [family],
            "ipFamilyPolicy": "SingleStack",
            "ports": [{
                "name": "https",
                "port": 443,
                "protocol": "TCP",
                "targetPort": config.bind.port(),
            }],
            "sessionAffinity": "None",
            "type": "ClusterIP",
        },
    });
    first_service(client, &service).await?;
    let servers = endpoints.servers().await.unwrap_or_else(|error| {
        tracing::warn!(%error, "failed to read the other API servers from the store; retrying later");
        BTreeSet::from([config.advertise])
    });
    // Only log an error: a webhook that rejects everything or is down must not keep the server from starting, because
    // only a running server can delete it.
    if let Err(error) = endpoints.write(&servers).await {
        tracing::warn!(
            %error,
            "failed to write the endpoints of the Service kubernetes; \
             restart this server once they can be written"
        );
    }
    Ok(())
}

/// Creates the Service, with retries. If another server is creating it, or crashed while doing so, its address is
/// allocated until the repair releases it.
async fn first_service(client: &Client, service: &Value) -> Result<(), Error> {
    let give_up = Instant::now() + FIRST_SERVICE;
    loop {
        match ensure(client, &Resource::SERVICES, "default", service).await {
            Err(error) if error.is_invalid() && Instant::now() < give_up => {
                tokio::time::sleep(Duration::from_millis(250)).await;
            }
            outcome => return outcome,
        }
    }
}

/// Adds the second range to the ServiceCIDR of a cluster that changes from single-stack to dual-stack.
async fn add_family(
    objects: &dyn Objects,
    client: &Client,
    ranges: &[String],
) -> Result<(), Error> {
    let kind = GroupResource::new("networking.k8s.io", "servicecidrs");
    let known = objects.get(&kind, "", "kubernetes").unwrap_or_default();
    if ranges.len() != 2 || known["spec"]["cidrs"] != json!([ranges[0]]) {
        return Ok(());
    }
    let at = PatchTarget { namespace: "", name: "kubernetes", subresource: "" };
    let patch = json!({"spec": {"cidrs": ranges}});
    client.patch::<Value>(&SERVICE_CIDRS, at, PatchKind::Merge, &patch).await.map(drop)
}

/// Sets the condition `Ready` of the ServiceCIDR unless it has one.
async fn ensure_ready(objects: &dyn Objects, client: &Client) -> Result<(), Error> {
    let kind = GroupResource::new("networking.k8s.io", "servicecidrs");
    let known = objects.get(&kind, "", "kubernetes").unwrap_or_default();
    let mut status = known["status"].clone();
    let conditions = status["conditions"].as_array();
    if conditions.is_some_and(|all| all.iter().any(|c| c["type"] == "Ready")) {
        return Ok(());
    }
    let message = "Kubernetes default Service CIDR is ready";
    set_condition(&mut status, "Ready", true, "", message);
    let at = PatchTarget { namespace: "", name: "kubernetes", subresource: "status" };
    let patch = json!({ "status": status });
    client.patch::<Value>(&SERVICE_CIDRS, at, PatchKind::Merge, &patch).await.map(drop)
}
