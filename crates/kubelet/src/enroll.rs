//! TLS bootstrap: a machine with a token becomes a node with a certificate.

use std::{
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use client::{Client, Resource};
use pki::{Key, KeyAlgorithm, SigningRequest, Subject};
use serde_json::{Value, json};

use crate::Args;

const SIGNER: &str = "kubernetes.io/kube-apiserver-client-kubelet";
const LOOK: Duration = Duration::from_millis(200);
/// How long to wait before a server that does not answer is asked again: it may be one that this kubelet starts.
const AGAIN: Duration = Duration::from_millis(500);

#[derive(Debug, thiserror::Error)]
pub enum EnrollError {
    #[error("read the bootstrap kubeconfig: {0}")]
    Kubeconfig(#[from] client::KubeconfigError),
    #[error(transparent)]
    Config(#[from] api_config::Error),
    #[error("ask for a client certificate: {0}")]
    Api(#[from] client::Error),
    #[error(transparent)]
    Pki(#[from] pki::Error),
    #[error("the request for a client certificate, {name}, was {what}: {message}")]
    Refused { name: String, what: &'static str, message: String },
    #[error("the certificate that was issued for {name} cannot be read: {message}")]
    Unreadable { name: String, message: String },
    #[error("link {}: {source}", path.display())]
    Link { path: PathBuf, source: std::io::Error },
}

/// Makes the kubeconfig that `--kubeconfig` names if it is missing, by asking for a certificate with the bootstrap
/// one. Waits until the request is approved.
pub async fn enroll(args: &Args) -> Result<(), EnrollError> {
    let (Some(kubeconfig), Some(bootstrap)) = (&args.kubeconfig, &args.bootstrap_kubeconfig) else {
        return Ok(());
    };
    if kubeconfig.exists() {
        return Ok(());
    }
    let node = args.node_name();
    let client = Client::from_kubeconfig_file(bootstrap, "kubelet-bootstrap")?;
    let key = Key::generate(KeyAlgorithm::EcdsaP256)?;
    tracing::info!(node, "ask for the node's client certificate; it has to be approved");
    let certificate = loop {
        match obtain(&client, &node, &key).await {
            Err(EnrollError::Api(error)) if is_passing(&error) => {
                tracing::debug!(%error, "ask for the node's client certificate again");
                tokio::time::sleep(AGAIN).await;
            }
            result => break result?,
        }
    };
    let current = keep(&args.cert_dir(), &certificate, &key)?;
    // The new file leads to the same cluster with the new identity, which is read from where renewals put it.
    let old = api_config::Kubeconfig::load(bootstrap)?;
    let identity = current.display().to_string();
    let user = api_config::kubeconfig::User {
        client_certificate: identity.clone(),
        client_key: identity,
        ..Default::default()
    };
    let cluster = old.current()?.cluster.clone();
    api_config::Kubeconfig::single("default-cluster", cluster, "default-auth", user)
        .write(kubeconfig)?;
    Ok(())
}

/// Whether a server that is starting may answer otherwise in a moment.
fn is_passing(error: &client::Error) -> bool {
    matches!(error, client::Error::Transport { .. })
        || error.is_too_many_requests()
        || error.code().is_some_and(|code| code >= 500)
}

/// Asks for a node's certificate and waits until it is there, refused or failed.
async fn obtain(client: &Client, node: &str, key: &Key) -> Result<String, EnrollError> {
    let subject = Subject::new(format!("system:node:{node}")).in_group("system:nodes");
    let request = SigningRequest::create(&subject, &[], key)?;
    let object = json!({
        "metadata": { "generateName": "csr-" },
        "spec": {
            "request": STANDARD.encode(request.to_pem()),
            "signerName": SIGNER,
            "usages": ["digital signature", "client auth"],
        },
    });
    let csrs = &Resource::CERTIFICATE_SIGNING_REQUESTS;
    let made: Value = client.create(csrs, "", &object).await?;
    let name = made["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    loop {
        let now: Value = client.get(csrs, "", &name).await?;
        let conditions = now["status"]["conditions"].as_array();
        for (kind, what) in [("Denied", "denied"), ("Failed", "not signed")] {
            let found = conditions
                .into_iter()
                .flatten()
                .find(|c| c["type"] == kind && c["status"] != "False");
            if let Some(condition) = found {
                let message = condition["message"].as_str().unwrap_or_default().to_owned();
                return Err(EnrollError::Refused { name, what, message });
            }
        }
        if let Some(encoded) = now["status"]["certificate"].as_str() {
            let unreadable =
                |message: String| EnrollError::Unreadable { name: name.clone(), message };
            let pem = STANDARD.decode(encoded).map_err(|e| unreadable(e.to_string()))?;
            let pem = String::from_utf8(pem).map_err(|e| unreadable(e.to_string()))?;
            pki::Cert::from_pem(&pem)?.check_key(key)?;
            return Ok(pem);
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Keeps a certificate and its key in one file, to which the name of the current one leads.
fn keep(dir: &Path, certificate: &str, key: &Key) -> Result<PathBuf, EnrollError> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let at = pod_core::Timestamp::from_second(i64::try_from(since.as_secs()).unwrap_or(0))
        .unwrap_or_default();
    let name = format!("kubelet-client-{}.pem", at.strftime("%Y-%m-%d-%H-%M-%S"));
    let content = format!("{certificate}{}", key.to_pem()?);
    pki::write_file(&dir.join(&name), content.as_bytes(), pki::KEY_MODE)?;
    let current = dir.join("kubelet-client-current.pem");
    let next = dir.join("kubelet-client-current.pem.new");
    let link = |source| EnrollError::Link { path: current.clone(), source };
    match std::fs::remove_file(&next) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(link(error)),
        _ => {}
    }
    std::os::unix::fs::symlink(&name, &next).map_err(link)?;
    std::fs::rename(&next, &current).map_err(link)?;
    Ok(current)
}

#[cfg(test)]
mod tests {
    use client::Patched;
    use pki::{Authority, Usage, Validity};
    use testkit::FakeApi;

    use super::*;

    /// Answers the one request with a certificate, or with a refusal.
    async fn answer(api: &FakeApi, deny: bool) {
        let csrs = &Resource::CERTIFICATE_SIGNING_REQUESTS;
        api.until("a request is made", |api| !api.list(csrs, "").is_empty()).await;
        let request = api.list(csrs, "").remove(0);
        let status = if deny {
            json!({ "conditions": [{ "type": "Denied", "status": "True", "message": "unknown machine" }] })
        } else {
            let pem = STANDARD.decode(request["spec"]["request"].as_str().unwrap()).unwrap();
            let csr = SigningRequest::from_pem(std::str::from_utf8(&pem).unwrap()).unwrap();
            let validity = Validity::starting(SystemTime::now(), Duration::from_secs(3600));
            let ca = Authority::create("ca", KeyAlgorithm::EcdsaP256, validity).unwrap();
            let cert = ca.sign_request(&csr, Usage::Client, validity).unwrap();
            json!({ "certificate": STANDARD.encode(cert.to_pem()) })
        };
        let name = request["metadata"]["name"].as_str().unwrap();
        let at = Patched { namespace: "", name, subresource: "status" };
        api.merge(csrs, at, json!({ "status": status })).await;
    }

    #[tokio::test]
    async fn an_approved_request_gives_the_nodes_certificate_and_a_denied_one_its_cause() {
        for deny in [false, true] {
            let api = FakeApi::default();
            let client = api.client("kubelet-bootstrap");
            let key = Key::generate(KeyAlgorithm::EcdsaP256).unwrap();
            let (got, ()) = tokio::join!(obtain(&client, "n1", &key), answer(&api, deny));
            if deny {
                assert!(got.unwrap_err().to_string().ends_with("denied: unknown machine"));
                continue;
            }
            let subject = pki::Cert::from_pem(&got.unwrap()).unwrap().identity().unwrap();
            assert_eq!(subject, Subject::new("system:node:n1").in_group("system:nodes"));
        }
    }

    #[test]
    fn the_current_identity_is_a_link_that_renewals_move() {
        let dir = tempfile::tempdir().unwrap();
        let key = Key::generate(KeyAlgorithm::EcdsaP256).unwrap();
        for certificate in ["first\n", "second\n"] {
            let current = keep(dir.path(), certificate, &key).unwrap();
            assert!(std::fs::read_to_string(&current).unwrap().starts_with(certificate));
            assert!(current.is_symlink());
        }
    }
}
