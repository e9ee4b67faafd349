mod turns;

use std::{
    collections::{BTreeMap, HashMap, HashSet, hash_map::Entry},
    fmt::Debug,
    hash::Hash,
    sync::Arc,
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use tokio::{sync::Notify, time::Instant};

use crate::{
    metrics::{ClientMetrics, QueueMetrics},
    queue::turns::Turns,
};

/// A queue of keys to reconcile.
///
/// A key is in the queue at most once and is never handed out while a worker processes it. A key that is added
/// meanwhile is queued again after [`WorkQueue::done`]. The size is therefore bounded by the number of objects.
pub struct WorkQueue<K> {
    state: Arc<State<K>>,
}

struct State<K> {
    inner: Mutex<Inner<K>>,
    changed: Notify,
    first: Duration,
    cap: Duration,
}

struct Inner<K> {
    ready: Turns<K>,
    /// The keys in `ready`, with the time of their addition.
    queued: HashMap<K, Instant>,
    /// The keys that workers process, with the time of the start.
    working: HashMap<K, Instant>,
    again: HashSet<K>,
    delayed: BTreeMap<Instant, Vec<K>>,
    due: HashMap<K, Instant>,
    failures: HashMap<K, u32>,
    metrics: Option<QueueMetrics>,
}

impl<K> Clone for WorkQueue<K> {
    fn clone(&self) -> Self {
        Self { state: self.state.clone() }
    }
}

impl<K: Clone + Eq + Hash + Ord> Default for WorkQueue<K> {
    fn default() -> Self {
        // Upstream's default controller rate limiter: 5 ms, doubling up to 1,000 s.
        Self::new(Duration::from_millis(5), Duration::from_secs(1000))
    }
}

impl<K: Clone + Eq + Hash + Ord> WorkQueue<K> {
    /// Creates a queue. The backoff of a failing key is `first`, doubles with each failure and ends at `cap`.
    pub fn new(first: Duration, cap: Duration) -> Self {
        let inner = Inner {
            ready: Turns::new(|_| ""),
            queued: HashMap::new(),
            working: HashMap::new(),
            again: HashSet::new(),
            delayed: BTreeMap::new(),
            due: HashMap::new(),
            failures: HashMap::new(),
            metrics: None,
        };
        Self {
            state: Arc::new(State { inner: Mutex::new(inner), changed: Notify::new(), first, cap }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner<K>> {
        self.state.inner.lock()
    }

    /// Lets groups of keys take turns, so that the many keys of one group do not delay those of others.
    pub fn take_turns(&self, group: fn(&K) -> &str) {
        let mut inner = self.lock();
        let mut turns = Turns::new(group);
        while let Some(key) = inner.ready.pop_front() {
            turns.push_back(key);
        }
        inner.ready = turns;
    }

    /// Adds the key unless it is queued already. A key that a worker processes is queued again when the worker is done.
    pub fn add(&self, key: K) {
        self.lock().add(key);
        self.state.changed.notify_one();
    }

    /// Adds the key after a delay. If the key is delayed already, the shorter delay wins.
    pub fn add_after(&self, key: K, delay: Duration) {
        if delay.is_zero() {
            return self.add(key);
        }
        let at = Instant::now() + delay.min(rt::FAR);
        let mut inner = self.lock();
        if let Some(&earlier) = inner.due.get(&key) {
            if earlier <= at {
                return;
            }
            inner.remove_delayed(earlier, &key);
        }
        inner.due.insert(key.clone(), at);
        inner.delayed.entry(at).or_default().push(key);
        drop(inner);
        self.state.changed.notify_one();
    }

    /// Adds the key after its backoff, which grows with every call until [`WorkQueue::forget`].
    pub fn retry(&self, key: K) {
        let delay = {
            let mut inner = self.lock();
            inner.metrics.iter().for_each(|metrics| metrics.retries.inc());
            let failures = inner.failures.entry(key.clone()).or_default();
            let delay =
                self.state.first.saturating_mul(1u32.checked_shl(*failures).unwrap_or(u32::MAX));
            *failures = (*failures + 1).min(31);
            delay.min(self.state.cap)
        };
        self.add_after(key, delay);
    }

    /// Resets the key's backoff.
    pub fn forget(&self, key: &K) {
        self.lock().failures.remove(key);
    }

    /// Returns the number of [`WorkQueue::retry`] calls since the last [`WorkQueue::forget`].
    pub fn failures(&self, key: &K) -> u32 {
        self.lock().failures.get(key).copied().unwrap_or(0)
    }

    /// Waits for the next key to process. Cancel-safe.
    pub async fn next(&self) -> K {
        loop {
            let wait = {
                let mut inner = self.lock();
                inner.promote(Instant::now());
                if let Some(key) = inner.ready.pop_front() {
                    inner.begin(&key);
                    let more = inner.ready.len() > 0;
                    drop(inner);
                    if more {
                        // One permit may stand for several adds, so notify the next worker.
                        self.state.changed.notify_one();
                    }
                    return key;
                }
                inner.delayed.keys().next().copied()
            };
            match wait {
                Some(at) => {
                    let _ = tokio::time::timeout_at(at, self.state.changed.notified()).await;
                }
                None => self.state.changed.notified().await,
            }
        }
    }

    /// Marks the key as processed, successfully or not.
    pub fn done(&self, key: &K) {
        let mut inner = self.lock();
        if let (Some(started), Some(metrics)) = (inner.working.remove(key), &inner.metrics) {
            metrics.works.observe(started.elapsed().as_secs_f64());
        }
        if inner.again.remove(key) {
            inner.add(key.clone());
            drop(inner);
            self.state.changed.notify_one();
        }
    }

    /// Returns the number of queued keys, including delayed ones.
    pub fn len(&self) -> usize {
        let inner = self.lock();
        inner.ready.len() + inner.due.len()
    }

    /// Returns `true` if no key is queued. Keys that workers process do not count.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<K: Clone + Eq + Hash + Ord> Inner<K> {
    fn add(&mut self, key: K) {
        if self.working.contains_key(&key) {
            // The addition counts when the key is queued.
            self.again.insert(key);
        } else if let Entry::Vacant(queued) = self.queued.entry(key.clone()) {
            queued.insert(Instant::now());
            self.ready.push_back(key);
            if let Some(metrics) = &self.metrics {
                metrics.adds.inc();
                metrics.depth.set(self.ready.len() as f64);
            }
        }
    }

    /// Moves a key, which has left `ready`, to the keys that workers process.
    fn begin(&mut self, key: &K) {
        let now = Instant::now();
        let added = self.queued.remove(key);
        self.working.insert(key.clone(), now);
        if let Some(metrics) = &self.metrics {
            metrics.depth.set(self.ready.len() as f64);
            metrics.waits.observe(added.map_or(0.0, |added| (now - added).as_secs_f64()));
        }
    }

    /// Sets the gauges of unfinished work.
    fn refresh(&self) {
        let Some(metrics) = &self.metrics else { return };
        let ages = || self.working.values().map(|started| started.elapsed().as_secs_f64());
        // Not `sum`, which is -0 without keys.
        metrics.unfinished.set(ages().fold(0.0, |all, age| all + age));
        metrics.longest.set(ages().fold(0.0, f64::max));
    }

    fn promote(&mut self, now: Instant) {
        while let Some(entry) = self.delayed.first_entry() {
            if *entry.key() > now {
                break;
            }
            for key in entry.remove() {
                self.due.remove(&key);
                self.add(key);
            }
        }
    }

    fn remove_delayed(&mut self, at: Instant, key: &K) {
        if let Some(keys) = self.delayed.get_mut(&at) {
            keys.retain(|k| k != key);
            if keys.is_empty() {
                self.delayed.remove(&at);
            }
        }
    }
}

impl<K: Clone + Eq + Hash + Ord + Debug + Send + Sync + 'static> WorkQueue<K> {
    /// Reports the queue in a component's metrics under `name`. Keys that are queued already count too.
    pub fn measure(&self, metrics: &ClientMetrics, name: &str) {
        let own = metrics.of_queue(name);
        let mut inner = self.lock();
        own.adds.inc_by(inner.ready.len() as u64);
        own.depth.set(inner.ready.len() as f64);
        inner.metrics = Some(own);
        drop(inner);
        let state = Arc::downgrade(&self.state);
        metrics.before_scrape(move || {
            if let Some(state) = state.upgrade() {
                state.inner.lock().refresh();
            }
        });
    }

    /// Runs `workers` loops over the queue until shutdown. `work` returns `true` if the key is settled. If it returns
    /// `false` or panics, the key is retried after its backoff.
    pub fn run<F, Fut>(&self, tasks: &rt::Tasks, name: &'static str, workers: usize, work: F)
    where
        F: Fn(K) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = bool> + Send + 'static,
    {
        let work = Arc::new(work);
        for _ in 0..workers {
            let (queue, work) = (self.clone(), work.clone());
            tasks.keep(name, move || {
                let (queue, work) = (queue.clone(), work.clone());
                async move {
                    loop {
                        let key = queue.next().await;
                        let done =
                            rt::catch(name, DebugDisplay(&key), async { work(key.clone()).await });
                        if done.await == Ok(true) {
                            queue.forget(&key);
                        } else {
                            queue.retry(key.clone());
                        }
                        queue.done(&key);
                    }
                }
            });
        }
    }
}

/// Displays a key in the log by its `Debug` text.
struct DebugDisplay<'a, K>(&'a K);

impl<K: Debug> std::fmt::Display for DebugDisplay<'_, K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn queues_key_once_and_never_processes_it_concurrently() {
        let queue = WorkQueue::default();
        queue.add("a");
        queue.add("a");
        assert_eq!(queue.next().await, "a");
        queue.add("a");
        queue.add("b");
        assert_eq!(queue.next().await, "b");
        assert!(tokio::time::timeout(Duration::from_secs(1), queue.next()).await.is_err());
        queue.done(&"a");
        assert_eq!(queue.next().await, "a");
    }

    #[tokio::test(start_paused = true)]
    async fn lets_groups_take_turns() {
        let queue = WorkQueue::default();
        queue.add("a/1");
        queue.take_turns(|key| key.split_once('/').map_or("", |(group, _)| group));
        for key in ["a/2", "a/3", "b/1", "c", "b/2", "a/2"] {
            queue.add(key);
        }
        assert_eq!(queue.len(), 6);
        for expected in ["a/1", "b/1", "c", "a/2", "b/2", "a/3"] {
            assert_eq!(queue.next().await, expected);
        }
        assert!(queue.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn measures_adds_waits_work_and_retries() {
        let metrics = telemetry::metrics::Metrics::default();
        let queue = WorkQueue::<String>::default();
        queue.add("before".into());
        queue.measure(&ClientMetrics::new(&metrics), "deployment");
        queue.add("hostile \"name\"".into());
        let has = |line: &str| {
            let text = metrics.text();
            assert!(text.contains(&format!("\n{line}\n")), "{line}: {text}");
        };
        has("workqueue_adds_total{name=\"deployment\"} 2");
        has("workqueue_depth{name=\"deployment\"} 2");
        tokio::time::sleep(Duration::from_secs(2)).await;
        let key = queue.next().await;
        tokio::time::sleep(Duration::from_secs(3)).await;
        has("workqueue_depth{name=\"deployment\"} 1");
        has("workqueue_queue_duration_seconds_sum{name=\"deployment\"} 2");
        has("workqueue_unfinished_work_seconds{name=\"deployment\"} 3");
        has("workqueue_longest_running_processor_seconds{name=\"deployment\"} 3");
        queue.retry(key.clone());
        queue.done(&key);
        has("workqueue_work_duration_seconds_sum{name=\"deployment\"} 3");
        has("workqueue_unfinished_work_seconds{name=\"deployment\"} 0");
        has("workqueue_retries_total{name=\"deployment\"} 1");
        assert!(!metrics.text().contains("hostile"), "keys are no labels");
    }

    #[tokio::test(start_paused = true)]
    async fn backs_off_retries_and_prefers_the_shorter_delay() {
        let queue = WorkQueue::new(Duration::from_secs(1), Duration::from_secs(3));
        let start = Instant::now();
        for expected in [1, 2, 3, 3] {
            let before = Instant::now();
            queue.retry("k");
            assert_eq!(queue.next().await, "k");
            assert_eq!((Instant::now() - before).as_secs(), expected);
            queue.done(&"k");
        }
        queue.add_after("x", Duration::MAX);
        queue.add_after("x", Duration::from_secs(60));
        queue.add_after("x", Duration::from_secs(5));
        assert_eq!(queue.next().await, "x");
        assert_eq!((Instant::now() - start).as_secs(), 9 + 5);
        assert!(queue.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn loses_no_key_and_no_worker_in_a_thousand_panics() {
        let tasks = rt::Tasks::new(rt::Shutdown::new());
        let queue = WorkQueue::new(Duration::from_millis(5), Duration::from_secs(1));
        let (settled, mut keys) = tokio::sync::mpsc::channel(200);
        let left = Arc::new(Mutex::new(HashMap::<u32, u32>::new()));
        queue.run(&tasks, "panicking", 4, move |key: u32| {
            let (settled, left) = (settled.clone(), left.clone());
            // Half of the panics happen before the work returns a future.
            let panics = {
                let mut left = left.lock();
                let left = left.entry(key).or_insert(5);
                *left = left.saturating_sub(1);
                *left > 0
            };
            assert!(!panics || key.is_multiple_of(2), "before the future");
            async move {
                tokio::task::yield_now().await;
                assert!(!panics, "in the future");
                settled.send(key).await.is_ok()
            }
        });
        (0..250).for_each(|key| queue.add(key));
        let mut seen = HashSet::new();
        while seen.len() < 250 {
            assert!(seen.insert(keys.recv().await.unwrap()), "settled twice");
        }
        assert_eq!(rt::panics()["panicking"], 1000);
        assert_eq!(tasks.missing(), []);
        assert!(queue.is_empty() && queue.lock().failures.is_empty());
        assert_eq!(tasks.running().len(), 4);
        queue.add(1);
        assert_eq!(keys.recv().await, Some(1), "a worker continues after its panic");
        tasks.drain(Duration::from_secs(1)).await;
    }
}
