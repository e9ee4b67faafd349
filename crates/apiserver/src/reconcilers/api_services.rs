//! APIServices of what this server itself serves: one for each group and version, of built-in and of custom kinds.

use std::{collections::BTreeMap, time::Duration};

use api_meta::{GroupResource, Objects, Tree as _};
use client::{Client, DeleteOptions, Error, IfThere as _};
use serde_json::{Value, json};

use super::{availability::API_SERVICES, ensure::ensure};
use crate::{
    aggregation::services::{GROUP, PLURAL},
    registry::priority,
    watch_cache::WatchCache,
};

/// Marks those that are the server's: made at its start, or as custom kinds come and go.
const MANAGED: &str = "kube-aggregator.kubernetes.io/automanaged";

/// Makes the APIServices that are missing, and takes those away whose group or version is gone.
pub(crate) async fn follow(
    cache: &WatchCache,
    objects: &dyn Objects,
    client: &Client,
) -> Result<(), Error> {
    let wanted = wanted(cache);
    let known = objects.list(&GroupResource::new(GROUP, PLURAL), "");
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
    // As upstream has it, the group of APIServices stands before all others and has none itself.
    for (group, version, custom) in served.filter(|(group, ..)| *group != GROUP) {
        let name = format!("{version}.{group}");
        if !custom || !all.contains_key(&name) {
            all.insert(name.clone(), api_service(&name, group, version, custom));
        }
    }
    all
}

fn api_service(name: &str, group: &str, version: &str, custom: bool) -> Value {
    let (of_group, of_version) = priority::of(group, version);
    json!({
        "metadata": {"name": name, "labels": {MANAGED: if custom { "true" } else { "onstart" }}},
        "spec": {"group": group, "version": version, "groupPriorityMinimum": of_group, "versionPriority": of_version},
    })
}

/// Makes the APIServices of the built-in kinds; those of custom kinds come and go with their definitions.
pub(crate) async fn first(cache: &WatchCache, objects: &dyn Objects, client: &Client) {
    // The server is not healthy before it is done.
    let mut backoff = rt::Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
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
