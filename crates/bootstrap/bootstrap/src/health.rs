//! Waits for the health checks of components.

use std::{sync::Arc, time::Duration};

use bootstrap_core::constants::KUBELET_HEALTH_PORT;
use client::{Client, ClientTls, HttpTransport};
use tokio::time::timeout;

use crate::{
    Error,
    cluster::USER_AGENT,
    containers::{Containers, last_words},
};

const POLL: Duration = Duration::from_millis(100);
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);

/// A component with a health endpoint.
#[derive(Clone, Debug)]
pub struct Target {
    /// The name of the component.
    pub name: &'static str,
    /// The base URL: `https://host:port`, or `http://host:port` without TLS.
    pub server: String,
    /// The path of the health check.
    pub path: &'static str,
}

/// The error of one health check.
#[derive(Debug, thiserror::Error)]
pub enum HealthError {
    #[error(transparent)]
    Request(#[from] client::Error),
    #[error("{url} does not answer within {}s", RESPONSE_TIMEOUT.as_secs())]
    Timeout { url: String },
}

/// Waits until `target` is healthy. On a timeout, the error has the last answer and the container's last log lines.
pub async fn wait_for(
    target: &Target,
    patience: Duration,
    containers: &dyn Containers,
) -> Result<(), Error> {
    let Err(last) = poll(target, patience).await else { return Ok(()) };
    Err(not_up(target, patience, &last, &last_words(containers, target.name).await))
}

/// Waits until the kubelet's health check succeeds. `last_words` is called on a timeout and returns the end of its log.
pub async fn wait_for_kubelet(
    patience: Duration,
    last_words: impl FnOnce() -> String,
) -> Result<(), Error> {
    let target = Target { name: "the kubelet", server: kubelet_server(), path: "/healthz" };
    let polled = poll(&target, patience).await;
    polled.map_err(|last| not_up(&target, patience, &last, &last_words()))
}

/// Checks that the kubelet answers. An error status counts as an answer: it may report a broken container runtime.
pub async fn check_kubelet() -> Result<(), HealthError> {
    let client = client(&kubelet_server())?;
    match client.call(http::Method::GET, "/healthz", "", Default::default()).await {
        Ok(_) | Err(client::Error::Api { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn kubelet_server() -> String {
    format!("http://127.0.0.1:{KUBELET_HEALTH_PORT}")
}

fn client(server: &str) -> Result<Client, client::Error> {
    // The health check runs before any trust exists, against components on this machine, so it accepts every
    // certificate.
    let transport = HttpTransport::http1(server, ClientTls::anyone())?;
    Ok(Client::new(Arc::new(transport), USER_AGENT))
}

/// Waits until `target` is healthy, and returns the last error on a timeout.
async fn poll(Target { server, path, .. }: &Target, patience: Duration) -> Result<(), HealthError> {
    let client = client(server)?;
    let check = || async {
        let call = client.call(http::Method::GET, path, "", Default::default());
        match timeout(RESPONSE_TIMEOUT, call).await {
            Ok(response) => Ok(response.map(drop)?),
            Err(_) => Err(HealthError::Timeout { url: format!("{server}{path}") }),
        }
    };
    rt::retry(patience, POLL, |_| true, check).await
}

fn not_up(target: &Target, patience: Duration, last: &HealthError, hint: &str) -> Error {
    Error::NotUp {
        what: target.name.to_owned(),
        waited: format!("{}s", patience.as_secs()),
        cause: format!("{last}; {hint}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::containers::NoRuntime;

    #[tokio::test(flavor = "current_thread")]
    async fn explains_component_that_does_not_start() {
        let target =
            Target { name: "kube-apiserver", server: "https://127.0.0.1:1".into(), path: "/livez" };
        let error = wait_for(&target, Duration::from_millis(150), &NoRuntime("no socket".into()))
            .await
            .unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("kube-apiserver did not come up")
                && text.contains("refused")
                && text.contains("no socket"),
            "{text}"
        );
    }
}
