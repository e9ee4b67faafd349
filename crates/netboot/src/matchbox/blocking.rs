//! Work that waits for the disk or takes long, on threads for it.

use std::sync::LazyLock;

use tokio::{
    runtime::{Builder, Handle, Runtime},
    sync::Semaphore,
    task::JoinError,
};

/// A rack asks all at once. Each thread costs a megabyte, as the allocator keeps room for each, and more would win
/// nothing.
const THREADS: usize = 4;

/// Work that a thread has, or is about to have.
static PLACES: Semaphore = Semaphore::const_new(THREADS);

/// Never more than these threads: the runtime that serves starts another one for each piece of work that comes
/// before the last thread is done.
static POOL: LazyLock<Option<Runtime>> =
    LazyLock::new(|| Builder::new_current_thread().max_blocking_threads(THREADS).build().ok());

pub(crate) async fn run<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    let place = PLACES.acquire().await;
    let work = move || {
        // The place is given back when the work is done, whether or not somebody still waits for it.
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
    async fn threads_are_few() {
        let pieces = (0..2000).map(|_| tokio::spawn(run(|| thread::current().id())));
        let mut threads = BTreeSet::new();
        for piece in pieces.collect::<Vec<_>>() {
            threads.insert(format!("{:?}", piece.await.unwrap().unwrap()));
        }
        assert!(threads.len() <= THREADS, "{threads:?}");
    }
}
