//! Asks for the usage of NFS volumes. Each is an operation of its own, so that a server that does not answer delays
//! neither the other volumes of its Pod nor the Pod's end.

use std::{path::PathBuf, time::Duration};

use futures_util::{StreamExt, stream};
use kubelet_volumes::{EarlierResult, Operations};

/// The time for an answer.
const ANSWER: Duration = Duration::from_secs(2);
/// The number of concurrent calls.
const CONCURRENCY: usize = 64;
/// The name of the operations. It is no Pod's UID, so a Pod's end does not wait for a server.
const WORK: &str = "usage of servers";

/// Returns the usage of each mounted file system, in the order of the paths; `None` if its server does not answer.
pub(crate) async fn query_servers(
    operations: &Operations,
    paths: Vec<PathBuf>,
) -> Vec<Option<sys::DiskUse>> {
    let answers = paths.into_iter().map(|path| async move {
        let name = path.to_string_lossy().into_owned();
        let work = move || sys::disk_use(&path);
        let answer = operations.run((WORK, &name), EarlierResult::Discard, work);
        tokio::time::timeout(ANSWER, answer).await.ok()?.ok()?.ok()
    });
    stream::iter(answers).buffered(CONCURRENCY).collect().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn silent_server_delays_no_other() {
        let operations = Operations::new(Duration::from_secs(10));
        let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        // An earlier call about the first volume never ends.
        let (answer, server) = std::sync::mpsc::channel::<()>();
        let name = dir.path().to_string_lossy().into_owned();
        let hung = operations.run((WORK, &name), EarlierResult::Discard, move || server.recv());
        assert!(tokio::time::timeout(Duration::from_millis(50), hung).await.is_err());
        let start = tokio::time::Instant::now();
        let paths = vec![dir.path().to_owned(), other.path().to_owned()];
        let answers = query_servers(&operations, paths).await;
        assert!(answers[0].is_none() && answers[1].is_some_and(|use_| use_.capacity > 0));
        assert!(start.elapsed() < Duration::from_secs(8));
        drop(answer);
    }
}
