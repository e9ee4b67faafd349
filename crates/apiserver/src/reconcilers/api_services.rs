//! APIServices of what this server itself serves: one for each group and version, of built-in and of custom kinds.

use std::{collections::BTreeMap, time::Duration};

use api_meta::{GroupResource, Objects, Tree as _};
use client::{Client, DeleteOptions, Error, IfThere as _, Resource};
use serde_json::{Value, json};

use super::ensure::ensure;
use crate::watch_cache::WatchCache;

const API_SERVICES: Resource =
    Resource::constant("apiregistration.k8s.io", "v1", "apiservices", "APIService", false);
const GROUP: &str = "apiregistration.k8s.io";
/// Marks those that are the server's: made at its start, or as custom kinds come and go.
const MANAGED: &str = "kube-aggregator.kubernetes.io/automanaged";

/// Upstream's order of groups: the higher comes first.
const GROUPS: &[(&str, u32)] = &[
    ("", 18_000),
    ("admissionregistration.k8s.io", 16_700),
    ("apiextensions.k8s.io", 16_700),
    ("apps", 17_800),
    ("authentication.k8s.io", 17_700),
    ("authorization.k8s.io", 17_600),
    ("autoscaling", 17_500),
    ("batch", 17_400),
    ("certificates.k8s.io", 17_300),
    ("coordination.k8s.io", 16_500),
    ("discovery.k8s.io", 16_200),
    ("events.k8s.io", 17_750),
    ("flowcontrol.apiserver.k8s.io", 16_100),
    ("networking.k8s.io", 17_200),
    ("node.k8s.io", 16_300),
    ("policy", 17_100),
    ("rbac.authorization.k8s.io", 17_000),
    ("resource.k8s.io", 16_200),
    ("scheduling.k8s.io", 16_600),
    ("storage.k8s.io", 16_800),
];
/// The order of the versions of one, where it is not the usual.
const VERSIONS: &[(&str, u32)] = &[
    ("v1.", 1),
    ("v1.flowcontrol.apiserver.k8s.io", 21),
    ("v1.resource.k8s.io", 21),
    ("v2.autoscaling", 30),
];
const USUAL: u32 = 15;
/// Those of custom kinds are all alike.
const CUSTOM: (u32, u32) = (1000, 100);

/// Makes the APIServices that are missing, and takes those away whose group or version is gone.
pub(crate) async fn follow(
    cache: &WatchCache,
    objects: &dyn Objects,
    client: &Client,
) -> Result<(), Error> {
    let wanted = wanted(cache);
    let known = objects.list(&GroupResource::new(GROUP, "apiservices"), "");
    for old in &known {
        let name = old.name();
        let ours =
            !old["metadata"]["labels"][MANAGED].is_null() && old["spec"]["service"].is_null();
        if ours && !wanted.contains_key(name) {
            let gone = client.delete(&API_SERVICES, "", name, &DeleteOptions::default()).await;
            gone.if_there()?;
        }
    }
    for (name, object) in &wanted {
        if !known.iter().any(|old| old["metadata"]["name"] == **name) {
            ensure(client, &API_SERVICES, "", object).await?;
        }
    }
    Ok(())
}

fn wanted(cache: &WatchCache) -> BTreeMap<String, Value> {
    let kinds = cache.kinds();
    let definitions = kinds.all.values().map(|resource| &resource.definition);
    let served = definitions.flat_map(|d| {
        d.served.iter().filter(|s| s.enabled).map(|s| (&*s.group, &*s.version, d.custom.is_some()))
    });
    // Where a group has kinds of both sorts, the built-in ones decide.
    let mut all: BTreeMap<String, Value> = BTreeMap::new();
    for (group, version, custom) in served {
        let name = format!("{version}.{group}");
        if !custom || !all.contains_key(&name) {
            all.insert(name.clone(), api_service(&name, group, version, custom));
        }
    }
    all
}

fn api_service(name: &str, group: &str, version: &str, custom: bool) -> Value {
    let found = |all: &[(&str, u32)], name: &str| {
        all.iter().find(|(known, _)| *known == name).map(|(_, priority)| *priority)
    };
    let (of_group, of_version) = match found(GROUPS, group).filter(|_| !custom) {
        None => CUSTOM,
        Some(of_group) => (of_group, found(VERSIONS, name).unwrap_or(USUAL)),
    };
    json!({
        "metadata": {"name": name, "labels": {MANAGED: if custom { "true" } else { "onstart" }}},
        "spec": {"group": group, "version": version, "groupPriorityMinimum": of_group, "versionPriority": of_version},
    })
}

/// Makes the APIServices of the built-in kinds; those of custom kinds come and go with their definitions.
pub(crate) async fn first(cache: &WatchCache, objects: &dyn Objects, client: &Client) {
    let mut backoff = rt::Backoff::new(Duration::from_millis(100), Duration::from_secs(30));
    loop {
        let follow = follow(cache, objects, client);
        match rt::catch("api services", "all", follow).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => {
                tracing::warn!(%error, "making the APIServices of what is served; trying again")
            }
            Err(rt::Panicked { .. }) => {}
        }
        tokio::time::sleep(backoff.next(0.5)).await;
    }
}
