//! Closes exec, attach and port-forward connections that are idle for too long (`streamingConnectionIdleTimeout`).

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Instant,
};

/// The time of the last transfer on a connection.
#[derive(Clone)]
pub(crate) struct Activity(Arc<Mutex<Instant>>);

impl Activity {
    fn mark(&self) {
        *self.0.lock() = Instant::now();
    }

    fn last(&self) -> Instant {
        *self.0.lock()
    }

    /// Waits until the connection has been idle for `limit`.
    pub(crate) async fn wait_idle(&self, limit: Duration) {
        let limit = limit.min(rt::FAR);
        loop {
            let end = self.last() + limit;
            if end <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(end).await;
        }
    }
}

/// A stream that records the time of each transfer.
pub(crate) struct ActivityStream<S> {
    inner: S,
    activity: Activity,
}

impl<S> ActivityStream<S> {
    pub(crate) fn new(inner: S) -> (Self, Activity) {
        let activity = Activity(Arc::new(Mutex::new(Instant::now())));
        (Self { inner, activity: activity.clone() }, activity)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ActivityStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.inner).poll_read(cx, buffer);
        if buffer.filled().len() > before {
            self.activity.mark();
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ActivityStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        content: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_write(cx, content);
        if matches!(polled, Poll::Ready(Ok(1..))) {
            self.activity.mark();
        }
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn ceases_after_the_idle_timeout_and_not_before() {
        let (near, mut far) = tokio::io::duplex(64);
        let (mut near, activity) = ActivityStream::new(near);
        let limit = Duration::from_secs(4 * 3600);
        let start = Instant::now();
        for _ in 0..3 {
            tokio::time::advance(limit / 2).await;
            far.write_all(b"x").await.unwrap();
            near.read_u8().await.unwrap();
            tokio::time::advance(limit / 2).await;
            near.write_all(b"y").await.unwrap();
            far.read_u8().await.unwrap();
        }
        activity.wait_idle(limit).await;
        assert_eq!(start.elapsed(), limit * 4);
    }
}
