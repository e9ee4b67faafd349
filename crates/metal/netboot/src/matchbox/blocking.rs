//! A small thread pool for work that waits for the disk or takes long.

use std::sync::LazyLock;

use tokio::{
    runtime::{Builder, Handle, Runtime},
    sync::Semaphore,
    task::JoinError,
};

/// The number of threads. Each one costs a megabyte in the allocator, and more of them would not be faster.
const THREADS: usize = 4;

/// The permits for work on a thread.
static PLACES: Semaphore = Semaphore::const_new(THREADS);

/// The runtime that runs the work, with at most [`THREADS`] blocking threads. The serving runtime would start more.
static POOL: LazyLock<Option<Runtime>> =
    LazyLock::new(|| Builder::new_current_thread().max_blocking_threads(THREADS).build().ok());

pub(crate) async fn run<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    let place = PLACES.acquire().await;
    let work = move || {
        // The permit is released when the work is done, even if the caller has stopped waiting.
        let _place = place;
        work()
    };
    let pool = POOL.as_ref().map_or_else(Handle::current, |pool| pool.handle().clone());
    pool.spawn_blocking(work).await
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, thread};

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn limits_number_of_threads() {
        let pieces = (0..2000).map(|_| tokio::spawn(run(|| thread::current().id())));
        let mut threads = BTreeSet::new();
        for piece in pieces.collect::<Vec<_>>() {
            threads.insert(format!("{:?}", piece.await.unwrap().unwrap()));
        }
        assert!(threads.len() <= THREADS, "{threads:?}");
    }
}
