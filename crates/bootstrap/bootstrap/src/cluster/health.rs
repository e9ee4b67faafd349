//! Waits for the health checks of components.

use std::{sync::Arc, time::Duration};

use bootstrap_core::constants::KUBELET_HEALTH_PORT;
use client::{Client, ClientTls, HttpTransport};
use tokio::time::timeout;

use super::USER_AGENT;
use crate::{
    Error,
    containers::{Containers, last_words},
    service::KubeletService,
};

const POLL: Duration = Duration::from_millis(100);
const ANSWER: Duration = Duration::from_secs(5);

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

/// Waits until `target` is healthy. On a timeout, the error has the last answer and the container's last log lines.
pub async fn wait_for(
    target: &Target,
    patience: Duration,
    containers: &dyn Containers,
) -> Result<(), Error> {
    let Err(last) = answered(target, patience).await else { return Ok(()) };
    Err(not_up(target, patience, last, &last_words(containers, target.name).await))
}

/// Waits until the kubelet's health check succeeds.
pub async fn wait_for_kubelet(
    patience: Duration,
    service: &dyn KubeletService,
) -> Result<(), Error> {
    let server = format!("http://127.0.0.1:{KUBELET_HEALTH_PORT}");
    let target = Target { name: "the kubelet", server, path: "/healthz" };
    let answered = answered(&target, patience).await;
    answered.map_err(|last| not_up(&target, patience, last, &service.last_words()))
}

/// Checks that the kubelet answers. An error status counts as an answer: it may report a broken container runtime.
pub async fn ask_kubelet() -> Result<(), String> {
    let server = format!("http://127.0.0.1:{KUBELET_HEALTH_PORT}");
    let transport =
        HttpTransport::http1(&server, ClientTls::anyone()).map_err(|e| e.to_string())?;
    let client = Client::new(Arc::new(transport), USER_AGENT);
    match client.call(http::Method::GET, "/healthz", "", Default::default()).await {
        Ok(_) | Err(client::Error::Api { .. }) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

async fn answered(Target { server, path, .. }: &Target, patience: Duration) -> Result<(), String> {
    // The health check runs before any trust exists, against components on this machine, so it accepts every
    // certificate.
    let transport = HttpTransport::http1(server, ClientTls::anyone()).map_err(|e| e.to_string())?;
    let client = Client::new(Arc::new(transport), USER_AGENT);
    let ask = || async {
        let call = client.call(http::Method::GET, path, "", Default::default());
        match timeout(ANSWER, call).await {
            Ok(answer) => answer.map(drop).map_err(|e| e.to_string()),
            Err(_) => Err(format!("{server}{path} does not answer within {}s", ANSWER.as_secs())),
        }
    };
    rt::retry(patience, POLL, |_| true, ask).await
}

fn not_up(target: &Target, patience: Duration, last: String, words: &str) -> Error {
    Error::NotUp {
        what: target.name.to_owned(),
        waited: format!("{}s", patience.as_secs()),
        cause: format!("{last}; {words}"),
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
