//! Mirrors user-managed Endpoints to EndpointSlices for clients that read only slices.

use std::sync::Arc;

use api_meta::{ObjectMeta, Tree as _};
use client::{Error, Index, NotFoundExt as _, Resource, WorkQueue};
use serde_json::{Value, json};

use super::{
    endpoints::Endpoints,
    slice::{Endpoint, EndpointConditions, Slice, SlicePort, by_service},
};
use crate::{
    context::{Context, synced},
    shared::Watched,
    views::Service,
};

const MANAGER: &str = "endpointslicemirroring-controller.k8s.io";

/// The content of a mirrored slice.
#[derive(Debug, PartialEq)]
struct DesiredSlice {
    family: &'static str,
    ports: Vec<SlicePort>,
    endpoints: Vec<Endpoint>,
}

/// Returns the slices of Endpoints, with at most `most` addresses of each subset. Ready ones come first.
fn desired(endpoints: &Endpoints, most: usize) -> Vec<DesiredSlice> {
    let mut out: Vec<DesiredSlice> = Vec::new();
    for subset in endpoints.subsets.as_array().into_iter().flatten() {
        let mut ports: Vec<SlicePort> = subset.items("ports").iter().map(port).collect();
        ports.sort();
        let of = |field: &str, ready: bool| {
            subset.items(field).iter().map(move |address| (address, ready))
        };
        let addresses = of("addresses", true).chain(of("notReadyAddresses", false)).take(most);
        for family in ["IPv4", "IPv6"] {
            let of_family = |(address, ready)| endpoint(address, family, ready);
            let endpoints: Vec<Endpoint> = addresses.clone().filter_map(of_family).collect();
            match out.iter_mut().find(|w| w.family == family && w.ports == ports) {
                _ if endpoints.is_empty() => {}
                Some(same) => same.endpoints.extend(endpoints),
                None => out.push(DesiredSlice { family, ports: ports.clone(), endpoints }),
            }
        }
    }
    out
}

fn port(port: &Value) -> SlicePort {
    SlicePort {
        name: port.text("name").to_owned(),
        port: port["port"].as_i64().and_then(|number| i32::try_from(number).ok()),
        protocol: port["protocol"].as_str().unwrap_or("TCP").to_owned(),
        app_protocol: port["appProtocol"].as_str().map(str::to_owned),
    }
}

fn endpoint(address: &Value, family: &str, ready: bool) -> Option<Endpoint> {
    let ip = address["ip"].as_str().filter(|ip| ip.contains(':') == (family == "IPv6"))?;
    Some(Endpoint {
        addresses: vec![ip.to_owned()],
        conditions: EndpointConditions { ready, serving: ready, terminating: false },
        hostname: address["hostname"].as_str().map(str::to_owned),
        target_ref: serde_json::from_value(address["targetRef"].clone()).ok(),
        node_name: address["nodeName"].as_str().map(str::to_owned),
        zone: None,
        hints: None,
    })
}

/// Reports whether these Endpoints are mirrored: the Service has no selector, so no other controller makes slices.
fn is_mirrored(endpoints: &Endpoints, service: Option<&Service>) -> bool {
    let meta = &endpoints.metadata;
    service.is_some_and(|service| service.spec.selector.is_empty())
        && !meta.terminating()
        && meta
            .labels
            .get("endpointslice.kubernetes.io/skip-mirror")
            .is_none_or(|skip| skip != "true")
        && !meta.annotations.contains_key("control-plane.alpha.kubernetes.io/leader")
}

pub(crate) fn start(context: Context) {
    let queue = WorkQueue::default();
    let services = context.watch::<Service>(Resource::SERVICES);
    let endpoints = context.watch::<Endpoints>(Resource::ENDPOINTS);
    let slices = context.watch::<Slice>(Resource::ENDPOINT_SLICES);
    services.on_key(&queue);
    endpoints.on_key(&queue);
    let waits = vec![synced(&services), synced(&endpoints), synced(&slices)];
    let state = (context.clone(), services, endpoints, by_service(&slices));
    context.run(
        &queue,
        2,
        waits,
        state,
        |(context, services, endpoints, slices), key| async move {
            reconcile(&context, &services, &endpoints, &slices, &key).await
        },
    );
}

