//! Feeds the caches from the stores: one watch of each store, in revision order for all of its resources.

use std::{collections::BTreeMap, ops::Bound, sync::Arc, time::Duration};

use api_meta::GroupResource;
use parking_lot::RwLock;
use serde_json::Value;
use store::{Change, KeyRange, Revision, Store, WatchMessage};
use tokio::sync::{mpsc, oneshot};

use super::{
    cache::Cache,
    event::{Event, EventKind},
    feed::{Command, Feed},
    kinds::{Kinds, Resource},
};
use crate::{
    registry::{Definition, storage_form},
    storage::{StoreOverride, Stores},
};

const ROOT: &str = "/registry/";

/// The range of the watch: all objects and the key of compaction. The latter is included because reads wait for its
/// revisions, and not every etcd reports the progress of a watch of the objects alone.
fn watched() -> KeyRange {
    KeyRange { start: ROOT.to_owned(), end: format!("{}\0", store::COMPACTION_KEY) }
}

/// The interval of new attempts to decrypt objects.
const UNREADABLE: Duration = Duration::from_secs(2);

impl Definition {
    /// Returns `true` if objects of the kind decide about the authorization or admission of requests.
    fn affects_access(&self) -> bool {
        match &*self.group {
            "" => matches!(&*self.plural, "namespaces" | "limitranges" | "resourcequotas"),
            group => matches!(group, "rbac.authorization.k8s.io" | "admissionregistration.k8s.io"),
        }
    }
}

/// Reloads kinds with objects whose decryption failed, once it succeeds: the key may have been added, or the KMS plugin
/// may have recovered.
pub(crate) async fn retry_unreadable(cache: Arc<WatchCache>) {
    loop {
        tokio::time::sleep(UNREADABLE).await;
        let kinds = cache.kinds();
        for resource in kinds.all.iter() {
            let key = resource.cache.as_ref().and_then(|cache| cache.unreadable());
            let Some(key) = key else { continue };
            let Ok((Some(kv), _)) = resource.feed.store.get(&key).await else { continue };
            if store::why_unreadable(&kv.value).is_none() {
                cache.add(resource.definition.clone()).await;
            }
        }
    }
}

/// A callback for every change, in order, in the task that applies changes. It must not block.
pub(crate) type Observer = Box<dyn Fn(&ObservedChange<'_>) + Send + Sync>;

/// A change as observers see it. They share one parse of the object.
pub(crate) struct ObservedChange<'a> {
    pub(crate) definition: &'a Definition,
    pub(crate) event: &'a Event,
    /// The projection of the new object; `None` for a deletion.
    pub(crate) object: Option<&'a Value>,
}

/// The caches of all resources. One watch of each store feeds them.
pub(crate) struct WatchCache {
    /// The stores with the state of their watches, the main one first.
    feeds: Vec<Arc<Feed>>,
    /// The tasks that outlive the request that spawned them.
    pub(crate) tasks: rt::Tasks,
    kinds: RwLock<Arc<Kinds>>,
}

/// The error of loading the caches.
#[derive(Debug, thiserror::Error)]
pub enum WatchCacheError {
    #[error("loading objects from the store: {0}")]
    Store(#[from] store::Error),
}

impl WatchCache {
    /// Loads all caches and starts to follow the stores.
    pub(crate) async fn start(
        stores: impl Into<Stores>,
        mut definitions: Vec<Arc<Definition>>,
        observers: Vec<Observer>,
        tasks: &rt::Tasks,
    ) -> Result<Arc<Self>, WatchCacheError> {
        let Stores { main, overrides } = stores.into();
        let (feed, inbox) = new_feed(main, None);
        let (mut feeds, mut loads) = (vec![feed], Vec::new());
        for StoreOverride { resources, store } in overrides {
            let is_own = |d: &mut Arc<Definition>| resources.contains(&d.group_resource());
            let own = definitions.extract_if(.., is_own).collect();
            let names: Vec<_> = resources.iter().map(GroupResource::to_string).collect();
            let (feed, inbox) = new_feed(store, Some(names.join(", ")));
            feeds.push(feed);
            loads.push((inbox, own));
        }
        loads.insert(0, (inbox, definitions));
        let cache = Arc::new(Self { feeds, tasks: tasks.clone(), kinds: RwLock::default() });
        let observers: Arc<[Observer]> = observers.into();
        let mut followers = Vec::new();
        for (feed, (inbox, definitions)) in cache.feeds.iter().zip(loads) {
            let (shared, feed, observers) = (cache.clone(), feed.clone(), observers.clone());
            let mut follower = Follower { shared, feed, caches: BTreeMap::new(), observers, inbox };
            follower.load(definitions).await?;
            followers.push(follower);
        }
        for follower in followers {
            let (shutdown, ended) = (tasks.shutdown().clone(), cache.clone());
            // If a cache or an observer missed a change because of a panic, requests would be authorized by outdated
            // state. The process is restarted instead.
            tasks.essential("watch cache", async move {
                shutdown.unless_stopping(follower.follow()).await;
                // A connection with an open watch would last until the shutdown's grace period is over.
                ended.end_watches();
            });
        }
        Ok(cache)
    }

