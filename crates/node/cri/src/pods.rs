//! The Pods of the runtime: its sandboxes and containers by the labels of kubelets.

use std::collections::BTreeMap;

use crate::{client::Client, error::Error, labels};

/// The ID and state of one sandbox or container.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RuntimeObject {
    /// The ID of the sandbox or container.
    pub id: String,
    /// The state of a sandbox, or that of a container plus 10.
    pub state: i32,
}

/// A Pod as the container runtime has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimePod {
    /// The Pod's namespace.
    pub namespace: String,
    /// The Pod's name.
    pub name: String,
    /// The names of the Pod's containers.
    pub containers: Vec<String>,
    /// The Pod's sandboxes and containers in order.
    pub objects: Vec<RuntimeObject>,
}

impl Client {
    /// Returns all sandboxes and containers that kubelets have created, by Pod UID.
    pub async fn list_pods(&self) -> Result<BTreeMap<String, RuntimePod>, Error> {
        let mut pods: BTreeMap<String, RuntimePod> = BTreeMap::new();
        for sandbox in self.list_pod_sandboxes(None).await? {
            let Some(uid) = sandbox.labels.get(labels::POD_UID) else { continue };
            let pod = pods.entry(uid.clone()).or_default();
            pod.namespace = sandbox.labels.get(labels::POD_NAMESPACE).cloned().unwrap_or_default();
            pod.name = sandbox.labels.get(labels::POD_NAME).cloned().unwrap_or_default();
            pod.objects.push(RuntimeObject { id: sandbox.id, state: sandbox.state });
        }
        for container in self.list_containers(None).await? {
            let Some(uid) = container.labels.get(labels::POD_UID) else { continue };
            let pod = pods.entry(uid.clone()).or_default();
            pod.namespace =
                container.labels.get(labels::POD_NAMESPACE).cloned().unwrap_or_default();
            pod.name = container.labels.get(labels::POD_NAME).cloned().unwrap_or_default();
            pod.containers.extend(container.labels.get(labels::CONTAINER).cloned());
            pod.objects.push(RuntimeObject { id: container.id, state: container.state + 10 });
        }
        pods.values_mut().for_each(|pod| pod.objects.sort());
        Ok(pods)
    }
}
