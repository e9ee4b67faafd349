//! Maintains the APIServices of this server's own APIs: one for each group and version of built-in and custom kinds.

use std::{collections::BTreeMap, time::Duration};

use api_meta::{GroupResource, Objects, Tree as _};
use client::{Client, DeleteOptions, Error, NotFoundExt as _};
use serde_json::{Value, json};

use super::{availability::API_SERVICES, ensure::ensure};
use crate::{
    aggregation::services::{GROUP, PLURAL},
    registry::priority,
    watch_cache::WatchCache,
};

/// The label of APIServices that the server manages.
const MANAGED: &str = "kube-aggregator.kubernetes.io/automanaged";

/// The value for built-in kinds.
const BUILT_IN: &str = "onstart";
/// The value for custom kinds.
const CUSTOM: &str = "true";

/// Creates missing APIServices, and deletes those of custom kinds that are no longer served.
pub(crate) async fn follow(
    cache: &WatchCache,
    objects: &dyn Objects,
    client: &Client,
) -> Result<(), Error> {
    reconcile(cache, objects, client, &[CUSTOM]).await
}

/// Creates missing APIServices, and deletes those with one of these values that are no longer served.
async fn reconcile(
    cache: &WatchCache,
    objects: &dyn Objects,
    client: &Client,
    deletable: &[&str],
) -> Result<(), Error> {
    let wanted = desired(cache);
    let known = objects.list(&GroupResource::new(GROUP, PLURAL), "");
    for old in &known {
        let name = old.name();
        let managed = old.text(&["metadata", "labels", MANAGED]);
        let ours = deletable.contains(&managed) && !old.has("spec.service");
        if ours && !wanted.contains_key(name) {
            let gone = client.delete(&API_SERVICES, "", name, &DeleteOptions::default()).await;
            gone.or_none()?;
        }
    }
    for (name, object) in &wanted {
        if !known.iter().any(|old| *old.at("metadata.name") == **name) {
            ensure(client, &API_SERVICES, "", object).await?;
        }
    }
    Ok(())
}

fn desired(cache: &WatchCache) -> BTreeMap<String, Value> {
    let kinds = cache.kinds();
    let definitions = kinds.all.iter().map(|resource| &resource.definition);
    let served = definitions.flat_map(|d| {
        d.served.iter().filter(|s| s.enabled).map(|s| (&*s.group, &*s.version, d.custom.is_some()))
    });
    // If a group has built-in and custom kinds, the built-in ones determine its APIService.
    let mut all: BTreeMap<String, Value> = BTreeMap::new();
    // As upstream, the group of APIServices itself has no APIService.
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
        "metadata": {"name": name, "labels": {MANAGED: if custom { CUSTOM } else { BUILT_IN }}},
        "spec": {
            "group": group,
            "version": version,
            "groupPriorityMinimum": of_group,
            "versionPriority": of_version,
        },
    })
}

/// Creates the APIServices at the start, with retries. Those of custom kinds follow their definitions afterwards. As
/// upstream, those of built-in kinds are deleted at the start only: another API server may have created later ones.
pub(crate) async fn first(cache: &WatchCache, objects: &dyn Objects, client: &Client) {
    // The health checks fail until this is done, so retry quickly.
    let mut backoff = rt::Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
    loop {
        let created = reconcile(cache, objects, client, &[CUSTOM, BUILT_IN]);
        match rt::catch("api services", "all", created).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => {
                tracing::warn!(%error, "failed to create the APIServices of the served APIs; retrying")
            }
            Err(rt::CaughtPanic { .. }) => {}
        }
        tokio::time::sleep(backoff.next(0.5)).await;
    }
}
