//! Maintains the legacy Endpoints of each Service.

use api_meta::{ObjectMeta, Tree as _};
use std::{collections::BTreeMap, sync::Arc};

use client::{Error, NotFoundExt as _, Resource, WorkQueue};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    plan,
    service::{follow_pods, labels_for},
    slice::SlicePort,
};
use crate::{
    context::{Context, synced},
    indexes::LabelIndex,
    shared::Watched,
    views::{Pod, Service},
};

const MAX_ADDRESSES: usize = 1000;
const MANAGED: (&str, &str) = ("endpoints.kubernetes.io/managed-by", "endpoint-controller");

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Endpoints {
    pub(super) metadata: ObjectMeta,
    pub(super) subsets: Value,
}

/// Groups addresses with the same ports into one subset.
fn subsets(service: &Service, pods: &[Arc<Pod>]) -> Value {
    let family = service.spec.ip_families.first().map_or("IPv4", String::as_str);
    let v6 =
        family == "IPv6" || service.spec.cluster_ip.as_deref().is_some_and(|ip| ip.contains(':'));
    let mut by_ports: BTreeMap<Vec<SlicePort>, (Vec<Value>, Vec<Value>)> = BTreeMap::new();
    for pod in pods.iter().filter(|pod| pod.is_active()).take(MAX_ADDRESSES) {
        let Some(ip) = pod.ips().find(|ip| ip.contains(':') == v6) else { continue };
        let mut address = json!({"ip": ip, "targetRef": {"kind": "Pod", "namespace": pod.metadata.namespace,
            "name": pod.metadata.name, "uid": pod.metadata.uid}});
        if !pod.node().is_empty() {
            address.put(&["nodeName"], json!(pod.node()));
        }
        let named = pod.spec.subdomain.as_deref() == Some(service.metadata.name.as_str());
        if let Some(hostname) =
            pod.spec.hostname.as_deref().filter(|name| named && !name.is_empty())
        {
            address.put(&["hostname"], json!(hostname));
        }
        let (ready, unready) = by_ports.entry(plan::ports(service, pod)).or_default();
        let counts = service.spec.publish_not_ready_addresses || pod.is_ready();
        if counts { ready.push(address) } else { unready.push(address) }
    }
    let by_ip = |mut addresses: Vec<Value>| {
        addresses.sort_by_key(|a| a["ip"].as_str().map(str::to_owned));
        addresses
    };
    let subset = |(ports, (ready, unready)): (Vec<SlicePort>, (Vec<Value>, Vec<Value>))| {
        let mut subset = json!({});
        for (field, addresses) in [("addresses", ready), ("notReadyAddresses", unready)] {
            if !addresses.is_empty() {
                subset.put(&[field], json!(by_ip(addresses)));
            }
        }
        if !ports.is_empty() {
            subset.put("ports", ports.iter().map(port).collect::<Value>());
        }
        subset
    };
    by_ports.into_iter().map(subset).collect()
}

fn port(port: &SlicePort) -> Value {
    let mut out = json!({"port": port.port, "protocol": port.protocol});
    if !port.name.is_empty() {
        out.put(&["name"], json!(port.name));
    }
    if let Some(app) = &port.app_protocol {
        out.put(&["appProtocol"], json!(app));
    }
    out
}

pub(crate) fn start(context: Context) {
    let queue = WorkQueue::default();
    let services = context.watch::<Service>(Resource::SERVICES);
    let pods = context.watch::<Pod>(Resource::PODS);
    let endpoints = context.watch::<Endpoints>(Resource::ENDPOINTS);
    services.on_key(&queue);
    endpoints.on_key(&queue);
    follow_pods(&pods, &services, &queue);
    let waits = vec![synced(&services), synced(&pods), synced(&endpoints)];
    let state = (context.clone(), services, LabelIndex::of(&pods), endpoints);
    context.run(&queue, 5, waits, state, |(context, services, pods, endpoints), key| async move {
        reconcile(&context, &services, &pods, &endpoints, &key).await
    });
}

async fn reconcile(
    context: &Context,
    services: &Watched<Service>,
    pods: &LabelIndex<Pod>,
    endpoints: &Watched<Endpoints>,
    key: &str,
) -> Result<(), Error> {
    let (namespace, name) = key.split_once('/').unwrap_or(("", key));
    let resource = &Resource::ENDPOINTS;
    let current = endpoints.get(key);
    let Some(service) = services.get(key) else {
        // Endpoints that a user created without a Service stay; managed ones are deleted.
        let ours =
            current.filter(|e| e.metadata.labels.get(MANAGED.0).is_some_and(|by| by == MANAGED.1));
        let Some(ours) = ours else { return Ok(()) };
        context.client.delete(resource, namespace, name, &Default::default()).await.or_none()?;
        tracing::debug!(endpoints = %ours.metadata.name, "deleted with its Service");
        return Ok(());
    };
    if service.spec.selector.is_empty() || service.spec.r#type == "ExternalName" {
        return Ok(());
    }
    let selected = pods.selected(namespace, &service.selector());
    let subsets = subsets(&service, &selected);
    let labels = labels_for(&service, &[MANAGED]);
    let mut desired = json!({"metadata": {"name": name, "namespace": namespace, "labels": labels}, "subsets": subsets});
    let written = match current {
        None => context.client.create::<_, Value>(resource, namespace, &desired).await,
        Some(current) => {
            let none = |value: &Value| value.as_array().is_none_or(Vec::is_empty);
            let same = current.subsets == subsets || (none(&current.subsets) && none(&subsets));
            if same && json!(current.metadata.labels) == labels {
                return Ok(());
            }
            desired.put(&["metadata", "resourceVersion"], json!(current.metadata.resource_version));
            desired.put(&["metadata", "annotations"], json!(current.metadata.annotations));
            context.client.update::<_, Value>(resource, namespace, name, &desired).await
        }
    };
    match written {
        Err(error) if crate::api_error::namespace_is_terminating(&error) => Ok(()),
        other => other.map(drop),
    }
}
