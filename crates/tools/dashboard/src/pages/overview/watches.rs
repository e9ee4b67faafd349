//! Caches of the searched kinds, which all viewers share.
//!
//! The caches are filled with the rights of the kubeconfig's user. So each search first asks the API server whether
//! the viewer may list the kind in all namespaces. The dashboard searches for all other viewers with their own rights.

use std::sync::OnceLock;

use client::{Client, Index, Informer, ListOptions};
use futures_util::{
    FutureExt as _,
    future::{self, BoxFuture},
};

use super::search::{
    Checked, Kind, NODES, Node, PODS, Pod, SearchResult, Searched, WORKLOADS, Workload, read,
};
use crate::{api, error::PageError};

/// The name of the index of objects with a problem, and the only value in it.
const UNWELL: &str = "unwell";

/// The caches of all kinds.
pub(crate) struct Watches {
    nodes: Watch<Node>,
    pods: Watch<Pod>,
    workloads: [Watch<Workload>; 3],
}

/// The watch of one kind.
struct Watch<T> {
    kind: Kind,
    /// The cache, if the kubeconfig's user may list and watch the kind.
    cache: OnceLock<Cache<T>>,
}

/// The objects of one kind.
struct Cache<T> {
    /// The client that fills the cache.
    client: Client,
    objects: Informer<Checked<T>>,
    unwell: Index<Checked<T>>,
}

impl Default for Watches {
    fn default() -> Self {
        Self {
            nodes: Watch::new(NODES),
            pods: Watch::new(PODS),
            workloads: WORKLOADS.map(Watch::new),
        }
    }
}

impl Watches {
    /// Starts the caches that the client's user may fill. The others stay empty.
    pub(crate) async fn start(&self, client: &Client, tasks: &rt::Tasks) {
        let workloads = self.workloads.iter().map(|watch| watch.start(client, tasks));
        future::join3(
            self.nodes.start(client, tasks),
            self.pods.start(client, tasks),
            future::join_all(workloads),
        )
        .await;
    }

    /// Searches all kinds at the same time.
    pub(super) async fn search(&self, client: &Client) -> Vec<Result<SearchResult, PageError>> {
        let mut searches: Vec<BoxFuture<'_, Result<SearchResult, PageError>>> =
            vec![self.nodes.search(client).boxed(), self.pods.search(client).boxed()];
        searches.extend(self.workloads.iter().map(|watch| watch.search(client).boxed()));
        future::join_all(searches).await
    }
}

impl<T: Searched> Watch<T> {
    fn new(kind: Kind) -> Self {
        Self { kind, cache: OnceLock::new() }
    }

    async fn start(&self, client: &Client, tasks: &rt::Tasks) {
        let resource = &self.kind.resource;
        for verb in ["list", "watch"] {
            // Start even if this review fails: the informer tries again until the API server answers.
            if matches!(api::may(client, verb, resource).await, Ok(false)) {
                tracing::debug!(%resource.plural, verb, "the kubeconfig's user may not fill the cache");
                return;
            }
        }
        let options = ListOptions::fields(self.kind.fields);
        self.cache.get_or_init(|| {
            let objects = Informer::start(client, resource.clone(), options, tasks, |_| {});
            let unwell = objects.index(UNWELL, |object: &Checked<T>| {
                object.cause.iter().map(|_| UNWELL.to_owned()).collect()
            });
            Cache { client: client.clone(), objects, unwell }
        });
    }

    async fn search(&self, client: &Client) -> Result<SearchResult, PageError> {
        match self.cache.get() {
            Some(cache) if cache.objects.is_synced() && self.may_use(cache, client).await => {
                Ok(SearchResult::of(&cache.unwell.get(UNWELL), &self.kind))
            }
            _ => read::<T>(client, &self.kind).await,
        }
    }

    /// Reports whether the viewer may list all objects of the kind, and the user who fills the cache still may. After
    /// that user's credentials have expired, the cache is outdated.
    async fn may_use(&self, cache: &Cache<T>, client: &Client) -> bool {
        let may_list = |client| api::may(client, "list", &self.kind.resource);
        let (viewer, filler) = future::join(may_list(client), may_list(&cache.client)).await;
        matches!((viewer, filler), (Ok(true), Ok(true)))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::tests::{ACCESS_REVIEWS, scripted};

    fn allowed(allowed: impl Into<Value>) -> (&'static str, u16, Value) {
        (ACCESS_REVIEWS, 201, json!({"status": {"allowed": allowed.into()}}))
    }

    fn nodes(names: impl Iterator<Item = String>) -> (&'static str, u16, Value) {
        // Nodes without a status are not ready.
        let items: Vec<_> = names.map(|name| json!({"metadata": {"name": name}})).collect();
        ("/api/v1/nodes", 200, json!({"metadata": {"resourceVersion": "5"}, "items": items}))
    }

    #[tokio::test]
    async fn shows_cached_objects_only_to_users_who_may_list_them() {
        let names = (0..300).map(|number| format!("n{number:03}"));
        let (_, server) = scripted(vec![allowed(true), nodes(names)]);
        let (mut watches, tasks) = (Watches::default(), rt::Tasks::new(rt::Shutdown::new()));
        watches.start(&server, &tasks).await;
        watches.nodes.cache.get().unwrap().objects.synced().await;

        let (viewer, client) = scripted(vec![allowed(true)]);
        let found = watches.nodes.search(&client).await.unwrap();
        assert_eq!((found.problems.len(), &*found.problems[1].name), (100, "n001"));
        assert_eq!(found.notes, ["300 nodes are not ready. The first 100 are shown."]);
        assert_eq!(viewer.requests(), [format!("POST {ACCESS_REVIEWS}")]);

        let denied = || ("/api/v1/nodes", 403, json!({"message": "eve may not list nodes"}));
        for review in [allowed(false), allowed("true"), (ACCESS_REVIEWS, 403, json!({}))] {
            let (viewer, client) = scripted(vec![review, denied()]);
            let refused = watches.nodes.search(&client).await.unwrap_err();
            assert_eq!(refused.message(), "eve may not list nodes");
            let list = "GET /api/v1/nodes?limit=5000".to_owned();
            assert_eq!(viewer.requests(), [format!("POST {ACCESS_REVIEWS}"), list]);
        }

        // The cache is old: its user has lost the right to fill it.
        watches.nodes.cache.get_mut().unwrap().client = scripted(vec![allowed(false)]).1;
        let (_, client) = scripted(vec![allowed(true), nodes(["new".to_owned()].into_iter())]);
        let found = watches.nodes.search(&client).await.unwrap();
        assert_eq!((found.problems.len(), &*found.problems[0].name), (1, "new"));
        tasks.drain(std::time::Duration::from_secs(5)).await;
    }

    #[tokio::test]
    async fn keeps_no_cache_that_the_user_of_the_kubeconfig_may_not_fill() {
        let (script, server) = scripted(vec![allowed(false)]);
        let (watches, tasks) = (Watches::default(), rt::Tasks::new(rt::Shutdown::new()));
        watches.start(&server, &tasks).await;
        assert!(watches.nodes.cache.get().is_none() && watches.pods.cache.get().is_none());
        assert!(script.requests().iter().all(|line| line.starts_with("POST ")));
    }
}
