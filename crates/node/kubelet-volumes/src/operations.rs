//! Operations on volumes' files, each in a thread of its own: if a file server hangs, it blocks that thread only.
//!
//! A volume has one operation at a time. The caller waits for a limited time, and the operation continues after that.
//! The next operation on the volume waits for it.

use std::{any::Any, collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::{Mutex, MutexGuard};
use tokio::{
    sync::{Semaphore, watch},
    time::Instant,
};

/// The time that a Pod's worker waits for an operation.
const PATIENCE: Duration = Duration::from_secs(10);

/// The limit of concurrent operations.
const MAX_OPERATIONS: usize = 256;

/// The Pod's UID and the volume's name in the Pod.
type Key = (String, String);

/// The error of an operation that has no result.
#[derive(Debug, thiserror::Error)]
pub enum OperationError {
    #[error(
        "the volume's files, or its driver, have not answered for {} s; the kubelet keeps waiting", .0.as_secs()
    )]
    Hangs(Duration),
    #[error(
        "the limit of {MAX_OPERATIONS} concurrent operations on volumes is reached; is a file server down?"
    )]
    NoSeat,
    #[error("start a thread: {0}")]
    Thread(std::io::Error),
    #[error("a panic ended the operation on the volume; see the kubelet's log")]
    Panicked,
}

/// The use of a result whose caller stopped waiting: return it for the next operation, or run the work again.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum EarlierResult {
    /// Return the result for the next operation.
    Reuse,
    /// Run the work again.
    Discard,
}

#[derive(Clone)]
struct RunningOperation {
    since: Instant,
    ended: watch::Receiver<bool>,
    result: Arc<Mutex<Option<Box<dyn Any + Send>>>>,
}

impl RunningOperation {
    /// Waits until the operation has ended. A panic drops the sender, which also counts as the end.
    async fn wait_end(&mut self) {
        let _ = self.ended.wait_for(|ended| *ended).await;
    }

    fn take<T: 'static>(&self) -> Option<T> {
        let result = self.result.lock().take()?;
        result.downcast().ok().map(|result| *result)
    }
}

/// The running operations of one kubelet.
pub struct Operations {
    seats: Arc<Semaphore>,
    patience: Duration,
    running: Mutex<BTreeMap<Key, RunningOperation>>,
}

impl Default for Operations {
    fn default() -> Self {
        Self::new(PATIENCE)
    }
}

