//! Maintains the Ready condition of ServiceCIDRs, and protects those in use with a finalizer.

use std::net::IpAddr;

use api_meta::{Cidr, ObjectMeta, Timestamp, null_default};
use client::{Error, Resource, WorkQueue};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    context::{Context, synced},
    shared::Watched,
    views::conditions,
};

const FINALIZER: &str = "networking.k8s.io/service-cidr-finalizer";

const SERVICE_CIDRS: Resource =
    Resource::constant("networking.k8s.io", "v1", "servicecidrs", "ServiceCIDR", false);

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct ServiceCidr {
    metadata: ObjectMeta,
    spec: Spec,
    status: Value,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Spec {
    #[serde(deserialize_with = "null_default")]
    cidrs: Vec<String>,
}

/// The addresses of a Service.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct ServiceAddresses {
    spec: ServiceAddressesSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct ServiceAddressesSpec {
    #[serde(rename = "clusterIPs", deserialize_with = "null_default")]
    addresses: Vec<String>,
}

#[derive(Debug, Default, PartialEq)]
struct Plan {
    /// The new finalizers, if they change.
    finalizers: Option<Vec<String>>,
    /// The new Ready condition, if it changes.
    ready: Option<Value>,
}

/// Plans for a range. `used` is `true` if a Service has an address from it.
fn plan(range: &ServiceCidr, used: bool, now: Timestamp) -> Plan {
    let meta = &range.metadata;
    let has = meta.finalizers.iter().any(|f| f == FINALIZER);
    let (status, reason, message) = match () {
        () if meta.terminating() && used => (
            "False",
            "Terminating",
            "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR",
        ),
        () if meta.terminating() => {
            let others = meta.finalizers.iter().filter(|f| *f != FINALIZER).cloned();
            return Plan { finalizers: has.then(|| others.collect()), ready: None };
        }
        () => ("True", "", "Kubernetes Service CIDR is ready"),
    };
    let finalizers = (!has && !meta.terminating())
        .then(|| [&meta.finalizers[..], &[FINALIZER.to_owned()]].concat());
    let there = conditions(&range.status)
        .iter()
        .any(|c| c.r#type == "Ready" && c.status == status && c.reason.as_deref() == Some(reason));
    let ready = (!there).then(|| {
        json!({"type": "Ready", "status": status, "reason": reason, "message": message,
            "lastTransitionTime": now})
    });
    Plan { finalizers, ready }
}

pub(crate) fn start(context: Context) {
    let queue = WorkQueue::default();
    let ranges = context.watch::<ServiceCidr>(SERVICE_CIDRS);
    let services = context.watch::<ServiceAddresses>(Resource::SERVICES);
    ranges.on_key(&queue);
    let (add, all) = (queue.clone(), ranges.clone());
    services.on(move |change| {
        // A terminating range may have waited for this Service.
        if change.new.is_none() {
            let waiting = all.list().into_iter().filter(|range| range.metadata.terminating());
            waiting.for_each(|range| add.add(range.metadata.key()));
        }
    });
    let waits = vec![synced(&ranges), synced(&services)];
    let state = (context.clone(), ranges, services);
    context.run(&queue, 1, waits, state, |(context, ranges, services), key| async move {
        reconcile(&context, &ranges, &services, &key).await
    });
}

async fn reconcile(
    context: &Context,
    ranges: &Watched<ServiceCidr>,
    services: &Watched<ServiceAddresses>,
    key: &str,
) -> Result<(), Error> {
    let Some(range) = ranges.get(key) else { return Ok(()) };
    let own = parsed(&range.spec.cidrs);
    let used = range.metadata.terminating() && {
        let there = ranges.list();
        let others: Vec<Cidr> = there
            .iter()
            .filter(|other| !other.metadata.terminating())
            .flat_map(|other| parsed(&other.spec.cidrs))
            .collect();
        services.list().iter().flat_map(|service| addresses(service)).any(|address| {
            let within = |cidrs: &[Cidr]| cidrs.iter().any(|cidr| cidr.contains(address));
            within(&own) && !within(&others)
        })
    };
    let plan = plan(&range, used, context.now());
    let meta = &range.metadata;
    if let Some(finalizers) = plan.finalizers {
        let change = json!({"metadata": {"finalizers": finalizers}});
        context.merge_by_update(&SERVICE_CIDRS, meta, "", &change).await?;
    }
    if let Some(ready) = plan.ready {
        let change = json!({"status": {"conditions": [ready]}});
        context.merge_by_update(&SERVICE_CIDRS, meta, "status", &change).await?;
    }
    Ok(())
}

fn parsed(texts: &[String]) -> Vec<Cidr> {
    texts.iter().filter_map(|text| text.parse().ok()).collect()
}

/// Parses the addresses of a Service; `None` of a headless Service is not an address.
fn addresses(service: &ServiceAddresses) -> Vec<IpAddr> {
    service.spec.addresses.iter().filter_map(|text| text.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Timestamp {
        Timestamp::from_unix(0, 0)
    }

    fn range(deleting: bool, finalizers: &[&str]) -> ServiceCidr {
        let mut range = ServiceCidr::default();
        range.metadata.finalizers = finalizers.iter().map(|f| (*f).to_owned()).collect();
        range.metadata.deletion_timestamp = deleting.then(now);
        range
    }

    #[test]
    fn adds_finalizer_and_ready_condition() {
        let mut fresh = range(false, &["other"]);
        let planned = plan(&fresh, false, now());
        assert_eq!(planned.finalizers.unwrap(), ["other", FINALIZER]);
        let ready = planned.ready.unwrap();
        assert_eq!((&ready["status"], &ready["reason"]), (&json!("True"), &json!("")));
        fresh.metadata.finalizers.push(FINALIZER.to_owned());
        fresh.status = json!({"conditions": [ready]});
        assert_eq!(plan(&fresh, false, now()), Plan::default(), "nothing is left to do");
    }

    #[test]
    fn keeps_finalizer_while_range_is_used() {
        let going = range(true, &["other", FINALIZER]);
        let waiting = plan(&going, true, now());
        assert_eq!(
            (waiting.finalizers, &waiting.ready.unwrap()["status"]),
            (None, &json!("False"))
        );
        let free = plan(&going, false, now());
        assert_eq!((free.finalizers.unwrap(), free.ready), (vec!["other".to_owned()], None));
    }
}