    /// Returns all stores, the main one first.
    pub(crate) fn feeds(&self) -> &[Arc<Feed>] {
        &self.feeds
    }

    /// Returns the store of all resources that have none of their own, of custom kinds and of keys that are not
    /// objects.
    pub(crate) fn main(&self) -> &Arc<Feed> {
        &self.feeds[0]
    }

    /// Returns the store of a resource.
    fn feed(&self, resource: &GroupResource) -> Arc<Feed> {
        let kinds = self.kinds();
        let found = kinds.get(&resource.group, &resource.resource);
        found.map_or_else(|| self.main().clone(), |resource| resource.feed.clone())
    }

    /// Ends every watch of every kind.
    fn end_watches(&self) {
        for resource in self.kinds().all.iter() {
            if let Some(cache) = &resource.cache {
                cache.end_watches();
            }
        }
    }

    pub(crate) fn kinds(&self) -> Arc<Kinds> {
        self.kinds.read().clone()
    }

    fn change_kinds(&self, change: impl FnOnce(&mut Kinds)) {
        let mut kinds = self.kinds.write();
        change(Arc::make_mut(&mut kinds));
    }

    /// Waits until the caches of these resources contain everything that was committed before the call.
    pub(crate) async fn consistent(&self, resources: &[GroupResource]) -> Result<(), store::Error> {
        if let [only] = &*self.feeds {
            return only.consistent().await.map(drop);
        }
        let mut waited: Vec<Arc<Feed>> = Vec::new();
        for feed in resources.iter().map(|resource| self.feed(resource)) {
            if !waited.iter().any(|known| Arc::ptr_eq(known, &feed)) {
                feed.consistent().await?;
                waited.push(feed);
            }
        }
        Ok(())
    }

    /// Like [`Self::consistent`], for the resources of a store and those of the main one, which decide about requests
    /// for all resources.
    pub(crate) async fn consistent_with(&self, feed: &Arc<Feed>) -> Result<(), store::Error> {
        feed.consistent().await?;
        if !Arc::ptr_eq(feed, self.main()) {
            self.main().consistent().await?;
        }
        Ok(())
    }

    /// Waits until the caches contain all acknowledged writes of this server. The caches of a store of single resources
    /// that is down stay as they are.
    pub(crate) async fn wait_for_own_writes(&self) -> Result<(), store::Error> {
        for feed in self.feeds.iter().skip(1).filter(|feed| feed.is_following()) {
            if let Err(error) = feed.wait_for_own_writes().await {
                tracing::warn!(%error, "the watch cache is behind a store of single resources");
            }
        }
        self.main().wait_for_own_writes().await
    }

    /// Serves a custom kind, or loads the objects of a built-in kind again. Returns after its cache is loaded.
    pub(crate) async fn add(&self, definition: Arc<Definition>) {
        let (done, loaded) = oneshot::channel();
        let feed = self.feed(&definition.group_resource());
        if feed.commands.send(Command::Add(definition, done)).await.is_ok() {
            let _ = loaded.await;
        }
    }

    /// Stops serving a custom kind.
    pub(crate) async fn remove(&self, group: &str, plural: &str) {
        let (done, removed) = oneshot::channel();
        let command = Command::Remove { group: group.into(), plural: plural.into(), done };
        if self.main().commands.send(command).await.is_ok() {
            let _ = removed.await;
        }
    }

    /// Drops the history that a store has compacted.
    pub(crate) fn compacted(&self, feed: &Arc<Feed>, revision: Revision) {
        feed.set_compacted(revision);
        let kinds = self.kinds();
        for resource in kinds.all.iter().filter(|resource| Arc::ptr_eq(&resource.feed, feed)) {
            if let Some(cache) = &resource.cache {
                cache.compact(revision);
            }
        }
    }
}

/// Returns a feed and the inbox of its follower.
fn new_feed(
    store: Arc<dyn Store>,
    resources: Option<String>,
) -> (Arc<Feed>, mpsc::Receiver<Command>) {
    let (commands, inbox) = mpsc::channel(64);
    (Feed::new(store, resources, commands), inbox)
}

/// The task that applies the changes of one store. It is the only writer of the caches of the store's resources. Keys
/// of other resources, which the store may hold from before it was a store of single resources, have no cache here.
struct Follower {
    shared: Arc<WatchCache>,
    feed: Arc<Feed>,
    caches: BTreeMap<Arc<str>, Arc<Cache>>,
    observers: Arc<[Observer]>,
    inbox: mpsc::Receiver<Command>,
}

impl Follower {
    async fn load(&mut self, definitions: Vec<Arc<Definition>>) -> Result<(), WatchCacheError> {
        let revision = self.feed.store.revision().await?;
        for definition in definitions {
            self.add(definition.clone(), revision).await?;
            // Without the objects that decide about authorization and admission no request may be answered, so wait: a
            // KMS plugin may still become available.
            while definition.affects_access() && self.is_unreadable(&definition) {
                tracing::error!(
                    plural = %definition.plural,
                    "failed to decrypt objects that decide about requests; waiting"
                );
                tokio::time::sleep(UNREADABLE).await;
                self.add(definition.clone(), revision).await?;
            }
        }
        self.feed.advance(revision);
        Ok(())
    }

