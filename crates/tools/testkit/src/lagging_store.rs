//! A store whose watches deliver late, as those of a busy machine do, so that caches lag behind writes.

use std::{sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use store::{KeyRange, Reply, Revision, Store, WatchMessage, WatchStream};

/// The longest delay of a message.
const LAG: Duration = Duration::from_millis(20);

pub(crate) struct LaggingStore(pub(crate) Arc<dyn Store>);

impl Store for LaggingStore {
    fn below(&self) -> &dyn Store {
        &*self.0
    }

    fn watch(&self, range: KeyRange, after: Revision) -> Reply<'_, Box<dyn WatchStream>> {
        Box::pin(async move {
            let stream = self.0.watch(range, after).await?;
            let lagging: Box<dyn WatchStream> = Box::new(LaggingWatch { stream, message: None });
            Ok(lagging)
        })
    }
}

struct LaggingWatch {
    stream: Box<dyn WatchStream>,
    /// The message that is being delayed.
    message: Option<WatchMessage>,
}

impl WatchStream for LaggingWatch {
    fn next(&mut self) -> BoxFuture<'_, Option<WatchMessage>> {
        Box::pin(async move {
            if self.message.is_none() {
                self.message = Some(self.stream.next().await?);
            }
            tokio::time::sleep(rt::random_in(Duration::ZERO..LAG)).await;
            self.message.take()
        })
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    /// A watch that ends after three messages.
    struct Three(Revision);

    impl WatchStream for Three {
        fn next(&mut self) -> BoxFuture<'_, Option<WatchMessage>> {
            self.0 += 1;
            let message = (self.0 <= 3).then_some(WatchMessage::Progress(self.0));
            Box::pin(std::future::ready(message))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn dropped_wait_loses_no_message() {
        let mut watch = LaggingWatch { stream: Box::new(Three(0)), message: None };
        for expected in 1..=3 {
            assert!(watch.next().now_or_never().is_none(), "it is late");
            let message = watch.next().await;
            assert!(matches!(message, Some(WatchMessage::Progress(at)) if at == expected));
        }
        assert!(watch.next().await.is_none());
    }
}
