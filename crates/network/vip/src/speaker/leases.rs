//! The Leases of nodes and addresses.

use std::{net::IpAddr, time::Duration};

use api_meta::{Timestamp, Tree as _};
use client::{Client, DeleteOptions, Error, NotFoundExt as _, Preconditions, Resource};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::{
    plan::{Change, FENCE},
    settings::SpeakerSettings,
    state::State,
    subject::{LABEL, Subject},
};

/// The longest wait for the releases at the end.
const END: Duration = Duration::from_secs(2);

/// Writes Leases for this node.
pub(super) struct Leases {
    client: Client,
    node: String,
    namespace: String,
    /// The last version of this node's Lease.
    own: Mutex<Option<Value>>,
}

impl Leases {
    pub(super) fn new(client: Client, settings: &SpeakerSettings) -> Self {
        let (node, namespace) = (settings.node.clone(), settings.namespace.clone());
        Self { client, node, namespace, own: Mutex::new(None) }
    }

    /// Renews this node's Lease. A silent server must not delay the next attempt beyond the fence.
    pub(super) async fn renew(&self) -> Result<(), Error> {
        let renewed = tokio::time::timeout(FENCE, self.try_renew()).await;
        renewed.unwrap_or_else(|_| Err(self.no_answer()))
    }

    fn no_answer(&self) -> Error {
        Error::Transport {
            operation: "renewing the Lease",
            target: format!("{}/{}", self.namespace, Subject::Node(self.node.clone()).name()),
            source: format!("no answer within {FENCE:?}").into(),
        }
    }

    async fn try_renew(&self) -> Result<(), Error> {
        let known = self.own.lock().take();
        let name = Subject::Node(self.node.clone()).name();
        let known = match known {
            Some(known) => Some(known),
            None => self.client.get(&Resource::LEASES, &self.namespace, &name).await.or_none()?,
        };
        let version = known.map(|lease: Value| lease["metadata"]["resourceVersion"].clone());
        let written = self.write(&name, version, &self.node).await?;
        *self.own.lock() = Some(written);
        Ok(())
    }

    /// Creates a Lease, or replaces the version that this node has seen.
    async fn write(
        &self,
        name: &str,
        version: Option<Value>,
        holder: &str,
    ) -> Result<Value, Error> {
        let now = Timestamp::from(rt::now()).micros();
        let mut lease = json!({
            "metadata": {"name": name, "namespace": self.namespace, "labels": {LABEL.0: LABEL.1}},
            "spec": {"holderIdentity": holder, "renewTime": now},
        });
        match version {
            Some(version) => {
                lease.put(&["metadata", "resourceVersion"], version);
                self.client.update(&Resource::LEASES, &self.namespace, name, &lease).await
            }
            None => self.client.create(&Resource::LEASES, &self.namespace, &lease).await,
        }
    }

    /// Changes the holder of an address, if it is still the one that the plan was made from.
    pub(super) async fn change(
        &self,
        state: &State,
        address: IpAddr,
        change: Change,
    ) -> Result<(), Error> {
        let subject = Subject::Address(address);
        let version = state.version(&subject);
        let name = subject.name();
        let work = async {
            match (change, version) {
                (Change::Take, version) => {
                    self.write(&name, version.map(Value::from), &self.node).await.map(drop)
                }
                (Change::Release, Some(version)) => {
                    self.write(&name, Some(version.into()), "").await.map(drop)
                }
                (Change::Delete, Some(version)) => {
                    let preconditions =
                        Some(Preconditions { uid: None, resource_version: Some(version) });
                    let options = DeleteOptions { preconditions, ..DeleteOptions::default() };
                    let leases = Resource::LEASES;
                    let deleted = self.client.delete(&leases, &self.namespace, &name, &options);
                    deleted.await.or_none().map(drop)
                }
                (Change::Release | Change::Delete, None) => Ok(()),
            }
        };
        let written = tokio::time::timeout(FENCE, work).await;
        written.unwrap_or_else(|_| Err(self.no_answer()))
    }

    /// Releases this node's addresses, so that other nodes take them at once.
    pub(super) async fn release(&self, state: &State) {
        let all = async {
            for address in state.held() {
                if let Err(error) = self.change(state, address, Change::Release).await {
                    tracing::info!(%address, %error, "another node takes the address after two seconds");
                }
            }
        };
        let _ = tokio::time::timeout(END, all).await;
    }
}