    async fn add(
        &mut self,
        definition: Arc<Definition>,
        revision: Revision,
    ) -> Result<(), store::Error> {
        if !definition.is_stored() {
            self.insert(definition, None);
            return Ok(());
        }
        let range =
            self.feed.store.range(KeyRange::prefix(&definition.prefix), 0, revision).await?;
        let mut objects = Vec::with_capacity(range.items.len());
        // Load in parts, because the projections of all objects together would need several times the memory of the
        // cache.
        for part in range.items.chunks(storage_form::load_batch_size()) {
            for (object, read) in definition.load_all(part) {
                let event = Event { kind: EventKind::Added, object, previous: None };
                self.notify_observers(&definition, &event, Some(&read));
                objects.push(event.object);
            }
        }
        drop(range);
        let cache = Arc::new(Cache::new(definition.clone(), objects, revision));
        if let Some(old) = self.caches.insert(definition.prefix.clone(), cache.clone()) {
            old.end_watches();
        }
        self.insert(definition, Some(cache));
        Ok(())
    }

    fn insert(&self, definition: Arc<Definition>, cache: Option<Arc<Cache>>) {
        let feed = self.feed.clone();
        self.shared.change_kinds(|kinds| kinds.insert(Resource { definition, cache, feed }));
    }

    fn notify_observers(&self, definition: &Definition, event: &Event, object: Option<&Value>) {
        let observed = ObservedChange { definition, event, object };
        self.observers.iter().for_each(|observe| observe(&observed));
    }

    fn is_unreadable(&self, definition: &Definition) -> bool {
        self.caches.get(&definition.prefix).is_some_and(|cache| cache.unreadable().is_some())
    }

    fn remove(&mut self, group: &str, plural: &str) {
        let mut gone = None;
        self.shared.change_kinds(|kinds| gone = kinds.remove(group, plural));
        if let Some(cache) = gone.and_then(|r| r.cache) {
            self.caches.remove(&cache.definition.prefix);
            cache.end_watches();
        }
    }

    /// Follows the store until that becomes impossible. The process must restart then, because watchers must not miss
    /// events.
    async fn follow(mut self) {
        let mut backoff = rt::Backoff::new(Duration::from_millis(50), Duration::from_secs(5));
        loop {
            let after = self.feed.applied();
            let mut stream = match self.feed.store.watch(watched(), after).await {
                Ok(stream) => stream,
                Err(error @ store::Error::Compacted { .. }) => {
                    tracing::error!(%error, "the watch cache fell behind the store's history; restarting");
                    return;
                }
                Err(error @ store::Error::FutureRevision { .. }) => {
                    tracing::error!(%error, "the store was replaced by an older one; restarting");
                    return;
                }
                Err(error) => {
                    tracing::warn!(%error, "failed to watch the store; retrying");
                    self.feed.lost(&error);
                    tokio::time::sleep(backoff.next(0.5)).await;
                    continue;
                }
            };
            self.feed.found();
            loop {
                // Commands are rare, so preferring them delays no changes.
                tokio::select! {
                    biased;
                    Some(command) = self.inbox.recv() => self.command(command).await,
                    message = stream.next() => match message {
                        Some(WatchMessage::Changes(changes)) => {
                            backoff.reset();
                            if !self.apply(&changes) {
                                return;
                            }
                        }
                        Some(WatchMessage::Progress(revision)) => self.feed.advance(revision),
                        None => break,
                    },
                }
            }
            self.feed.ended();
        }
    }

    /// Applies changes. Returns `false` if one of them must not be applied, and the process must restart.
    fn apply(&mut self, changes: &[Change]) -> bool {
        for change in changes {
            let candidate = self
                .caches
                .range::<str, _>((Bound::Unbounded, Bound::Included(&*change.kv.key)))
                .next_back();
            if let Some((_, cache)) =
                candidate.filter(|(prefix, _)| change.kv.key.starts_with(&***prefix))
            {
                let unreadable = store::why_unreadable(&change.kv.value);
                if let Some(why) = unreadable.filter(|_| cache.definition.affects_access()) {
                    tracing::error!(
                        key = %change.kv.key,
                        %why,
                        "failed to decrypt an object that decides about requests; restarting"
                    );
                    return false;
                }
                let (event, read) = cache.apply(change);
                self.notify_observers(&cache.definition, &event, read.as_ref());
            }
        }
        if let Some(last) = changes.last() {
            self.feed.advance(last.kv.mod_revision);
        }
        true
    }

    async fn command(&mut self, command: Command) {
        match command {
            Command::Add(definition, done) => {
                let revision = self.feed.applied();
                if let Err(error) = self.add(definition.clone(), revision).await {
                    tracing::error!(plural = %definition.plural, %error, "failed to load the objects of a custom kind");
                }
                let _ = done.send(());
            }
            Command::Remove { group, plural, done } => {
                self.remove(&group, &plural);
                let _ = done.send(());
            }
        }
    }
}
