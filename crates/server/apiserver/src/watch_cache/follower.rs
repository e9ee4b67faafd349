//! Feeds the caches from the store: one watch in revision order for all resources.

use std::{
    collections::BTreeMap,
    ops::Bound,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::RwLock;
use serde_json::Value;
use store::{Change, KeyRange, Outcome, Revision, Store, WatchMessage, Write};
use tokio::sync::{mpsc, oneshot};

use super::{
    cache::Cache,
    event::{Event, EventKind},
    kinds::{Kinds, Resource},
};
use crate::registry::{Definition, storage_form};

const ROOT: &str = "/registry/";

/// The range of the watch: all objects and the key of compaction. The latter is included because reads wait for its
/// revisions, and not every etcd reports the progress of a watch of the objects alone.
fn watched() -> KeyRange {
    KeyRange { start: ROOT.to_owned(), end: format!("{}\0", store::COMPACTION_KEY) }
}

/// The time that a read waits for the caches to reach the store's revision.
const CATCH_UP: Duration = Duration::from_secs(3);

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
        for resource in kinds.all.values() {
            let key = resource.cache.as_ref().and_then(|cache| cache.unreadable());
            let Some(key) = key else { continue };
            let Ok((Some(kv), _)) = cache.store.get(&key).await else { continue };
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

/// The caches of all resources. One watch of the store feeds them.
pub(crate) struct WatchCache {
    pub(crate) store: Arc<dyn Store>,
    /// The tasks that outlive the request that spawned them.
    pub(crate) tasks: rt::Tasks,
    kinds: RwLock<Arc<Kinds>>,
    applied: rt::Level<Revision>,
    commands: mpsc::Sender<Command>,
    /// The size of the store in bytes, as of the last query.
    pub(crate) size: AtomicU64,
    following: AtomicBool,
    /// The newest revision that this server has written.
    written: AtomicU64,
}

enum Command {
    Add(Arc<Definition>, oneshot::Sender<()>),
    Remove { group: Arc<str>, plural: Arc<str>, done: oneshot::Sender<()> },
}

/// The error of loading the caches.
#[derive(Debug, thiserror::Error)]
pub enum WatchCacheError {
    #[error("loading objects from the store: {0}")]
    Store(#[from] store::Error),
}

impl WatchCache {
    /// Loads all caches and starts to follow the store.
    pub(crate) async fn start(
        store: Arc<dyn Store>,
        definitions: Vec<Arc<Definition>>,
        observers: Vec<Observer>,
        tasks: &rt::Tasks,
    ) -> Result<Arc<Self>, WatchCacheError> {
        let (commands, inbox) = mpsc::channel(64);
        let cache = Arc::new(Self {
            store,
            tasks: tasks.clone(),
            kinds: RwLock::default(),
            applied: rt::Level::default(),
            commands,
            size: AtomicU64::new(0),
            following: AtomicBool::new(false),
            written: AtomicU64::new(0),
        });
        let mut follower =
            Follower { shared: cache.clone(), caches: BTreeMap::new(), observers, inbox };
        follower.load(definitions).await?;
        let (shutdown, ended) = (tasks.shutdown().clone(), cache.clone());
        // If a cache or an observer missed a change because of a panic, requests would be authorized by outdated state.
        // The process is restarted instead.
        tasks.essential("watch cache", async move {
            shutdown.unless_stopping(follower.follow()).await;
            // A connection with an open watch would last until the shutdown's grace period is over.
            ended.end_watches();
        });
        Ok(cache)
    }

    /// Ends every watch of every kind.
    fn end_watches(&self) {
        for resource in self.kinds().all.values() {
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

    /// Returns `true` while the caches follow the store.
    pub(crate) fn is_following(&self) -> bool {
        self.following.load(Ordering::Relaxed)
    }

    /// Returns the revision up to which the caches are complete.
    pub(crate) fn applied(&self) -> Revision {
        self.applied.get()
    }

    /// Waits until the caches contain everything that was committed before the call.
    pub(crate) async fn consistent(&self) -> Result<Revision, store::Error> {
        let revision = self.store.revision().await?;
        self.wait_for_revision(revision).await?;
        Ok(revision)
    }

    /// Writes to the store, and records the revision for [`Self::wait_for_own_writes`].
    pub(crate) async fn write(&self, write: Write) -> Result<Outcome, store::Error> {
        let outcome = self.store.write(write).await?;
        if let Outcome::Done { revision, .. } = &outcome {
            self.written.fetch_max(*revision, Ordering::Relaxed);
        }
        Ok(outcome)
    }

    /// Waits until the caches contain all acknowledged writes of this server.
    pub(crate) async fn wait_for_own_writes(&self) -> Result<(), store::Error> {
        self.wait_for_revision(self.written.load(Ordering::Relaxed)).await
    }

    /// Waits until the caches have reached a revision.
    pub(crate) async fn wait_for_revision(&self, revision: Revision) -> Result<(), store::Error> {
        if self.applied() >= revision {
            return Ok(());
        }
        // Revisions of keys without a cache only arrive as progress notifications.
        self.store.request_progress().await?;
        match tokio::time::timeout(CATCH_UP, self.applied.reached(revision)).await {
            Ok(()) => Ok(()),
            Err(_) => {
                Err(store::Error::FutureRevision { requested: revision, current: self.applied() })
            }
        }
    }

    /// Serves a custom kind. Returns after its cache is loaded.
    pub(crate) async fn add(&self, definition: Arc<Definition>) {
        let (done, loaded) = oneshot::channel();
        if self.commands.send(Command::Add(definition, done)).await.is_ok() {
            let _ = loaded.await;
        }
    }

    /// Stops serving a custom kind.
    pub(crate) async fn remove(&self, group: &str, plural: &str) {
        let (done, removed) = oneshot::channel();
        let command = Command::Remove { group: group.into(), plural: plural.into(), done };
        if self.commands.send(command).await.is_ok() {
            let _ = removed.await;
        }
    }

    /// Drops the history that the store has compacted.
    pub(crate) fn compacted(&self, revision: Revision) {
        for resource in self.kinds().all.values() {
            if let Some(cache) = &resource.cache {
                cache.compact(revision);
            }
        }
    }
}

/// The task that applies changes. It is the only writer of the caches.
struct Follower {
    shared: Arc<WatchCache>,
    caches: BTreeMap<Arc<str>, Arc<Cache>>,
    observers: Vec<Observer>,
    inbox: mpsc::Receiver<Command>,
}

impl Follower {
    async fn load(&mut self, definitions: Vec<Arc<Definition>>) -> Result<(), WatchCacheError> {
        let revision = self.shared.store.revision().await?;
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
        self.shared.applied.raise(revision);
        Ok(())
    }

    async fn add(
        &mut self,
        definition: Arc<Definition>,
        revision: Revision,
    ) -> Result<(), store::Error> {
        if !definition.is_stored() {
            self.shared.change_kinds(|kinds| kinds.insert(Resource { definition, cache: None }));
            return Ok(());
        }
        let range =
            self.shared.store.range(KeyRange::prefix(&definition.prefix), 0, revision).await?;
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
        self.shared.change_kinds(|kinds| kinds.insert(Resource { definition, cache: Some(cache) }));
        Ok(())
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
            let after = self.shared.applied();
            let mut stream = match self.shared.store.watch(watched(), after).await {
                Ok(stream) => stream,
                Err(error @ store::Error::Compacted { .. }) => {
                    tracing::error!(%error, "the watch cache fell behind the store's history; restarting");
                    return;
                }
                Err(error) => {
                    tracing::warn!(%error, "failed to watch the store; retrying");
                    tokio::time::sleep(backoff.next(0.5)).await;
                    continue;
                }
            };
            self.shared.following.store(true, Ordering::Relaxed);
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
                        Some(WatchMessage::Progress(revision)) => self.advance(revision),
                        None => break,
                    },
                }
            }
            self.shared.following.store(false, Ordering::Relaxed);
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
            self.advance(last.kv.mod_revision);
        }
        true
    }

    fn advance(&self, revision: Revision) {
        self.shared.applied.raise(revision);
    }

    async fn command(&mut self, command: Command) {
        match command {
            Command::Add(definition, done) => {
                let revision = self.shared.applied();
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
