//! Renews the node's Lease.

use std::time::Duration;

use api_meta::Timestamp;
use client::{Client, PatchKind, PatchTarget, Resource};
use serde_json::{Value, json};

/// The namespace of the Leases of all nodes.
const NAMESPACE: &str = "kube-node-lease";

/// The heartbeats of the node. They share no state with the rest of the kubelet that could delay them.
pub(crate) struct Heartbeats {
    pub(crate) client: Client,
    pub(crate) node: String,
    pub(crate) duration: Duration,
    pub(crate) clock: std::sync::Arc<dyn rt::Clock>,
}

impl Heartbeats {
    /// Renews the node's lease until shutdown, on a thread and runtime of its own.
    pub(crate) fn start(
        self,
        shutdown: rt::Shutdown,
    ) -> std::io::Result<std::thread::JoinHandle<()>> {
        std::thread::Builder::new().name("heartbeats".to_owned()).spawn(move || {
            match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => {
                    let beating = rt::until_it_ends("heartbeats", &self.node, || self.run());
                    let _stopped = runtime.block_on(shutdown.unless_stopping(beating));
                }
                Err(error) => tracing::error!(%error, "start the runtime of heartbeats"),
            }
        })
    }

    async fn run(&self) {
        let mut node_uid = None;
        let mut failures = rt::Backoff::new(Duration::from_millis(200), Duration::from_secs(7));
        loop {
            match self.renew(&mut node_uid).await {
                Ok(()) => {
                    failures.reset();
                    tokio::time::sleep(self.duration / 4).await;
                }
                Err(error) => {
                    tracing::warn!(node = %self.node, %error, "renew the node's lease");
                    tokio::time::sleep(failures.next(rt::random())).await;
                }
            }
        }
    }

    async fn renew(&self, node_uid: &mut Option<String>) -> Result<(), client::Error> {
        let now = Timestamp::from(self.clock.now()).micros();
        let at = PatchTarget { namespace: NAMESPACE, name: &self.node, subresource: "" };
        let patch = json!({ "spec": {
            "renewTime": now,
            "holderIdentity": self.node,
            "leaseDurationSeconds": self.duration.as_secs(),
        } });
        match self.client.patch::<Value>(&Resource::LEASES, at, PatchKind::Merge, &patch).await {
            Err(error) if error.is_not_found() => {}
            other => return other.map(drop),
        }
        if node_uid.is_none() {
            let node: Value = self.client.get(&Resource::NODES, "", &self.node).await?;
            *node_uid = node["metadata"]["uid"].as_str().map(str::to_owned);
        }
        // The owner reference deletes the Lease together with the Node.
        let owner =
            json!({ "apiVersion": "v1", "kind": "Node", "name": self.node, "uid": node_uid });
        let lease = json!({
            "metadata": { "name": self.node, "namespace": NAMESPACE, "ownerReferences": [owner] },
            "spec": patch["spec"],
        });
        self.client.create::<_, Value>(&Resource::LEASES, NAMESPACE, &lease).await.map(drop)
    }
}
