//! Work on volumes' files, each on a thread of its own: a server of files that hangs holds that thread, and nothing else
//! of the kubelet.
//!
//! A volume has one operation at a time. Whoever asks waits a while; the operation goes on when they have stopped
//! waiting, and whoever asks for the same volume next waits for it first.

use std::{
    any::Any,
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{Semaphore, watch},
    time::Instant,
};

/// How long a Pod's worker waits for an operation.
const PATIENCE: Duration = Duration::from_secs(10);

/// So many operations are under way at most: some hundred Pods with a volume that hangs.
const MOST: usize = 256;

/// The Pod's uid, and the volume's name in it.
type Key = (String, String);

#[derive(Debug, thiserror::Error)]
pub(crate) enum OperationError {
    #[error(
        "the volume's files, or its driver, have not answered for {} s; the kubelet goes on waiting", .0.as_secs()
    )]
    Hangs(Duration),
    #[error(
        "{MOST} operations on volumes are under way, the most at once; is a server of files down?"
    )]
    NoSeat,
    #[error("start a thread: {0}")]
    Thread(std::io::Error),
    #[error("a panic ended the operation on the volume; the log says where")]
    Panicked,
}

/// Whether the result of an operation that nobody waited for any more is as good as a new one's.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Earlier {
    Counts,
    IsStale,
}

#[derive(Clone)]
struct UnderWay {
    since: Instant,
    ended: watch::Receiver<bool>,
    result: Arc<Mutex<Option<Box<dyn Any + Send>>>>,
}

impl UnderWay {
    /// Waits until the operation has ended; a panic drops the sender, which is an end too.
    async fn ended(&mut self) {
        let _ = self.ended.wait_for(|ended| *ended).await;
    }

    fn take<T: 'static>(&self) -> Option<T> {
        let result = self.result.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        result.downcast().ok().map(|result| *result)
    }
}

/// All operations of one kubelet.
pub(crate) struct Operations {
    seats: Arc<Semaphore>,
    patience: Duration,
    under_way: Mutex<BTreeMap<Key, UnderWay>>,
}

impl Default for Operations {
    fn default() -> Self {
        Self::new(PATIENCE)
    }
}

impl Operations {
    pub(super) fn new(patience: Duration) -> Self {
        Self { seats: Arc::new(Semaphore::new(MOST)), patience, under_way: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, UnderWay>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does the work once no other is done for the volume, and gives its result, or that of an earlier one of its kind
    /// that still counts.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        (uid, volume): (&str, &str),
        earlier: Earlier,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, OperationError> {
        let key = (uid.to_owned(), volume.to_owned());
        let patience = Instant::now() + self.patience;
        let done = tokio::time::timeout_at(patience, async {
            if let Some(result) = self.after(&key).await.filter(|_| earlier == Earlier::Counts) {
                return Ok(result);
            }
            let seat = self.seats.clone().acquire_owned().await;
            let mut own = self.start(&key, move || {
                let result = work();
                drop(seat);
                result
            })?;
            own.ended().await;
            self.lock().remove(&key);
            own.take().ok_or(OperationError::Panicked)
        });
        done.await.unwrap_or_else(|_| {
            let since = self.lock().get(&key).map(|own| own.since);
            Err(since.map_or(OperationError::NoSeat, |at| OperationError::Hangs(at.elapsed())))
        })
    }

    /// Waits until nothing is done for the volume; gives the result that nobody has taken.
    async fn after<T: 'static>(&self, key: &Key) -> Option<T> {
        loop {
            let mut earlier = self.lock().get(key).cloned()?;
            earlier.ended().await;
            self.lock().retain(|other, known| {
                other != key || !Arc::ptr_eq(&known.result, &earlier.result)
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
    ) -> Result<UnderWay, OperationError> {
        let (end, ended) = watch::channel(false);
        let own = UnderWay { since: Instant::now(), ended, result: Arc::default() };
        let (result, subject) = (own.result.clone(), key.1.clone());
        self.lock().insert(key.clone(), own.clone());
        let thread = std::thread::Builder::new().name("volume".to_owned()).spawn(move || {
            if let Ok(done) = rt::catch_sync("volume", subject, work) {
                *result.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(done));
            }
            end.send_replace(true);
        });
        if let Err(error) = thread {
            self.lock().remove(key);
            return Err(OperationError::Thread(error));
        }
        Ok(own)
    }

    /// Waits until nothing is done for any volume of a Pod.
    pub(super) async fn quiet(&self, uid: &str) -> Result<(), OperationError> {
        let patience = Instant::now() + self.patience;
        let of_pod: Vec<UnderWay> = {
            let under_way = self.lock();
            let own = under_way.iter().filter(|((pod, _), _)| pod == uid);
            own.map(|(_, operation)| operation.clone()).collect()
        };
        for mut operation in of_pod {
            tokio::time::timeout_at(patience, operation.ended())
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
    async fn what_hangs_holds_its_own_volume_and_its_result_is_kept() {
        let operations = Operations::new(Duration::from_millis(500));
        let (answer, server) = mpsc::channel::<u32>();
        let hung = operations.run(("a", "nfs"), Earlier::Counts, move || server.recv());
        let error = hung.await.unwrap_err().to_string();
        assert!(
            error.starts_with("the volume's files, or its driver, have not answered for "),
            "{error}"
        );
        let other = operations.run(("a", "cache"), Earlier::Counts, || 1).await;
        assert_eq!(other.unwrap(), 1, "the Pod's other volumes and other Pods go on");
        let again =
            operations.run(("a", "nfs"), Earlier::Counts, || Ok::<_, mpsc::RecvError>(2_u32));
        assert!(again.await.is_err(), "one at a time");
        assert!(operations.quiet("a").await.is_err() && operations.quiet("b").await.is_ok());
        answer.send(7).unwrap();
        let late =
            operations.run(("a", "nfs"), Earlier::Counts, || Ok::<_, mpsc::RecvError>(3_u32));
        assert_eq!(late.await.unwrap(), Ok(7), "what was done is not done again");
        operations.quiet("a").await.unwrap();
        assert!(operations.lock().is_empty());
    }

    #[tokio::test]
    async fn what_is_stale_or_of_another_kind_is_done_again_and_a_panic_is_an_end() {
        let operations = Operations::new(Duration::from_millis(500));
        let (answer, server) = mpsc::channel::<u32>();
        let (second, other) = mpsc::channel::<u32>();
        let hangs = |server: mpsc::Receiver<u32>| move || server.recv().unwrap();
        operations.run(("a", "map"), Earlier::IsStale, hangs(server)).await.unwrap_err();
        operations.run(("a", "part"), Earlier::Counts, hangs(other)).await.unwrap_err();
        answer.send(1).unwrap();
        second.send(1).unwrap();
        assert_eq!(operations.run(("a", "map"), Earlier::IsStale, || 2_u32).await.unwrap(), 2);
        assert_eq!(operations.run(("a", "part"), Earlier::Counts, || "new").await.unwrap(), "new");
        // What a panic prints may take longer than the patience.
        let patient = Operations::new(PATIENCE);
        let panics = || -> u32 { panic!("a volume's") };
        let ended = patient.run(("a", "map"), Earlier::Counts, panics).await;
        assert!(matches!(ended, Err(OperationError::Panicked)));
        assert_eq!(patient.seats.available_permits(), MOST);
        assert_eq!(operations.run(("a", "map"), Earlier::Counts, || 3).await.unwrap(), 3);
        assert_eq!(operations.seats.available_permits(), MOST);
    }
}
