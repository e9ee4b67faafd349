use std::{
    collections::BTreeMap,
    ops::Bound,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use api_meta::{ListMeta, ObjectKey};
use bytes::Bytes;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::value::RawValue;

mod objects;
mod told;

use objects::Cache;
pub use objects::Index;
use told::Told;

use crate::{
    Client, Error, Resource,
    request::{WatchEvent, escape},
};

/// What to list and watch.
#[derive(Clone, Debug, Default)]
pub struct ListOptions {
    /// Only used by informers; empty means all namespaces.
    pub namespace: String,
    pub label_selector: String,
    pub field_selector: String,
    /// How many objects a page has at most; `None` is all in one.
    pub limit: Option<u64>,
    /// What the page before came with; empty for the first.
    pub continue_token: String,
    /// Empty for the newest; `0` for whatever the server has at hand.
    pub resource_version: String,
}

impl ListOptions {
    /// What a label selector chooses, in all namespaces.
    pub fn labels(selector: &str) -> Self {
        Self { label_selector: selector.to_owned(), ..Self::default() }
    }

    /// What a field selector chooses, in all namespaces.
    pub fn fields(selector: &str) -> Self {
        Self { field_selector: selector.to_owned(), ..Self::default() }
    }

    pub(crate) fn query(&self, more: &[(&str, &str)]) -> String {
        let limit = self.limit.map(|l| l.to_string()).unwrap_or_default();
        let own = [
            ("labelSelector", self.label_selector.as_str()),
            ("fieldSelector", &self.field_selector),
            ("limit", &limit),
            ("continue", &self.continue_token),
            ("resourceVersion", &self.resource_version),
        ];
        let mut query = String::new();
        for (name, value) in own.iter().chain(more).filter(|(_, value)| !value.is_empty()) {
            query.push(if query.is_empty() { '?' } else { '&' });
            query.push_str(name);
            query.push('=');
            query.push_str(&escape(value));
        }
        query
    }
}

/// One change of an informer's cache.
pub struct Change<'a, P> {
    /// `namespace/name`, or `name` for what has no namespace.
    pub key: &'a str,
    pub old: Option<&'a Arc<P>>,
    pub new: Option<&'a Arc<P>>,
}

impl<P> Clone for Change<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P> Copy for Change<'_, P> {}

/// The part of every object that the informer itself reads.
#[derive(Deserialize)]
pub struct Keyed {
    metadata: ObjectKey,
}

/// A cache of one resource, kept by list and watch, holding the projection `P` of each object.
///
/// Handlers are called in the order of the changes, after the cache has them, from the informer's own task: they must
/// not block, and usually add a key to a [`crate::WorkQueue`]. One that panics is told of that object again later.
pub struct Informer<P> {
    cache: Cache<P>,
    told: Arc<Told<P>>,
    synced: rt::Level<bool>,
}

impl<P> Clone for Informer<P> {
    fn clone(&self) -> Self {
        Self { cache: self.cache.clone(), told: self.told.clone(), synced: self.synced.clone() }
    }
}

impl<P: DeserializeOwned + Send + Sync + 'static> Informer<P> {
    /// Begins to list and watch until shutdown. `on_change` is told of every object, the first list's included.
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
        let told = Arc::new(Told::new(name.clone()));
        told.add(Box::new(on_change));
        let run = Arc::new(Run {
            client: client.clone(),
            resource,
            options,
            cache: cache.clone(),
            synced: synced.clone(),
            unready: Mutex::new(Some(tasks.unready(&name))),
            told: told.clone(),
        });
        tasks.keep(&name, move || run.clone().forever());
        Self { cache, told, synced }
    }

    /// Calls one more handler for every object there is and for every change from now on. A change at the same moment
    /// may be told twice.
    pub fn on(&self, handler: impl Fn(Change<'_, P>) + Send + Sync + 'static) {
        let handler = self.told.add(Box::new(handler));
        for key in self.keys() {
            if let Some(object) = self.get(&key) {
                handler.tell(Change { key: &key, old: None, new: Some(&object) }, &self.told);
            }
        }
    }

    /// An object by `namespace/name`, or by its name alone where the resource has no namespaces.
    pub fn get(&self, key: &str) -> Option<Arc<P>> {
        self.cache.get(key)
    }

    /// The objects by what `values` says of each, which must always say the same of the same object. Whoever asks for an
    /// index of the same name shares it, also with other functions.
    pub fn index(&self, name: &'static str, values: fn(&P) -> Vec<String>) -> Index<P> {
        self.cache.index(name, values)
    }

    /// All objects: for those that need each of them, and not for looking for some.
    pub fn list(&self) -> Vec<Arc<P>> {
        self.cache.read().all().values().cloned().collect()
    }

    /// The objects of one namespace.
    pub fn in_namespace(&self, namespace: &str) -> Vec<Arc<P>> {
        let objects = self.cache.read();
        let (start, end) = (format!("{namespace}/"), format!("{namespace}0"));
        let range = (Bound::Included(start.as_str()), Bound::Excluded(end.as_str()));
        objects.all().range::<str, _>(range).map(|(_, object)| object.clone()).collect()
    }

    /// The keys of all objects, in their order.
    pub fn keys(&self) -> Vec<String> {
        self.cache.read().all().keys().map(|key| key.to_string()).collect()
    }

    /// How many objects the cache holds.
    pub fn len(&self) -> usize {
        self.cache.read().all().len()
    }

    /// Whether the cache holds nothing, be it that nothing has come yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the first list is in the cache.
    pub fn is_synced(&self) -> bool {
        self.synced.get()
    }

    /// Returns when the first list is in the cache.
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
    /// Until the first list is in the cache.
    unready: Mutex<Option<rt::Unready>>,
    told: Arc<Told<P>>,
}

