//! TLS bootstrap: a machine with a token becomes a node with a certificate.

use std::{
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use client::{Client, Resource};
use pki::{Key, KeyAlgorithm, SigningRequest, Subject};
use serde_json::{Value, json};

use crate::{Args, Config, Error, run};

const SIGNER: &str = "kubernetes.io/kube-apiserver-client-kubelet";
const LOOK: Duration = Duration::from_millis(200);
/// How long to wait before a server that does not answer is asked again: it may be one that this kubelet starts.
const AGAIN: Duration = Duration::from_millis(500);
/// How long the kubelet without a certificate has to end when there is one.
const ENDED: Duration = Duration::from_secs(5);
const FAILED: Duration = Duration::from_secs(10);
/// A clock that was set is noticed after this long.
const REVIEW: Duration = Duration::from_secs(3600);
const CURRENT: &str = "kubelet-client-current.pem";

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
/// one. Waits until the request is approved, or shutdown begins.
///
/// A joining control plane's certificate comes from an API server that this kubelet has to start: until it is there, static
/// Pods run and nothing else. The kubelet after it adopts them.
pub async fn enroll(args: &Args, tasks: &rt::Tasks) -> Result<(), Error> {
    if !args.wants_enrolling() {
        return Ok(());
    }
    let alone = rt::Tasks::new(tasks.shutdown().child());
    let statics = run(Config::from_args(args)?, None, &alone);
    let enrolled = tokio::select! {
        enrolled = ask(args) => enrolled.map_err(Error::from),
        ended = statics => ended,
    };
    alone.drain(ENDED).await;
    enrolled
}

async fn ask(args: &Args) -> Result<(), EnrollError> {
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

/// The kubelet's own renewal of its client certificate, long before its end: each node at a time of its own, so that
/// they do not all ask at once. A certificate that came with the kubeconfig is replaced at once, as upstream's
/// kubelet does, so that it is never the only one.
pub async fn keep_enrolled(args: Args, client: Client, clock: std::sync::Arc<dyn rt::Clock>) {
    let (node, dir) = (args.node_name(), args.cert_dir());
    loop {
        match renewal(&dir.join(CURRENT), &node, clock.now()) {
            Ok(wait) if !wait.is_zero() => {
                tokio::time::sleep(wait.min(REVIEW)).await;
                continue;
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "read the node's client certificate"),
        }
        let renewed = async {
            let key = Key::generate(KeyAlgorithm::EcdsaP256)?;
            let certificate = obtain(&client, &node, &key).await?;
            keep(&dir, &certificate, &key)
        };
        match renewed.await {
            Ok(path) => {
                tracing::info!(node, path = %path.display(), "the node's client certificate is renewed");
            }
            // A first control plane's kubelet asks before the API server that it starts is up, and `init` waits for it.
            Err(EnrollError::Api(error)) if is_passing(&error) => {
                tracing::debug!(node, %error, "renew the node's client certificate again");
                tokio::time::sleep(AGAIN).await;
            }
            Err(error) => {
                tracing::warn!(node, %error, "renew the node's client certificate; trying again");
                tokio::time::sleep(FAILED).await;
            }
        }
    }
}

/// How long until the certificate is to be renewed: when 70 to 90 % of its life are over.
fn renewal(current: &Path, node: &str, now: SystemTime) -> Result<Duration, EnrollError> {
    if !current.exists() {
        return Ok(Duration::ZERO);
    }
    let info = pki::read_cert(current)?.info()?;
    let life = info.not_after.duration_since(info.not_before).unwrap_or_default();
    let hash =
        node.bytes().fold(0u32, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
    let due = info.not_before + life * (700 + hash % 200) / 1000;
    Ok(due.duration_since(now).unwrap_or_default())
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
    let current = dir.join(CURRENT);
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
            let csr =
                SigningRequest::from_base64(request["spec"]["request"].as_str().unwrap()).unwrap();
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
            let subject = pki::Cert::from_pem(&got.unwrap()).unwrap().info().unwrap().subject;
            assert_eq!(subject, Subject::new("system:node:n1").in_group("system:nodes"));
        }
    }

    #[test]
    fn a_certificate_is_renewed_long_before_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let current = dir.path().join(CURRENT);
        let start = UNIX_EPOCH + Duration::from_secs(1_790_000_000);
        let year = Duration::from_secs(365 * 86_400);
        assert_eq!(renewal(&current, "n1", start).unwrap(), Duration::ZERO, "there is none yet");
        let validity = Validity::starting(start, year);
        let ca = Authority::create("ca", KeyAlgorithm::EcdsaP256, validity).unwrap();
        pki::write_cert(&current, ca.cert()).unwrap();
        for node in ["n1", "n2", "a-longer-name"] {
            let wait = renewal(&current, node, start).unwrap();
            assert!(wait > year * 69 / 100 && wait < year * 91 / 100, "{node}: {wait:?}");
            assert_eq!(renewal(&current, node, start + year).unwrap(), Duration::ZERO);
        }
        assert_ne!(
            renewal(&current, "n1", start).unwrap(),
            renewal(&current, "n2", start).unwrap()
        );
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
