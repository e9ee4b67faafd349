//! The environment of a controller, and the writes that controllers share.

use std::{future::Future, sync::Arc};

use api_meta::{ObjectMeta, Timestamp, Tree as _};
use client::{Client, Error, PatchKind, PatchTarget, Resource, WorkQueue};
use events::EventRecorder;
use futures_util::future::BoxFuture;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::{
    api_error::namespace_is_terminating,
    config::Config,
    metrics::{ControllerMetrics, queue_name},
    shared::{Shared, Watched},
};

/// The environment of a controller: its clients, configuration and informers.
#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) name: &'static str,
    /// A client that writes under the controller's own identity.
    pub(crate) client: Client,
    pub(crate) events: EventRecorder,
    pub(crate) config: Arc<Config>,
    pub(crate) tasks: rt::Tasks,
    pub(crate) metrics: Arc<ControllerMetrics>,
    shared: Arc<Shared>,
}

impl Context {
    /// Creates the environment of the controller `name`, whose client writes as the service account `account`.
    pub(crate) fn new(
        name: &'static str,
        account: &'static str,
        client: Client,
        shared: &Arc<Shared>,
        config: &Arc<Config>,
        tasks: &rt::Tasks,
    ) -> Self {
        // Events name the controller by its service account, as upstream's do.
        let events = EventRecorder::start(client.clone(), account, "", tasks);
        Self {
            name,
            client,
            events,
            config: config.clone(),
            tasks: tasks.clone(),
            metrics: shared.metrics.clone(),
            shared: shared.clone(),
        }
    }

    pub(crate) fn watch<P: DeserializeOwned + Send + Sync + 'static>(
        &self,
        resource: Resource,
    ) -> Watched<P> {
        self.shared.watch(resource)
    }

    pub(crate) fn now(&self) -> Timestamp {
        rt::now().into()
    }

    /// Reconciles the keys of the queue after the informers have synced. Each call gets a clone of `state`. A key whose
    /// reconcile fails is retried later. Namespaces take turns, so that a tenant's many objects do not delay others.
    pub(crate) fn run<S, F, Fut>(
        &self,
        queue: &WorkQueue<String>,
        workers: usize,
        synced: Vec<BoxFuture<'static, ()>>,
        state: S,
        reconcile: F,
    ) where
        S: Clone + Send + Sync + 'static,
        F: Fn(S, String) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), Error>> + Send + 'static,
    {
        let (queue, tasks, name) = (queue.clone(), self.tasks.clone(), self.name);
        queue.measure(&self.metrics.client, queue_name(name));
        queue.take_turns(|key| key.split_once('/').map_or("", |(namespace, _)| namespace));
        let reconcile = Arc::new(reconcile);
        self.tasks.spawn_until_shutdown(name, async move {
            futures_util::future::join_all(synced).await;
            queue.run(&tasks, name, workers, move |key: String| {
                let (reconcile, state) = (reconcile.clone(), state.clone());
                async move { settled(name, &key, reconcile(state, key.clone()).await) }
            });
        });
    }

    /// Merges `status` into the object's status, unless nothing would change.
    pub(crate) async fn merge_status(
        &self,
        resource: &Resource,
        meta: &ObjectMeta,
        current: &Value,
        status: Value,
    ) -> Result<(), Error> {
        if merged(current, &status) == *current {
            return Ok(());
        }
        self.merge_by_update(resource, meta, "status", &json!({"status": status})).await.map(drop)
    }

    pub(crate) async fn merge(
        &self,
        resource: &Resource,
        meta: &ObjectMeta,
        patch: Value,
    ) -> Result<Value, Error> {
        let at = PatchTarget { namespace: &meta.namespace, name: &meta.name, subresource: "" };
        self.client.patch(resource, at, PatchKind::Merge, &patch).await
    }

    /// Applies a merge patch by read, change and update. Upstream's roles allow controllers to update these objects but
    /// not to patch them. Replacing the object in between is a conflict.
    pub(crate) async fn merge_by_update(
        &self,
        resource: &Resource,
        meta: &ObjectMeta,
        subresource: &str,
        change: &Value,
    ) -> Result<Value, Error> {
        let (namespace, name) = (meta.namespace.as_str(), meta.name.as_str());
        let current: Value = self.client.get(resource, namespace, name).await?;
        let mut desired = merged(&current, change);
        desired.put(&["metadata", "uid"], json!(meta.uid));
        self.client.update_subresource(resource, namespace, name, subresource, &desired).await
    }
}

/// Reports whether the key is done and needs no retry.
fn settled(name: &str, key: &str, result: Result<(), Error>) -> bool {
    match result {
        Ok(()) => true,
        // Creating objects in a terminating namespace fails and is not needed.
        Err(error) if namespace_is_terminating(&error) => true,
        // Another client wrote first; the informer will deliver the change, and the key is retried.
        Err(error) if error.is_conflict() || error.is_not_found() => {
            tracing::debug!(controller = name, key, %error, "again");
            false
        }
        Err(error) => {
            tracing::warn!(controller = name, key, %error, "could not reconcile");
            false
        }
    }
}

/// The completion of an informer's first list, as a boxed future.
pub(crate) fn synced<P: DeserializeOwned + Send + Sync + 'static>(
    watched: &Watched<P>,
) -> BoxFuture<'static, ()> {
    let informer = (**watched).clone();
    Box::pin(async move { informer.synced().await })
}

/// Returns `target` with a JSON merge patch applied.
pub(crate) fn merged(target: &Value, patch: &Value) -> Value {
    let Value::Object(patch) = patch else { return patch.clone() };
    let mut out = target.as_object().cloned().unwrap_or_default();
    for (key, value) in patch {
        if value.is_null() {
            out.remove(key);
        } else {
            let old = out.get(key).cloned().unwrap_or(Value::Null);
            out.insert(key.clone(), merged(&old, value));
        }
    }
    Value::Object(out)
}

/// A status count as a merge patch writes it: zero is null, because the API omits it.
pub(crate) fn count(number: i64) -> Value {
    if number == 0 { Value::Null } else { json!(number) }
}
