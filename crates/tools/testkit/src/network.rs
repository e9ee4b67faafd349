//! A simulated network between components and the API server: latency, partitions in either direction, and the death
//! of the server.
//!
//! It behaves as HTTP/2 over TCP does: messages of one stream arrive in order and once, or the stream breaks. Whether a
//! request was carried out is unknown if its response is lost.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use api_meta::UserInfo;
use apiserver::ApiServer;
use client::{Body, Client, Error, Transport};
use futures_util::{future::BoxFuture, stream};
use http::{Request, Response};
use http_body_util::{BodyExt as _, StreamBody};
use parking_lot::Mutex;
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

/// The time after which a request into a partition fails.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The time after which the pings of HTTP/2 find a partition, which breaks all streams.
const PING_TIMEOUT: Duration = Duration::from_secs(45);
/// The longest latency of a link without faults.
const USUAL_LATENCY: Duration = Duration::from_millis(3);

/// The messages that a [`Link`] loses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Loss {
    /// No messages.
    #[default]
    Nothing,
    /// The messages to the API server.
    Requests,
    /// The messages from the API server.
    Responses,
    /// All messages.
    Everything,
}

impl Loss {
    fn of_requests(self) -> bool {
        matches!(self, Self::Requests | Self::Everything)
    }

    fn of_responses(self) -> bool {
        matches!(self, Self::Responses | Self::Everything)
    }
}

/// The connection of one component to the API server.
pub struct Link {
    loss: watch::Sender<Loss>,
    latency: AtomicU64,
}

impl Default for Link {
    fn default() -> Self {
        let link = Self { loss: watch::Sender::default(), latency: AtomicU64::default() };
        link.heal();
        link
    }
}

impl Link {
    /// Loses these messages until [`Link::heal`].
    pub fn lose(&self, loss: Loss) {
        self.loss.send_replace(loss);
    }

    /// Delays every message by a random time up to this latency.
    pub fn slow_down(&self, latency: Duration) {
        self.latency.store(latency.as_micros() as u64, Ordering::Relaxed);
    }

    /// Ends losses and delays.
    pub fn heal(&self) {
        self.slow_down(USUAL_LATENCY);
        self.loss.send_replace(Loss::Nothing);
    }

    /// Returns the messages that the link loses now.
    pub fn loss(&self) -> Loss {
        *self.loss.borrow()
    }

    async fn delay(&self) {
        let longest = self.latency.load(Ordering::Relaxed).max(1);
        sleep(Duration::from_micros(rt::random_in(0..longest))).await;
    }

    /// Waits until the loss fulfils the condition.
    async fn reaches(&self, condition: impl FnMut(&Loss) -> bool) {
        // The sender lives as long as `self`, so waiting cannot fail.
        let _ = self.loss.subscribe().wait_for(condition).await;
    }

    /// Waits until pings have found a partition.
    async fn breaks(&self) {
        loop {
            self.reaches(|loss| *loss != Loss::Nothing).await;
            let healed = self.reaches(|loss| *loss == Loss::Nothing);
            if timeout(PING_TIMEOUT, healed).await.is_err() {
                return;
            }
        }
    }
}

/// The network of one API server, which may die and return.
#[derive(Default)]
pub struct Network(Mutex<Option<Peer>>);

/// A running API server.
#[derive(Clone)]
struct Peer {
    server: ApiServer,
    /// Stopped when the server dies.
    life: rt::Shutdown,
}

impl Network {
    /// Connects a server that has started.
    pub fn connect(&self, server: ApiServer) {
        *self.0.lock() = Some(Peer { server, life: rt::Shutdown::new() });
    }

    /// Breaks all connections, as the death of the server does.
    pub fn disconnect(&self) {
        if let Some(peer) = self.0.lock().take() {
            peer.life.stop();
        }
    }

    /// Returns a client whose messages travel over a link.
    pub fn client(self: &Arc<Self>, link: &Arc<Link>, user: UserInfo, user_agent: &str) -> Client {
        let (network, link) = (self.clone(), link.clone());
        let agent = user_agent.to_owned();
        Client::new(Arc::new(LinkTransport { network, link, user, agent }), user_agent)
    }
}

struct LinkTransport {
    network: Arc<Network>,
    link: Arc<Link>,
    user: UserInfo,
    agent: String,
}

fn lost(why: &'static str) -> Error {
    Error::Transport {
        operation: "sending a request to",
        target: "the simulated API server".to_owned(),
        source: why.into(),
    }
}

impl LinkTransport {
    async fn carry(&self, request: Request<Body>) -> Result<Response<Body>, Error> {
        self.link.delay().await;
        if self.link.loss().of_requests() {
            sleep(CONNECT_TIMEOUT).await;
            return Err(lost("no answer in 10 s"));
        }
        let peer = self.network.0.lock().clone();
        let Some(Peer { server, life }) = peer else { return Err(lost("connection refused")) };
        let client = server.client(self.user.clone(), &self.agent);
        let answered = life.unless_stopping(client.request(request)).await;
        let response = answered.unwrap_or_else(|| Err(lost("connection reset")))?;
        self.link.delay().await;
        if self.link.loss().of_responses() {
            sleep(CONNECT_TIMEOUT).await;
            return Err(lost("the response was lost"));
        }
        Ok(response.map(|body| deliver(body, life, self.link.clone())))
    }
}

impl Transport for LinkTransport {
    fn send(&self, request: Request<Body>) -> BoxFuture<'_, Result<Response<Body>, Error>> {
        Box::pin(self.carry(request))
    }
}

/// Delivers the frames of a body until the server dies or the link breaks.
fn deliver(body: Body, life: rt::Shutdown, link: Arc<Link>) -> Body {
    let frames = stream::unfold(Some(body), move |body| {
        let (life, link) = (life.clone(), link.clone());
        async move {
            let mut body = body?;
            let arrives = async {
                let frame = body.frame().await;
                link.reaches(|loss| !loss.of_responses()).await;
                frame
            };
            let frame = tokio::select! {
                biased;
                () = life.stopping() => Some(Err("connection reset".into())),
                () = link.breaks() => Some(Err("no answer to a ping".into())),
                frame = arrives => frame,
            };
            let rest = frame.as_ref()?.is_ok().then_some(body);
            Some((frame?, rest))
        }
    });
    StreamBody::new(frames).boxed_unsync()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn streams_break_after_pings_are_lost_and_wait_for_shorter_losses() {
        let link = Arc::new(Link::default());
        let life = rt::Shutdown::new();
        let body = || {
            let frames = stream::iter([Ok(http_body::Frame::data("event".into()))]);
            let frames = futures_util::StreamExt::chain(frames, stream::pending());
            deliver(StreamBody::new(frames).boxed_unsync(), life.clone(), link.clone())
        };
        link.lose(Loss::Responses);
        let (mut short, begun) = (body(), tokio::time::Instant::now());
        let healing = async {
            sleep(PING_TIMEOUT / 2).await;
            link.heal();
        };
        let (frame, ()) = tokio::join!(short.frame(), healing);
        assert!(frame.is_some_and(|frame| frame.is_ok()));
        assert_eq!(begun.elapsed(), PING_TIMEOUT / 2);
        link.lose(Loss::Requests);
        assert!(short.frame().await.is_some_and(|frame| frame.is_err()));
        assert!(short.frame().await.is_none());
        link.heal();
        let mut long = body();
        assert!(long.frame().await.is_some_and(|frame| frame.is_ok()));
        life.stop();
        assert!(long.frame().await.is_some_and(|frame| frame.is_err()));
    }
}
