//! Sends Events to the API in the background.

use client::{Client, PatchKind, PatchTarget, Resource};
use serde_json::Value;
use tokio::sync::mpsc;

use crate::{
    correlator::{Correlator, Decision},
    occurrence::{EventKind, ObjectRef, Occurrence},
};

/// The number of occurrences that wait to be sent. Further ones are dropped, because Events are not state.
const QUEUE: usize = 1000;

/// Records Events of one component. Cheap to clone.
#[derive(Clone)]
pub struct EventRecorder {
    sender: mpsc::Sender<Occurrence>,
}

impl EventRecorder {
    /// Starts a recorder. `component` is shown under From by `kubectl describe`.
    pub fn start(client: Client, component: &str, host: &str, tasks: &rt::Tasks) -> Self {
        let (sender, receiver) = mpsc::channel(QUEUE);
        let correlator = Correlator::new(component, host);
        tasks.spawn_until_shutdown(
            &format!("events of {component}"),
            send(client, correlator, receiver),
        );
        Self { sender }
    }

    /// Records a normal occurrence. `reason` is one word in upper camel case.
    pub fn normal(&self, regarding: ObjectRef, reason: &str, message: impl Into<String>) {
        self.record(EventKind::Normal, regarding, reason, message.into());
    }

    /// Records a problem. `reason` is one word in upper camel case.
    pub fn warning(&self, regarding: ObjectRef, reason: &str, message: impl Into<String>) {
        self.record(EventKind::Warning, regarding, reason, message.into());
    }

    fn record(&self, kind: EventKind, regarding: ObjectRef, reason: &str, mut message: String) {
        // The API rejects longer messages.
        if message.len() > 1024 {
            let cut = (0..=1021).rev().find(|at| message.is_char_boundary(*at)).unwrap_or(0);
            message.truncate(cut);
            message.push_str("...");
        }
        let occurrence = Occurrence { regarding, kind, reason: reason.to_owned(), message };
        if self.sender.try_send(occurrence).is_err() {
            tracing::debug!(reason, "dropped an event: too many wait to be sent");
        }
    }
}

async fn send(
    client: Client,
    mut correlator: Correlator,
    mut occurrences: mpsc::Receiver<Occurrence>,
) {
    while let Some(occurrence) = occurrences.recv().await {
        // An Event whose sending panics is lost.
        let sent = send_one(&client, &mut correlator, &occurrence);
        let _ = rt::catch("events", &occurrence.reason, sent).await;
    }
}

async fn send_one(client: &Client, correlator: &mut Correlator, occurrence: &Occurrence) {
    let result = match correlator.decide(occurrence, rt::now().into()) {
        Decision::Drop => return,
        Decision::Create { namespace, event } => create(client, &namespace, &event).await,
        Decision::Count { namespace, name, patch, event } => {
            let at = PatchTarget { namespace: &namespace, name: &name, subresource: "" };
            match client.patch::<Value>(&Resource::EVENTS, at, PatchKind::Merge, &patch).await {
                Err(error) if error.is_not_found() => create(client, &namespace, &event).await,
                other => other.map(drop),
            }
        }
    };
    if let Err(error) = result {
        // A terminating namespace accepts no new Events, which needs no warning.
        tracing::debug!(object = %occurrence.regarding.name, reason = occurrence.reason, %error, "event not sent");
    }
}

async fn create(client: &Client, namespace: &str, event: &Value) -> Result<(), client::Error> {
    client.create::<_, Value>(&Resource::EVENTS, namespace, event).await.map(drop)
}
