//! Random panics in the code that a test runs. A seed makes them reproducible.

use std::sync::Arc;

use client::{Body, Client, Error, Transport};
use futures_util::{FutureExt, future::BoxFuture};
use http::{Request, Response};
use http_body_util::BodyExt;
use parking_lot::{Mutex, MutexGuard};
use rand::{Rng, SeedableRng, rngs::StdRng};

/// A limited number of panics. Clones share them.
#[derive(Clone)]
pub struct PanicInjector(Arc<Mutex<State>>);

struct State {
    random: StdRng,
    left: u32,
    /// The probability of a panic in a call.
    rate: f64,
}

impl PanicInjector {
    /// Allows at most `count` panics. Each call panics with the probability `rate`.
    pub fn new(seed: u64, count: u32, rate: f64) -> Self {
        let random = StdRng::seed_from_u64(seed);
        Self(Arc::new(Mutex::new(State { random, left: count, rate })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }

    /// Returns the number of remaining panics.
    pub fn left(&self) -> u32 {
        self.state().left
    }

    /// Allows `count` more panics.
    pub fn more(&self, count: u32) {
        self.state().left += count;
    }

    /// Panics with the configured probability.
    pub fn maybe(&self) {
        let mut state = self.state();
        let rate = state.rate;
        if state.left > 0 && state.random.random_bool(rate) {
            state.left -= 1;
            drop(state);
            panic!("injected");
        }
    }

    /// Creates a client whose calls may panic before they are sent, before they are answered, and while the response is
    /// read.
    pub fn in_client(&self, transport: impl Transport, user_agent: &str) -> Client {
        self.in_calls(transport, user_agent, |_| true)
    }

    /// Creates a client in which only the calls that `which` selects may panic.
    pub fn in_calls(
        &self,
        transport: impl Transport,
        user_agent: &str,
        which: fn(&Request<Body>) -> bool,
    ) -> Client {
        let panicking = PanickingTransport { inner: transport, panics: self.clone(), which };
        Client::new(Arc::new(panicking), user_agent)
    }
}

struct PanickingTransport<T> {
    inner: T,
    panics: PanicInjector,
    which: fn(&Request<Body>) -> bool,
}

impl<T: Transport> Transport for PanickingTransport<T> {
    fn send(&self, request: Request<Body>) -> BoxFuture<'_, Result<Response<Body>, Error>> {
        if !(self.which)(&request) {
            return self.inner.send(request);
        }
        async move {
            self.panics.maybe();
            let response = self.inner.send(request).await?;
            self.panics.maybe();
            let panics = self.panics.clone();
            Ok(response.map(|body| {
                let frames = body.map_frame(move |frame| {
                    panics.maybe();
                    frame
                });
                frames.boxed_unsync()
            }))
        }
        .boxed()
    }
}
