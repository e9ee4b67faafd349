//! What a fresh cluster has: system namespaces, the RBAC bootstrap policy, priority classes, the `kubernetes`
//! Service and its endpoints, what is published about the API servers. Written through the pipeline like everything
//! else, as `system:apiserver`.

use std::{collections::BTreeSet, net::IpAddr, sync::atomic::Ordering};

use api_meta::GroupResource;
use auth::rbac::Ensure;
use client::{Client, Error, PatchKind, Patched, Resource};
use futures_util::{StreamExt, TryStreamExt, stream};
use serde_json::{Value, json};

use crate::{presence, published, server::Server};

const SERVICE_CIDRS: Resource =
    Resource::constant("networking.k8s.io", "v1", "servicecidrs", "ServiceCIDR", false);

const NAMESPACES: [&str; 4] = ["kube-system", "kube-public", "kube-node-lease", "default"];

/// Brings the initial objects into being; safe to run again at every start.
pub(crate) async fn run(server: &Server, client: &Client) -> Result<(), Error> {
    for name in NAMESPACES {
        ensure(client, &Resource::NAMESPACES, "", &json!({"metadata": {"name": name}})).await?;
    }
    for (name, value, description) in [
        (
            "system-node-critical",
            2_000_001_000i64,
            "Used for system critical pods that must not be moved from their current node.",
        ),
        (
            "system-cluster-critical",
            2_000_000_000,
            "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
        ),
    ] {
        let class = json!({"metadata": {"name": name}, "value": value, "description": description});
        ensure(client, &Resource::PRIORITY_CLASSES, "", &class).await?;
    }
    bootstrap_policy(server, client).await?;
    flow_control(server, client).await?;
    kubernetes_service(server, client).await?;
    published::run(&server.config, client).await?;
    server.readiness.started.store(true, Ordering::Relaxed);
    Ok(())
}

/// Creates an object unless it is there.
pub(crate) async fn ensure(
    client: &Client,
    resource: &Resource,
    namespace: &str,
    object: &Value,
) -> Result<(), Error> {
    // Asked first: creating a Service anew would fail for its address, which the old one holds.
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    match client.get::<Value>(resource, namespace, name).await {
        Err(error) if error.is_not_found() => {}
        found => return found.map(drop),
    }
    match client.create::<_, Value>(resource, namespace, object).await {
        Err(error) if !error.is_already_exists() => Err(error),
        _ => Ok(()),
    }
}

/// Each of a hundred writes waits for a disk, several where etcd has members: so many wait at once.
const SIDE_BY_SIDE: usize = 16;

async fn bootstrap_policy(server: &Server, client: &Client) -> Result<(), Error> {
    let actions = auth::rbac::ensure_bootstrap(&server.security.objects);
    let known = actions.iter().filter_map(|(kind, action)| Some((rbac_resource(kind)?, action)));
    let writes = known.map(|(resource, action)| async move {
        let (Ensure::Create(object) | Ensure::Update(object) | Ensure::Replace(object)) = action;
        let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
        let (namespace, name) = (text("namespace"), text("name"));
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
    });
    stream::iter(writes).buffer_unordered(SIDE_BY_SIDE).try_collect().await
}

/// The flow schemas and priority levels that upstream suggests.
async fn flow_control(server: &Server, client: &Client) -> Result<(), Error> {
    let group = "flowcontrol.apiserver.k8s.io";
    let actions = flow::ensure_bootstrap(&server.security.objects);
    let writes = actions.iter().map(|(kind, action)| async move {
        let name = match &*kind.resource {
            "flowschemas" => "FlowSchema",
            _ => "PriorityLevelConfiguration",
        };
        let resource = Resource {
            group: group.into(),
            version: "v1".into(),
            plural: kind.resource.to_string().into(),
            kind: name.into(),
            namespaced: false,
        };
        match action {
            flow::Ensure::Create(object) => ensure(client, &resource, "", object).await,
            flow::Ensure::Update(object) => {
                let name = object["metadata"]["name"].as_str().unwrap_or_default();
                client.update::<_, Value>(&resource, "", name, object).await.map(drop)
            }
        }
    });
    stream::iter(writes).buffer_unordered(SIDE_BY_SIDE).try_collect().await
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

/// The Service by which Pods find the API server, at the first address of the Service range.
async fn kubernetes_service(server: &Server, client: &Client) -> Result<(), Error> {
    let config = &server.config;
    let Some(range) = config.service_cidrs.first() else { return Ok(()) };
    let address = range.nth(1).to_string();
    let family = if range.address.is_ipv4() { "IPv4" } else { "IPv6" };
    let ranges: Vec<String> = config.service_cidrs.iter().map(ToString::to_string).collect();
    let cidr = json!({"metadata": {"name": "kubernetes"}, "spec": {"cidrs": ranges}});
    ensure(client, &SERVICE_CIDRS, "", &cidr).await?;
    let labels = json!({"component": "apiserver", "provider": "kubernetes"});
    let service = json!({
        "metadata": {"name": "kubernetes", "labels": labels},
        "spec": {
            "clusterIP": address,
            "clusterIPs": [address],
            "ipFamilies": [family],
            "ipFamilyPolicy": "SingleStack",
            "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": config.bind.port()}],
            "sessionAffinity": "None",
            "type": "ClusterIP",
        },
    });
    ensure(client, &Resource::SERVICES, "default", &service).await?;
    let servers = presence::servers(server).await.unwrap_or_else(|error| {
        tracing::warn!(%error, "asking the store for the other API servers; they are asked for again soon");
        BTreeSet::from([config.advertise])
    });
    endpoints(server, client, &servers).await
}

/// Makes these servers the endpoints of the Service `kubernetes`. What is so already is not written.
pub(crate) async fn endpoints(
    server: &Server,
    client: &Client,
    servers: &BTreeSet<IpAddr>,
) -> Result<(), Error> {
    let config = &server.config;
    // One Service has one family: that of this server's address.
    let same = |a: &&IpAddr| a.is_ipv4() == config.advertise.is_ipv4();
    let servers: Vec<String> = servers.iter().filter(same).map(ToString::to_string).collect();
    let family = if config.advertise.is_ipv4() { "IPv4" } else { "IPv6" };
    let port = json!([{"name": "https", "port": config.bind.port(), "protocol": "TCP"}]);
    let addresses: Vec<Value> = servers.iter().map(|ip| json!({ "ip": ip })).collect();
    let endpoints = json!({
        "apiVersion": "v1",
        "kind": "Endpoints",
        "metadata": {"name": "kubernetes", "namespace": "default", "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"}},
        "subsets": [{"addresses": addresses, "ports": port}],
    });
    put(client, &Resource::ENDPOINTS, &endpoints).await?;
    let ready = |ip: &String| json!({"addresses": [ip], "conditions": {"ready": true}});
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "kubernetes", "namespace": "default", "labels": {"kubernetes.io/service-name": "kubernetes"}},
        "addressType": family,
        "endpoints": servers.iter().map(ready).collect::<Vec<_>>(),
        "ports": port,
    });
    put(client, &Resource::ENDPOINT_SLICES, &slice).await
}

async fn put(client: &Client, resource: &Resource, object: &Value) -> Result<(), Error> {
    let at = Patched { namespace: "default", name: "kubernetes", subresource: "" };
    let apply = PatchKind::Apply { manager: "kube-apiserver", force: true };
    client.patch::<Value>(resource, at, apply, object).await.map(drop)
}
