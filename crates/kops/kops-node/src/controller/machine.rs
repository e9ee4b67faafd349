//! Machines that send requests, and the queries to the cluster about them.

use api_meta::Timestamp;
use client::{Client, Resource};
use futures_util::future::BoxFuture;
use serde_json::Value;

/// A machine that sent a request, by its identity.
pub(super) struct RequestingMachine {
    pub(super) machine: String,
    pub(super) group: String,
    /// The creation time of the machine, if its identity has it. Its predecessor had ended by then.
    pub(super) created_at: Option<Timestamp>,
}

/// The queries to the cluster.
pub(super) trait Cluster: Send + Sync {
    /// Returns the object, or `None` if it does not exist.
    fn find<'a>(
        &'a self,
        resource: &'a Resource,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<Value>, client::Error>>;
}

impl Cluster for Client {
    fn find<'a>(
        &'a self,
        resource: &'a Resource,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<Value>, client::Error>> {
        Box::pin(async move {
            match self.get(resource, namespace, name).await {
                Ok(object) => Ok(Some(object)),
                Err(error) if error.is_not_found() => Ok(None),
                Err(error) => Err(error),
            }
        })
    }
}

/// Returns the group in a machine's name: the part before the number.
pub(super) fn group_of(machine: &str) -> Option<&str> {
    let (group, number) = machine.rsplit_once('-')?;
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    (is_number && !group.is_empty()).then_some(group)
}
