//! What a request holds until its Service does.

use std::{
    net::IpAddr,
    sync::{Arc, Mutex},
};

use store::{Outcome, Write};
use tokio::sync::oneshot;

use super::{State, lock};
use crate::hub::Hub;

/// What one request has taken, given back when this is dropped. Its Service, once stored, holds what it uses.
pub(crate) struct Held {
    pub(super) state: Option<Arc<Mutex<State>>>,
    pub(super) addresses: Vec<IpAddr>,
    pub(super) ports: Vec<u16>,
}

impl Held {
    pub(super) fn nothing() -> Self {
        Self { state: None, addresses: Vec::new(), ports: Vec::new() }
    }

    /// Writes the Service that this was taken for, and gives it back once the Service that was stored holds it: it does
    /// when its change has come through the store, and somebody else would be given the same in between. A task of its
    /// own does so, because a client that goes away in the middle does not take the write back.
    pub(crate) async fn write(self, hub: &Arc<Hub>, write: Write) -> store::Result<Outcome> {
        if self.addresses.is_empty() && self.ports.is_empty() {
            return hub.write(write).await;
        }
        let (done, outcome) = oneshot::channel();
        let own = hub.clone();
        hub.tasks.spawn("write of a Service", async move {
            let outcome = own.write(write).await;
            if let Err(error) = own.caught_up().await {
                tracing::warn!(%error, "waiting for a Service to hold its addresses and ports");
            }
            drop(self);
            // Who asked may be gone.
            let _ = done.send(outcome);
        });
        outcome.await.unwrap_or(Err(store::Error::Unavailable {
            operation: "write",
            detail: "the server stops".to_owned(),
        }))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let Some(state) = &self.state else { return };
        let mut state = lock(state);
        self.addresses.iter().for_each(|a| State::less(&mut state.addresses, a));
        self.ports.iter().for_each(|p| State::less(&mut state.used_ports, p));
    }
}
