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

/// A component that answers when it is up.
#[derive(Clone, Debug)]
pub struct Target {
    pub name: &'static str,
    /// `https://host:port`, or without TLS `http://host:port`.
    pub server: String,
    pub path: &'static str,
}

/// Waits until `target` is healthy. When it does not get there, the error says what it said last and why.
pub async fn wait_for(
    target: &Target,
    patience: Duration,
    containers: &dyn Containers,
) -> Result<(), Error> {
    let Err(last) = answered(target, patience).await else { return Ok(()) };
    Err(not_up(target, patience, last, &last_words(containers, target.name).await))
}

/// Waits until the kubelet's own health check answers.
pub async fn wait_for_kubelet(
    patience: Duration,
    service: &dyn KubeletService,
) -> Result<(), Error> {
    let server = format!("http://127.0.0.1:{KUBELET_HEALTH_PORT}");
    let target = Target { name: "the kubelet", server, path: "/healthz" };
    let answered = answered(&target, patience).await;
    answered.map_err(|last| not_up(&target, patience, last, &service.last_words()))
}

/// Asks the kubelet for its health. Every answer is good enough: one that complains of the container runtime comes from a
/// kubelet that works.
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
    // Health is asked of this machine's own components, before and besides any trust.
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
    async fn what_does_not_come_up_is_explained() {
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
