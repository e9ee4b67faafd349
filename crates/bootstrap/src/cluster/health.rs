use std::{sync::Arc, time::Duration};

use bootstrap_core::constants::KUBELET_HEALTH_PORT;
use client::{Client, HttpTransport, TlsMaterial};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use super::USER_AGENT;
use crate::{
    Error,
    containers::{Containers, last_words},
    service::KubeletService,
};

const POLL: Duration = Duration::from_millis(100);
const ANSWER: Duration = Duration::from_secs(5);

/// A component that answers on HTTPS when it is up.
#[derive(Clone, Debug)]
pub struct Target {
    pub name: &'static str,
    /// `https://host:port`
    pub server: String,
    pub path: &'static str,
}

/// Waits until `target` is healthy. When it does not get there, the error says what it said last and why.
pub async fn wait_for(
    target: &Target,
    patience: Duration,
    containers: &dyn Containers,
) -> Result<(), Error> {
    // Health is asked of this machine's own components, before and besides any trust.
    let tls = TlsMaterial { insecure: true, ..TlsMaterial::default() }.client_config();
    let failed = |reason: String| Error::NotUp {
        what: target.name.to_owned(),
        waited: "0s".to_owned(),
        cause: reason,
    };
    let tls = tls.map_err(|e| failed(e.to_string()))?;
    let transport =
        HttpTransport::new(&target.server, tls, None).map_err(|e| failed(e.to_string()))?;
    let client = Client::new(Arc::new(transport), USER_AGENT);
    let ask = || async {
        let call = client.call(http::Method::GET, target.path, "", Default::default());
        match timeout(ANSWER, call).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(e)) => Err(e.to_string()),
            Err(_) => Err(format!(
                "{}{} does not answer within {}s",
                target.server,
                target.path,
                ANSWER.as_secs()
            )),
        }
    };
    match rt::retry(patience, POLL, |_| true, ask).await {
        Ok(()) => Ok(()),
        Err(last) => Err(Error::NotUp {
            what: target.name.to_owned(),
            waited: format!("{}s", patience.as_secs()),
            cause: format!("{last}; {}", last_words(containers, target.name).await),
        }),
    }
}

/// Waits until the kubelet's own health check answers.
pub async fn wait_for_kubelet(
    patience: Duration,
    service: &dyn KubeletService,
) -> Result<(), Error> {
    let ask = || async {
        match timeout(ANSWER, kubelet_health()).await {
            Ok(answer) => answer,
            Err(_) => Err("http://127.0.0.1:10248/healthz does not answer".to_owned()),
        }
    };
    rt::retry(patience, POLL, |_| true, ask).await.map_err(|last| Error::NotUp {
        what: "the kubelet".to_owned(),
        waited: format!("{}s", patience.as_secs()),
        cause: format!("{last}; {}", service.last_words()),
    })
}

async fn kubelet_health() -> Result<(), String> {
    let mut stream = TcpStream::connect(("127.0.0.1", KUBELET_HEALTH_PORT))
        .await
        .map_err(|e| format!("http://127.0.0.1:{KUBELET_HEALTH_PORT}/healthz: {e}"))?;
    let request = "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).await.map_err(|e| e.to_string())?;
    let mut answer = [0; 256];
    let length = stream.read(&mut answer).await.map_err(|e| e.to_string())?;
    let line = String::from_utf8_lossy(&answer[..length]);
    let line = line.lines().next().unwrap_or_default();
    if line.split(' ').nth(1) == Some("200") {
        Ok(())
    } else {
        Err(format!("its health check answers {line:?}"))
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
