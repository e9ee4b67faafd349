//! Work that waits for the disk or takes long, on threads for it.

use tokio::{
    sync::Semaphore,
    task::{JoinError, spawn_blocking},
};

/// Threads at a time: a rack asks all at once, and a thread for each machine would cost memory and win nothing.
static PLACES: Semaphore = Semaphore::const_new(16);

pub(crate) async fn run<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    let place = PLACES.acquire().await;
    let work = move || {
        // The place is given back when the work is done, whether or not somebody still waits for it.
        let _place = place;
        work()
    };
    spawn_blocking(work).await
}
