//! Informers: caches of one resource that list and watch keep current.

use std::{collections::BTreeMap, ops::Bound, sync::Arc, time::Duration};

use api_meta::{ListMeta, ObjectKey};
use bytes::Bytes;
use parking_lot::Mutex;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::value::RawValue;

mod change;
mod dispatcher;
mod objects;

pub use change::Change;
use dispatcher::Dispatcher;
use objects::Cache;
pub use objects::Index;

use crate::{
    error::Error,
    options::ListOptions,
    request::{Client, WatchEvent},
    resource::Resource,
};

/// The number of objects on a page of a list. Lists of tens of megabytes would cost server and client several times
/// their size in memory.
const PAGE: u64 = 500;

/// The metadata that the informer itself reads from every object.
#[derive(Deserialize)]
pub struct ObjectId {
    metadata: ObjectKey,
}

/// A cache of one resource, kept current by list and watch. It holds the projection `P` of each object.
///
/// The informer's own task calls the handlers after each change of the cache, in the order of the changes. Handlers
/// must not block; they usually add a key to a [`crate::WorkQueue`]. A handler that panics is called again for that
/// object later.
pub struct Informer<P> {
    cache: Cache<P>,
    dispatcher: Arc<Dispatcher<P>>,
    synced: rt::Level<bool>,
}

impl<P> Clone for Informer<P> {
    fn clone(&self) -> Self {
        Self {
            cache: self.cache.clone(),
            dispatcher: self.dispatcher.clone(),
            synced: self.synced.clone(),
        }
    }
}