impl Operations {
    /// Creates an executor whose callers wait for `patience`.
    pub fn new(patience: Duration) -> Self {
        Self {
            seats: Arc::new(Semaphore::new(MAX_OPERATIONS)),
            patience,
            running: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, RunningOperation>> {
        self.running.lock()
    }

    /// Runs the work after all other operations on the volume. Returns the result of an earlier operation of the same
    /// type instead, if `earlier` allows it.
    pub async fn run<T: Send + 'static>(
        &self,
        (uid, volume): (&str, &str),
        earlier: EarlierResult,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, OperationError> {
        let key = (uid.to_owned(), volume.to_owned());
        let patience = Instant::now() + self.patience;
        let done = tokio::time::timeout_at(patience, async {
            if let Some(result) = self.after(&key).await.filter(|_| earlier == EarlierResult::Reuse)
            {
                return Ok(result);
            }
            let seat = self.seats.clone().acquire_owned().await;
            let mut own = self.start(&key, move || {
                let result = work();
                drop(seat);
                result
            })?;
            own.wait_end().await;
            self.lock().remove(&key);
            own.take().ok_or(OperationError::Panicked)
        });
        done.await.unwrap_or_else(|_| {
            let since = self.lock().get(&key).map(|own| own.since);
            Err(since.map_or(OperationError::NoSeat, |at| OperationError::Hangs(at.elapsed())))
        })
    }

    /// Waits until the volume has no operation. Returns a result that no caller has taken.
    async fn after<T: 'static>(&self, key: &Key) -> Option<T> {
        loop {
            let mut earlier = self.lock().get(key).cloned()?;
            earlier.wait_end().await;
            self.lock().retain(|other, entry| {
                other != key || !Arc::ptr_eq(&entry.result, &earlier.result)
            });
            if let Some(result) = earlier.take() {
                return Some(result);
            }
        }
    }

    fn start<T: Send + 'static>(
        &self,
        key: &Key,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<RunningOperation, OperationError> {
        let (end, ended) = watch::channel(false);
        let own = RunningOperation { since: Instant::now(), ended, result: Arc::default() };
        let (result, subject) = (own.result.clone(), key.1.clone());
        self.lock().insert(key.clone(), own.clone());
        let thread = std::thread::Builder::new().name("volume".to_owned()).spawn(move || {
            if let Ok(done) = rt::catch_sync("volume", subject, work) {
                *result.lock() = Some(Box::new(done));
            }
            end.send_replace(true);
        });
        if let Err(error) = thread {
            self.lock().remove(key);
            return Err(OperationError::Thread(error));
        }
        Ok(own)
    }

    /// Waits until no volume of a Pod has an operation.
    pub(crate) async fn wait_idle(&self, uid: &str) -> Result<(), OperationError> {
        let patience = Instant::now() + self.patience;
        let of_pod: Vec<RunningOperation> = {
            let running = self.lock();
            let own = running.iter().filter(|((pod, _), _)| pod == uid);
            own.map(|(_, operation)| operation.clone()).collect()
        };
        for mut operation in of_pod {
            tokio::time::timeout_at(patience, operation.wait_end())
                .await
                .map_err(|_| OperationError::Hangs(operation.since.elapsed()))?;
        }
        self.lock().retain(|(pod, _), operation| pod != uid || !*operation.ended.borrow());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn hanging_operation_blocks_its_volume_and_keeps_its_result() {
        let operations = Operations::new(Duration::from_millis(500));
        let (answer, server) = mpsc::channel::<u32>();
        let hung = operations.run(("a", "nfs"), EarlierResult::Reuse, move || server.recv());
        let error = hung.await.unwrap_err().to_string();
        assert!(
            error.starts_with("the volume's files, or its driver, have not answered for "),
            "{error}"
        );
        let other = operations.run(("a", "cache"), EarlierResult::Reuse, || 1).await;
        assert_eq!(other.unwrap(), 1, "the Pod's other volumes and other Pods go on");
        let again =
            operations.run(("a", "nfs"), EarlierResult::Reuse, || Ok::<_, mpsc::RecvError>(2_u32));
        assert!(again.await.is_err(), "one at a time");
        assert!(
            operations.wait_idle("a").await.is_err() && operations.wait_idle("b").await.is_ok()
        );
        answer.send(7).unwrap();
        let late =
            operations.run(("a", "nfs"), EarlierResult::Reuse, || Ok::<_, mpsc::RecvError>(3_u32));
        assert_eq!(late.await.unwrap(), Ok(7), "what was done is not done again");
        operations.wait_idle("a").await.unwrap();
        assert!(operations.lock().is_empty());
    }

    #[tokio::test]
    async fn reruns_stale_work_and_survives_a_panic() {
        let operations = Operations::new(Duration::from_millis(500));
        let (answer, server) = mpsc::channel::<u32>();
        let (second, other) = mpsc::channel::<u32>();
        let hangs = |server: mpsc::Receiver<u32>| move || server.recv().unwrap();
        operations.run(("a", "map"), EarlierResult::Discard, hangs(server)).await.unwrap_err();
        operations.run(("a", "part"), EarlierResult::Reuse, hangs(other)).await.unwrap_err();
        answer.send(1).unwrap();
        second.send(1).unwrap();
        assert_eq!(
            operations.run(("a", "map"), EarlierResult::Discard, || 2_u32).await.unwrap(),
            2
        );
        assert_eq!(
            operations.run(("a", "part"), EarlierResult::Reuse, || "new").await.unwrap(),
            "new"
        );
        // Printing a panic may take longer than the short timeout.
        let patient = Operations::new(PATIENCE);
        let panics = || -> u32 { panic!("a volume's") };
        let ended = patient.run(("a", "map"), EarlierResult::Reuse, panics).await;
        assert!(matches!(ended, Err(OperationError::Panicked)));
        assert_eq!(patient.seats.available_permits(), MAX_OPERATIONS);
        assert_eq!(operations.run(("a", "map"), EarlierResult::Reuse, || 3).await.unwrap(), 3);
        assert_eq!(operations.seats.available_permits(), MAX_OPERATIONS);
    }
}