async fn reconcile(
    context: &Context,
    services: &Watched<Service>,
    endpoints: &Watched<Endpoints>,
    slices: &Index<Slice>,
    key: &str,
) -> Result<(), Error> {
    let (namespace, _) = key.split_once('/').unwrap_or(("", key));
    let mut existing = slices.get(key);
    existing.retain(|slice| slice.managed_by(MANAGER));
    let source = endpoints.get(key);
    let source = source.filter(|e| is_mirrored(e, services.get(key).as_deref()));
    let most = context.config.max_mirrored_per_subset;
    let plan = source.as_ref().map(|source| desired(source, most)).unwrap_or_default();
    let resource = &Resource::ENDPOINT_SLICES;
    for (at, slice) in plan.iter().enumerate() {
        let Some(source) = &source else { continue };
        // Fixed names instead of generated ones: a stale read then creates nothing twice.
        let object = object(&source.metadata, slice, at);
        let slice_name = object.name().to_owned();
        let current = existing
            .iter()
            .position(|old| old.metadata.name == slice_name)
            .map(|at| existing.remove(at));
        let written = match current {
            None => context.client.create::<_, Value>(resource, namespace, &object).await,
            Some(old) if same(&old, slice) => continue,
            Some(old) if old.address_type != slice.family => {
                delete(context, &old).await?;
                context.client.create::<_, Value>(resource, namespace, &object).await
            }
            Some(_) => {
                context.client.update::<_, Value>(resource, namespace, &slice_name, &object).await
            }
        };
        match written {
            Err(error) if error.is_already_exists() => {}
            other => drop(other?),
        }
    }
    for slice in existing {
        delete(context, &slice).await?;
    }
    Ok(())
}

fn same(old: &Arc<Slice>, desired: &DesiredSlice) -> bool {
    let mut ports = old.ports.clone();
    ports.sort();
    old.address_type == desired.family
        && ports == desired.ports
        && old.endpoints == desired.endpoints
}

async fn delete(context: &Context, slice: &Slice) -> Result<(), Error> {
    let (meta, resource) = (&slice.metadata, &Resource::ENDPOINT_SLICES);
    let deleted =
        context.client.delete(resource, &meta.namespace, &meta.name, &Default::default()).await;
    deleted.or_none().map(drop)
}

fn object(source: &ObjectMeta, slice: &DesiredSlice, number: usize) -> Value {
    let mut labels = source.labels.clone();
    labels.insert("kubernetes.io/service-name".into(), source.name.clone());
    labels.insert("endpointslice.kubernetes.io/managed-by".into(), MANAGER.into());
    let hash = crate::history::short_hash(&json!([source.uid, number]), 0);
    json!({
        "metadata": {"name": format!("{}-{hash}", source.name), "namespace": source.namespace, "labels": labels,
            "ownerReferences": [{"apiVersion": "v1", "kind": "Endpoints", "name": source.name,
                "uid": source.uid, "controller": true, "blockOwnerDeletion": true}]},
        "addressType": slice.family,
        "ports": slice.ports,
        "endpoints": slice.endpoints,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoints(labels: Value) -> Endpoints {
        serde_json::from_value(json!({"metadata": {"name": "db", "labels": labels}, "subsets": [
            {"addresses": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}], "notReadyAddresses": [{"ip": "10.0.0.2"}],
                "ports": [{"name": "sql", "port": 5432, "protocol": "TCP"}]}]}))
        .unwrap()
    }

    #[test]
    fn mirrors_subsets_per_address_family() {
        let slices = desired(&endpoints(json!({})), 1000);
        let found_slices: Vec<_> =
            slices.iter().map(|s| (s.family, s.endpoints.len(), s.ports[0].port)).collect();
        assert_eq!(found_slices, [("IPv4", 2, Some(5432)), ("IPv6", 1, Some(5432))]);
        assert_eq!(
            (slices[0].endpoints[0].conditions.ready, slices[0].endpoints[1].conditions.ready),
            (true, false)
        );
        let counts = |most| -> Vec<usize> {
            let slices = desired(&endpoints(json!({})), most);
            slices.iter().map(|slice| slice.endpoints.len()).collect()
        };
        assert_eq!((counts(2), counts(1)), (vec![1, 1], vec![1]), "the limit is for both families");
    }

    #[test]
    fn mirrors_only_services_without_selector() {
        let service = |selector: Value| -> Service {
            serde_json::from_value(json!({"spec": {"selector": selector}})).unwrap()
        };
        let plain = endpoints(json!({}));
        assert!(is_mirrored(&plain, Some(&service(json!(null)))));
        assert!(!is_mirrored(&plain, Some(&service(json!({"app": "x"})))));
        assert!(!is_mirrored(&plain, None));
        let skipped = endpoints(json!({"endpointslice.kubernetes.io/skip-mirror": "true"}));
        assert!(!is_mirrored(&skipped, Some(&service(json!(null)))));
    }
}