impl<P: DeserializeOwned + Send + Sync + 'static> Informer<P> {
    /// Starts to list and watch until shutdown. `on_change` is called for every object, including those of the first
    /// list.
    pub fn start(
        client: &Client,
        resource: Resource,
        options: ListOptions,
        tasks: &rt::Tasks,
        on_change: impl Fn(Change<'_, P>) + Send + Sync + 'static,
    ) -> Self {
        let cache = Cache::default();
        let synced = rt::Level::default();
        let name = format!("informer of {}", resource.plural);
        let dispatcher = Arc::new(Dispatcher::new(name.clone()));
        dispatcher.add(Box::new(on_change));
        let run = Arc::new(Run {
            client: client.clone(),
            resource,
            options,
            cache: cache.clone(),
            synced: synced.clone(),
            unready: Mutex::new(Some(tasks.unready(&name))),
            dispatcher: dispatcher.clone(),
        });
        tasks.keep(&name, move || run.clone().forever());
        Self { cache, dispatcher, synced }
    }

    /// Adds a handler and calls it for every object in the cache and for every later change. A concurrent change may be
    /// reported twice.
    pub fn on(&self, handler: impl Fn(Change<'_, P>) + Send + Sync + 'static) {
        let handler = self.dispatcher.add(Box::new(handler));
        for key in self.keys() {
            if let Some(object) = self.get(&key) {
                handler.dispatch(
                    Change { key: &key, old: None, new: Some(&object) },
                    &self.dispatcher,
                );
            }
        }
    }

    /// Returns an object by `namespace/name`, or by `name` if the resource is cluster-scoped.
    pub fn get(&self, key: &str) -> Option<Arc<P>> {
        self.cache.get(key)
    }

    /// Returns an index of the objects by the values that `values` computes. `values` must be deterministic. The first
    /// call with a `name` creates the index; later calls share it and ignore their `values`.
    pub fn index(&self, name: &'static str, values: fn(&P) -> Vec<String>) -> Index<P> {
        self.cache.index(name, values)
    }

    /// Returns all objects. Use an index to look up some of them.
    pub fn list(&self) -> Vec<Arc<P>> {
        self.cache.read().all().values().cloned().collect()
    }

    /// Returns the objects of one namespace.
    pub fn in_namespace(&self, namespace: &str) -> Vec<Arc<P>> {
        let objects = self.cache.read();
        let (start, end) = (format!("{namespace}/"), format!("{namespace}0"));
        let range = (Bound::Included(start.as_str()), Bound::Excluded(end.as_str()));
        objects.all().range::<str, _>(range).map(|(_, object)| object.clone()).collect()
    }

    /// Returns the keys of all objects, sorted.
    pub fn keys(&self) -> Vec<String> {
        self.cache.read().all().keys().map(|key| key.to_string()).collect()
    }

    /// Returns the number of objects in the cache.
    pub fn len(&self) -> usize {
        self.cache.read().all().len()
    }

    /// Returns `true` if the cache is empty, also before the first list.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns `true` once the first list is in the cache.
    pub fn is_synced(&self) -> bool {
        self.synced.get()
    }

    /// Waits until the first list is in the cache.
    pub async fn synced(&self) {
        self.synced.reached(true).await;
    }
}

struct Run<P> {
    client: Client,
    resource: Resource,
    options: ListOptions,
    cache: Cache<P>,
    synced: rt::Level<bool>,
    /// Marks the informer as not ready until the first list is in the cache.
    unready: Mutex<Option<rt::UnreadyGuard>>,
    dispatcher: Arc<Dispatcher<P>>,
}

impl<P: DeserializeOwned + Send + Sync + 'static> Run<P> {
    async fn forever(self: Arc<Self>) {
        tokio::select! {
            biased;
            () = self.follow() => {}
            () = self.dispatcher.retry_missed(&self.cache) => {}
        }
    }

    async fn follow(&self) {
        let mut backoff = rt::Backoff::new(Duration::from_millis(200), Duration::from_secs(30));
        loop {
            let error = match self.list().await {
                Ok(version) => {
                    backoff.reset();
                    self.watch(version).await
                }
                Err(error) => error,
            };
            if error.is_gone() {
                continue;
            }
            tracing::warn!(resource = %self.resource.plural, %error, "the list or watch failed; listing again");
            tokio::time::sleep(backoff.next(rt::random())).await;
        }
    }

    /// Lists the objects, updates the cache and returns the list's resourceVersion.
    async fn list(&self) -> Result<String, Error> {
        let mut fresh = BTreeMap::new();
        // With a selector, the server reads all further objects for each page.
        let options = &self.options;
        let selects = !options.label_selector.is_empty() || !options.field_selector.is_empty();
        let limit = (!selects).then_some(PAGE);
        let version = match self.read_pages(limit, &mut fresh).await {
            // Objects change so fast that the server has dropped the revision of the first page.
            Err(error) if error.is_gone() && !fresh.is_empty() => {
                fresh.clear();
                self.read_pages(None, &mut fresh).await?
            }
            version => version?,
        };
        let gone: Vec<Arc<str>> = {
            let objects = self.cache.read();
            objects.all().keys().filter(|key| !fresh.contains_key(&***key)).cloned().collect()
        };
        for key in gone {
            self.change(&key, None);
        }
        for (key, object) in fresh {
            self.change(&key, Some(object));
        }
        self.synced.raise(true);
        drop(self.unready.lock().take());
        Ok(version)
    }

    /// Reads all pages of the list, with at most `limit` objects each. Returns the list's resourceVersion.
    async fn read_pages(
        &self,
        limit: Option<u64>,
        fresh: &mut BTreeMap<String, Arc<P>>,
    ) -> Result<String, Error> {
        #[derive(Deserialize)]
        struct Page<'a> {
            metadata: ListMeta,
            #[serde(borrow)]
            items: Option<Vec<&'a RawValue>>,
        }
        let mut options = ListOptions { limit, ..self.options.clone() };
        loop {
            let path =
                format!("{}{}", self.resource.collection(&options.namespace), options.query(&[]));
            let bytes = self.client.call(http::Method::GET, &path, "", Bytes::new()).await?;
            let decode = |source| Error::Decode { path: path.clone(), source };
            let page: Page<'_> = serde_json::from_slice(&bytes).map_err(decode)?;
            for item in page.items.unwrap_or_default() {
                let keyed: ObjectId = serde_json::from_str(item.get()).map_err(decode)?;
                let key = keyed.metadata.key();
                if let Some(object) = self.decode(&key, item.get().as_bytes()) {
                    fresh.insert(key, object);
                }
            }
            if page.metadata.r#continue.is_empty() {
                return Ok(page.metadata.resource_version);
            }
            // The token holds the revision of the list.
            options.continue_token = page.metadata.r#continue;
            options.resource_version.clear();
        }
    }

    /// Watches from `version` on, with a new watch after each end, until the server returns an error.
    async fn watch(&self, mut version: String) -> Error {
        let mut backoff = rt::Backoff::new(Duration::from_millis(100), Duration::from_secs(10));
        loop {
            let mut events = match self
                .client
                .watch(&self.resource, &self.options.namespace, &self.options, &version)
                .await
            {
                Ok(events) => events,
                Err(error @ Error::Transport { .. }) => {
                    tracing::debug!(resource = %self.resource.plural, %error, "starting the watch failed; retrying");
                    tokio::time::sleep(backoff.next(rt::random())).await;
                    continue;
                }
                Err(error) if error.is_too_many_requests() => {
                    tokio::time::sleep(backoff.next(rt::random())).await;
                    continue;
                }
                Err(error) => return error,
            };
            while let Some(event) = events.next().await {
                match event.and_then(|event| self.event(event)) {
                    Ok(seen) => {
                        version = seen;
                        backoff.reset();
                    }
                    // The connection broke; the resourceVersion is still valid.
                    Err(Error::Transport { .. }) => break,
                    Err(error) => return error,
                }
            }
            // Back off, because a server may end every watch at once.
            tokio::time::sleep(backoff.next(rt::random())).await;
        }
    }

    fn event(&self, event: WatchEvent) -> Result<String, Error> {
        let decode = |source| Error::Decode {
            path: self.resource.collection(&self.options.namespace),
            source,
        };
        let (bytes, deleted) = match &event {
            WatchEvent::Added(bytes) | WatchEvent::Modified(bytes) => (bytes, false),
            WatchEvent::Deleted(bytes) => (bytes, true),
            WatchEvent::Bookmark(bytes) => {
                let keyed: ObjectId = serde_json::from_slice(bytes).map_err(decode)?;
                return Ok(keyed.metadata.resource_version);
            }
        };
        let keyed: ObjectId = serde_json::from_slice(bytes).map_err(decode)?;
        let key = keyed.metadata.key();
        let object = if deleted { None } else { self.decode(&key, bytes) };
        if deleted || object.is_some() {
            self.change(&key, object);
        }
        Ok(keyed.metadata.resource_version)
    }

    /// Decodes the projection of an object. An object that cannot be decoded must not block the others: its last
    /// projection stays in the cache, if there is one.
    fn decode(&self, key: &str, bytes: &[u8]) -> Option<Arc<P>> {
        let name = format_args!("{} {key}", self.resource.plural);
        match rt::catch_sync("informer", name, || serde_json::from_slice(bytes)) {
            Ok(Ok(object)) => return Some(Arc::new(object)),
            Err(rt::CaughtPanic { .. }) => {}
            Ok(Err(error)) => {
                tracing::warn!(
                    resource = %self.resource.plural,
                    object = key,
                    %error,
                    "failed to decode an object; keeping its last known state"
                );
            }
        }
        self.cache.get(key)
    }

    fn change(&self, key: &str, new: Option<Arc<P>>) {
        let old = self.cache.write().set(key, new.clone());
        self.dispatcher.dispatch(Change { key, old: old.as_ref(), new: new.as_ref() });
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream};
    use http_body_util::{BodyExt, StreamBody};

    use super::*;
    use crate::{Transport, request::Body};

    const LIST: &str = r#"{"metadata":{"resourceVersion":"5"},"items":[
        {"metadata":{"name":"good"},"size":1},{"metadata":{"name":"bad"},"size":"large"}]}"#;
    const WATCH: &str = r#"{"type":"MODIFIED","object":{"metadata":{"name":"good","resourceVersion":"6"},"size":[]}}
{"type":"ADDED","object":{"metadata":{"name":"late","resourceVersion":"7"},"size":2}}
"#;

    /// An API server whose list and watch contain objects that the projection cannot decode.
    struct Api;

    impl Transport for Api {
        fn send(
            &self,
            request: http::Request<Body>,
        ) -> BoxFuture<'_, Result<http::Response<Body>, Error>> {
            let watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
            let body = if watch {
                let frame = Ok(http_body::Frame::data(Bytes::from_static(WATCH.as_bytes())));
                StreamBody::new(stream::iter([frame]).chain(stream::pending())).boxed_unsync()
            } else {
                crate::full(LIST)
            };
            std::future::ready(Ok(http::Response::new(body))).boxed()
        }
    }

    #[derive(Deserialize)]
    struct SizeProjection {
        size: u32,
    }

    #[tokio::test]
    async fn keeps_other_objects_when_one_cannot_be_decoded() {
        let client = Client::new(Arc::new(Api), "test");
        let tasks = rt::Tasks::new(rt::Shutdown::new());
        let (sender, mut keys) = tokio::sync::mpsc::channel(8);
        let seen: Informer<SizeProjection> = Informer::start(
            &client,
            Resource::CONFIG_MAPS,
            ListOptions::default(),
            &tasks,
            move |change| drop(sender.try_send(change.key.to_owned())),
        );
        while keys.recv().await.unwrap() != "late" {}
        assert_eq!(seen.keys(), ["good", "late"]);
        assert_eq!(seen.get("good").unwrap().size, 1, "the last decoded state stays");
        tasks.drain(Duration::from_secs(1)).await;
    }

    /// An API server whose list has pages of one object. It has dropped the revision of the first page if `is_gone`.
    struct PagedApi {
        is_gone: bool,
    }

    impl Transport for PagedApi {
        fn send(
            &self,
            request: http::Request<Body>,
        ) -> BoxFuture<'_, Result<http::Response<Body>, Error>> {
            let query = request.uri().query().unwrap_or_default();
            let (limited, later) = (query.contains("limit=500"), query.contains("continue=more"));
            let first = r#"{"metadata":{"name":"a"},"size":1}"#;
            let second = r#"{"metadata":{"name":"b"},"size":2}"#;
            let list = |meta: &str, items: &str| {
                format!(r#"{{"metadata":{{"resourceVersion":"5"{meta}}},"items":[{items}]}}"#)
            };
            let (code, body) = match () {
                () if query.contains("watch=true") => return Api.send(request),
                () if later && query.contains("resourceVersion") => (400, "{}".to_owned()),
                () if later && self.is_gone => (410, "{}".to_owned()),
                () if later => (200, list("", second)),
                () if limited => (200, list(r#","continue":"more""#, first)),
                () => (200, list("", &format!("{first},{second}"))),
            };
            let response = http::Response::builder().status(code).body(crate::full(body)).unwrap();
            std::future::ready(Ok(response)).boxed()
        }
    }

    #[tokio::test]
    async fn reads_pages_and_whole_list_if_history_is_gone() {
        for (is_gone, resource_version) in [(false, ""), (false, "0"), (true, "")] {
            let client = Client::new(Arc::new(PagedApi { is_gone }), "test");
            let tasks = rt::Tasks::new(rt::Shutdown::new());
            let options = ListOptions {
                resource_version: resource_version.to_owned(),
                ..ListOptions::default()
            };
            let seen: Informer<SizeProjection> =
                Informer::start(&client, Resource::CONFIG_MAPS, options, &tasks, |_| {});
            seen.synced().await;
            let sizes = ["a", "b"].map(|key| seen.get(key).map(|object| object.size));
            assert_eq!(sizes, [Some(1), Some(2)], "{is_gone} {resource_version}");
            tasks.drain(Duration::from_secs(1)).await;
        }
    }

    /// A projection that panics on an object.
    struct Panicking;

    impl<'de> Deserialize<'de> for Panicking {
        fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            let object = serde_json::Value::deserialize(deserializer)?;
            assert_ne!(object["size"], "large", "hostile");
            Ok(Self)
        }
    }

    #[tokio::test]
    async fn keeps_other_objects_when_one_projection_panics() {
        let client = Client::new(Arc::new(Api), "test");
        let tasks = rt::Tasks::new(rt::Shutdown::new());
        let (sender, mut keys) = tokio::sync::mpsc::channel(8);
        let options = ListOptions::default();
        let seen: Informer<Panicking> =
            Informer::start(&client, Resource::CONFIG_MAPS, options, &tasks, move |change| {
                drop(sender.try_send(change.key.to_owned()));
            });
        assert_eq!(tasks.not_ready(), ["informer of configmaps".into()]);
        while keys.recv().await.unwrap() != "late" {}
        assert_eq!(seen.keys(), ["good", "late"]);
        assert_eq!((tasks.not_ready(), tasks.missing()), (vec![], vec![]));
        tasks.drain(Duration::from_secs(1)).await;
    }
}
