//! Feeds the caches from the store: one stream of changes, in revision order, for all resources.

use std::{
    collections::BTreeMap,
    ops::Bound,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use serde_json::Value;
use store::{Change, KeyRange, Outcome, Revision, Store, WatchMessage, Write};
use tokio::sync::{mpsc, oneshot};

use super::{
    cache::Cache,
    event::{Event, EventKind},
    kinds::{Kinds, Resource},
};
use crate::registry::{Definition, stored};

const ROOT: &str = "/registry/";

/// Objects and, because its writes count as revisions that reads wait for, the key of compaction. Not every etcd
/// tells of the progress that a watch of the objects alone makes.
fn watched() -> KeyRange {
    KeyRange { start: ROOT.to_owned(), end: format!("{}\0", store::COMPACTION_KEY) }
}

/// How long a read waits for the cache to reach the store's revision before it gives up.
const CATCH_UP: Duration = Duration::from_secs(3);

/// How often what could not be decrypted is tried again.
const UNREADABLE: Duration = Duration::from_secs(2);

impl Definition {
    /// Whether requests are authorised and admitted by what objects of the kind say.
    fn decides(&self) -> bool {
        match &*self.group {
            "" => matches!(&*self.plural, "namespaces" | "limitranges" | "resourcequotas"),
            group => matches!(group, "rbac.authorization.k8s.io" | "admissionregistration.k8s.io"),
        }
    }
}

/// Loads kinds anew of which some objects could not be decrypted: the file may have got its key, or the plugin its health.
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

/// Called with every change, in order, from the task that applies them; it must not block.
pub(crate) type Observer = Box<dyn Fn(&Observed<'_>) + Send + Sync>;

/// A change as all observers see it: they share one parse of the object.
pub(crate) struct Observed<'a> {
    pub(crate) definition: &'a Definition,
    pub(crate) event: &'a Event,
    /// What the definition's projection wants of the object as it is now; `None` once it is gone.
    pub(crate) object: Option<&'a Value>,
}

pub(crate) struct WatchCache {
    pub(crate) store: Arc<dyn Store>,
    /// For what goes on when the request that began it is gone.
    pub(crate) tasks: rt::Tasks,
    kinds: RwLock<Arc<Kinds>>,
    applied: rt::Level<Revision>,
    commands: mpsc::Sender<Command>,
    /// The store's bytes on disk, as last asked.
    pub(crate) size: AtomicU64,
    following: AtomicBool,
    /// The newest revision that this server has written.
    written: AtomicU64,
}

enum Command {
    Add(Arc<Definition>, oneshot::Sender<()>),
    Remove { group: Arc<str>, plural: Arc<str>, done: oneshot::Sender<()> },
}

/// Why the caches cannot be filled.
#[derive(Debug, thiserror::Error)]
pub enum WatchCacheError {
    #[error("loading objects from the store: {0}")]
    Store(#[from] store::Error),
}

impl WatchCache {
    /// Loads every cache and starts to follow the store.
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
        // A cache or an observer that missed a change because it panicked would answer, and authorise, by what is no
        // longer so: then the process starts again.
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
        self.kinds.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn change_kinds(&self, change: impl FnOnce(&mut Kinds)) {
        let mut kinds = self.kinds.write().unwrap_or_else(PoisonError::into_inner);
        change(Arc::make_mut(&mut kinds));
    }

    /// Whether the caches follow the store right now.
    pub(crate) fn is_following(&self) -> bool {
        self.following.load(Ordering::Relaxed)
    }

    /// The revision up to which the caches are complete.
    pub(crate) fn applied(&self) -> Revision {
        self.applied.get()
    }

    /// Returns once the caches have everything that was committed before the call.
    pub(crate) async fn consistent(&self) -> Result<Revision, store::Error> {
        let revision = self.store.revision().await?;
        self.reached(revision).await?;
        Ok(revision)
    }

    /// Writes to the store, and remembers up to where the caches must be for the writer to see it in them.
    pub(crate) async fn write(&self, write: Write) -> Result<Outcome, store::Error> {
        let outcome = self.store.write(write).await?;
        if let Outcome::Done { revision, .. } = &outcome {
            self.written.fetch_max(*revision, Ordering::Relaxed);
        }
        Ok(outcome)
    }

    /// Returns once the caches have everything that this server has acknowledged.
    pub(crate) async fn caught_up(&self) -> Result<(), store::Error> {
        self.reached(self.written.load(Ordering::Relaxed)).await
    }

    /// Waits until the caches have reached a revision.
    pub(crate) async fn reached(&self, revision: Revision) -> Result<(), store::Error> {
        if self.applied() >= revision {
            return Ok(());
        }
        // Revisions of keys that no cache follows come to us only as progress.
        self.store.request_progress().await?;
        match tokio::time::timeout(CATCH_UP, self.applied.reached(revision)).await {
            Ok(()) => Ok(()),
            Err(_) => {
                Err(store::Error::FutureRevision { requested: revision, current: self.applied() })
            }
        }
    }

    /// Serves a custom kind; returns when its cache is loaded.
    pub(crate) async fn add(&self, definition: Arc<Definition>) {
        let (done, loaded) = oneshot::channel();
        if self.commands.send(Command::Add(definition, done)).await.is_ok() {
            let _ = loaded.await;
        }
    }

    /// Serves a custom kind no longer.
    pub(crate) async fn remove(&self, group: &str, plural: &str) {
        let (done, removed) = oneshot::channel();
        let command = Command::Remove { group: group.into(), plural: plural.into(), done };
        if self.commands.send(command).await.is_ok() {
            let _ = removed.await;
        }
    }

    /// Forgets what the store has forgotten.
    pub(crate) fn compacted(&self, revision: Revision) {
        for resource in self.kinds().all.values() {
            if let Some(cache) = &resource.cache {
                cache.compact(revision);
            }
        }
    }
}

/// The task that applies changes. It alone writes to the caches.
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
            // Who cannot be read who may do what, and what is admitted, answers nobody: a plugin may come yet.
            while definition.decides() && self.is_unreadable(&definition) {
                tracing::error!(plural = %definition.plural, "objects that requests are judged by cannot be decrypted; waiting");
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
        // A part at a time: what was read of all would be several times what is kept.
        for part in range.items.chunks(stored::loaded_at_once()) {
            for (object, read) in definition.loaded_all(part) {
                let event = Event { kind: EventKind::Added, object, previous: None };
                self.tell(&definition, &event, Some(&read));
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

    fn tell(&self, definition: &Definition, event: &Event, object: Option<&Value>) {
        let observed = Observed { definition, event, object };
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

    /// Follows the store until it can no longer be followed; the process then has to start again, because
    /// watchers were promised no gap.
    async fn follow(mut self) {
        let mut backoff = rt::Backoff::new(Duration::from_millis(50), Duration::from_secs(5));
        loop {
            let after = self.shared.applied();
            let mut stream = match self.shared.store.watch(watched(), after).await {
                Ok(stream) => stream,
                Err(error @ store::Error::Compacted { .. }) => {
                    tracing::error!(%error, "the watch cache fell behind the store's history; starting again");
                    return;
                }
                Err(error) => {
                    tracing::warn!(%error, "watching the store");
                    tokio::time::sleep(backoff.next(0.5)).await;
                    continue;
                }
            };
            self.shared.following.store(true, Ordering::Relaxed);
            loop {
                // Commands are few: changes do not wait long behind them.
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

    /// Returns whether all of it could be.
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
                if let Some(why) = unreadable.filter(|_| cache.definition.decides()) {
                    tracing::error!(key = %change.kv.key, %why, "an object that requests are judged by cannot be decrypted; starting again");
                    return false;
                }
                let (event, read) = cache.apply(change);
                self.tell(&cache.definition, &event, read.as_ref());
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
                    tracing::error!(plural = %definition.plural, %error, "loading a custom kind's objects");
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