impl<P: DeserializeOwned + Send + Sync + 'static> Run<P> {
    async fn forever(self: Arc<Self>) {
        tokio::select! {
            biased;
            () = self.follow() => {}
            () = self.told.again(&self.cache) => {}
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
            tracing::warn!(resource = %self.resource.plural, %error, "listing again");
            tokio::time::sleep(backoff.next(rt::random())).await;
        }
    }

    /// Brings the cache to one consistent list and returns its resource version.
    async fn list(&self) -> Result<String, Error> {
        #[derive(Deserialize)]
        struct Items {
            metadata: ListMeta,
            items: Option<Vec<Box<RawValue>>>,
        }
        let path = format!(
            "{}{}",
            self.resource.collection(&self.options.namespace),
            self.options.query(&[])
        );
        let bytes = self.client.call(http::Method::GET, &path, "", Bytes::new()).await?;
        let decode = |source| Error::Decode { path: path.clone(), source };
        let list: Items = serde_json::from_slice(&bytes).map_err(decode)?;
        let mut fresh = BTreeMap::new();
        for item in list.items.unwrap_or_default() {
            let keyed: Keyed = serde_json::from_str(item.get()).map_err(decode)?;
            let key = keyed.metadata.key();
            if let Some(object) = self.decode(&key, item.get().as_bytes()) {
                fresh.insert(key, object);
            }
        }
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
        drop(self.unready.lock().unwrap_or_else(PoisonError::into_inner).take());
        Ok(list.metadata.resource_version)
    }

    /// Watches from `version` on, again and again, until that is no longer possible.
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
                    tracing::debug!(resource = %self.resource.plural, %error, "watching again");
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
                    // The connection broke: the resource version still stands.
                    Err(Error::Transport { .. }) => break,
                    Err(error) => return error,
                }
            }
            // A server that ends watches at once must not be asked in a tight loop.
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
                let keyed: Keyed = serde_json::from_slice(bytes).map_err(decode)?;
                return Ok(keyed.metadata.resource_version);
            }
        };
        let keyed: Keyed = serde_json::from_slice(bytes).map_err(decode)?;
        let key = keyed.metadata.key();
        let object = if deleted { None } else { self.decode(&key, bytes) };
        if deleted || object.is_some() {
            self.change(&key, object);
        }
        Ok(keyed.metadata.resource_version)
    }

    /// The projection of an object. One that cannot be read must not keep all others from being seen: it stays as it
    /// was last understood, or unseen if it never was.
    fn decode(&self, key: &str, bytes: &[u8]) -> Option<Arc<P>> {
        let name = format_args!("{} {key}", self.resource.plural);
        match rt::catch_sync("informer", name, || serde_json::from_slice(bytes)) {
            Ok(Ok(object)) => return Some(Arc::new(object)),
            Err(rt::Panicked { .. }) => {}
            Ok(Err(error)) => {
                tracing::warn!(
                    resource = %self.resource.plural,
                    object = key,
                    %error,
                    "an object cannot be read and is left as it was last seen"
                );
            }
        }
        self.cache.get(key)
    }

    fn change(&self, key: &str, new: Option<Arc<P>>) {
        let old = self.cache.write().set(key, new.clone());
        self.told.tell(Change { key, old: old.as_ref(), new: new.as_ref() });
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

    /// A list and a watch of which some objects are not what the projection expects.
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
    struct Sized {
        size: u32,
    }

    #[tokio::test]
    async fn an_object_that_cannot_be_read_keeps_no_other_from_being_seen() {
        let client = Client::new(Arc::new(Api), "test");
        let tasks = rt::Tasks::new(rt::Shutdown::new());
        let (sender, mut keys) = tokio::sync::mpsc::channel(8);
        let seen: Informer<Sized> = Informer::start(
            &client,
            Resource::CONFIG_MAPS,
            ListOptions::default(),
            &tasks,
            move |change| drop(sender.try_send(change.key.to_owned())),
        );
        while keys.recv().await.unwrap() != "late" {}
        assert_eq!(seen.keys(), ["good", "late"]);
        assert_eq!(seen.get("good").unwrap().size, 1, "it is as it was last understood");
        tasks.drain(Duration::from_secs(1)).await;
    }

    /// A projection whose code panics on an object.
    struct Panicking;

    impl<'de> Deserialize<'de> for Panicking {
        fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            let object = serde_json::Value::deserialize(deserializer)?;
            assert_ne!(object["size"], "large", "hostile");
            Ok(Self)
        }
    }

    #[tokio::test]
    async fn an_object_whose_projection_panics_keeps_no_other_from_being_seen() {
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
