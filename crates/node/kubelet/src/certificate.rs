//! Requests the kubelet's own certificates from the cluster, stores them in files, and renews them.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use api_meta::Tree as _;
use base64::{Engine, engine::general_purpose::STANDARD};
use client::{Client, ListOptions, Resource, WatchEvent};
use pki::{AltName, Key, KeyAlgorithm, SigningRequest, Subject};
use serde_json::{Value, json};

use crate::error::EnrollError;

/// The delay before a request to an unreachable API server is repeated. The server may be one that this kubelet starts.
pub(crate) const RETRY_DELAY: Duration = Duration::from_millis(500);
/// The time that a request may wait for approval before a new request replaces it.
const APPROVAL_TIMEOUT: Duration = Duration::from_secs(15 * 60);
/// The first and the longest delay after a refused request.
const REFUSAL_DELAYS: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(32));
/// The longest sleep between two checks of the expiry, so that a change of the system clock is noticed.
const REVIEW: Duration = Duration::from_secs(3600);

/// The numbers of failed renewals in this process.
pub(crate) struct RenewErrors {
    pub(crate) client: AtomicU64,
    pub(crate) serving: AtomicU64,
}

/// The failed renewals, for metrics. The client certificate is renewed outside of [`crate::run`].
pub(crate) static RENEW_ERRORS: RenewErrors =
    RenewErrors { client: AtomicU64::new(0), serving: AtomicU64::new(0) };

/// A certificate of the node: signer, usage, subject names and file names.
#[derive(Clone, Debug)]
pub(crate) struct Certificate {
    signer: &'static str,
    /// The extended key usage, as spelled in CertificateSigningRequests.
    usage: &'static str,
    /// The prefix of the file names.
    prefix: &'static str,
    node: String,
    names: Vec<AltName>,
}

impl Certificate {
    /// Returns the client certificate with which the kubelet authenticates to the API server.
    pub(crate) fn client(node: String) -> Self {
        let signer = "kubernetes.io/kube-apiserver-client-kubelet";
        Self { signer, usage: "client auth", prefix: "kubelet-client", node, names: Vec::new() }
    }

    /// Returns the serving certificate for the node's name and addresses (`serverTLSBootstrap`).
    pub(crate) fn serving(node: String, addresses: &[String]) -> Self {
        let signer = "kubernetes.io/kubelet-serving";
        let ips = addresses.iter().filter_map(|ip| ip.parse().ok()).map(AltName::Ip);
        let names = std::iter::once(AltName::dns(&node)).chain(ips).collect();
        Self { signer, usage: "server auth", prefix: "kubelet-server", node, names }
    }

    /// Returns the path of the symbolic link to the newest file, which holds certificate and key.
    pub(crate) fn current(&self, dir: &Path) -> PathBuf {
        dir.join(format!("{}-current.pem", self.prefix))
    }

    /// Renews the certificate long before it expires. Each node renews at a different time, which spreads the requests.
    /// A missing certificate, or one that lacks a name, is requested immediately.
    pub(crate) async fn keep_current(
        self,
        dir: PathBuf,
        client: Client,
        clock: Arc<dyn rt::Clock>,
    ) {
        let (node, usage) = (&self.node, self.usage);
        let mut failures = rt::Backoff::new(REFUSAL_DELAYS.0, REFUSAL_DELAYS.1);
        loop {
            match self.renewal(&dir, clock.now()) {
                Ok(wait) if !wait.is_zero() => {
                    failures.reset();
                    tokio::time::sleep(wait.min(REVIEW)).await;
                    continue;
                }
                Ok(_) => {}
                Err(error) => tracing::warn!(%error, usage, "read the node's certificate"),
            }
            match self.renew(&dir, &client, clock.now()).await {
                Ok(path) => {
                    tracing::info!(node, usage, path = %path.display(), "the node's certificate is renewed");
                    // A certificate that lacks a name is requested again after a delay, as after a refusal.
                    tokio::time::sleep(failures.next(rt::random())).await;
                }
                // The kubelet of a first control plane starts before the API server that it runs, and `init` waits for
                // it.
                Err(EnrollError::Api(error)) if is_transient(&error) => {
                    tracing::debug!(node, usage, %error, "renew the node's certificate again");
                    tokio::time::sleep(RETRY_DELAY).await;
                }
                Err(error) => {
                    let RenewErrors { client, serving } = &RENEW_ERRORS;
                    let errors = if self.names.is_empty() { client } else { serving };
                    errors.fetch_add(1, Ordering::Relaxed);
                    tracing::warn!(node, usage, %error, "renew the node's certificate; trying again");
                    tokio::time::sleep(failures.next(rt::random())).await;
                }
            }
        }
    }

    async fn renew(
        &self,
        dir: &Path,
        client: &Client,
        now: SystemTime,
    ) -> Result<PathBuf, EnrollError> {
        let key = Key::generate(KeyAlgorithm::EcdsaP256)?;
        let certificate =
            tokio::time::timeout(APPROVAL_TIMEOUT, self.request(client, &key)).await.map_err(
                |_| EnrollError::Unanswered { usage: self.usage, after: APPROVAL_TIMEOUT },
            )??;
        self.keep(dir, &certificate, &key, now)
    }

    /// Returns the time until the renewal is due: after 70 to 90 % of the lifetime, or immediately if a name is
    /// missing.
    fn renewal(&self, dir: &Path, now: SystemTime) -> Result<Duration, EnrollError> {
        let current = self.current(dir);
        if !current.exists() {
            return Ok(Duration::ZERO);
        }
        let certificate = pki::read_cert(&current)?;
        if certificate.check_names(&self.names).is_err() {
            return Ok(Duration::ZERO);
        }
        let info = certificate.info()?;
        let life = info.not_after.duration_since(info.not_before).unwrap_or_default();
        let hash = (self.node.bytes())
            .fold(0u32, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
        let due = info.not_before + life * (700 + hash % 200) / 1000;
        Ok(due.duration_since(now).unwrap_or_default())
    }

    /// Creates a CertificateSigningRequest and waits until it is issued, denied or failed.
    pub(crate) async fn request(&self, client: &Client, key: &Key) -> Result<String, EnrollError> {
        let subject = Subject::new(format!("system:node:{}", self.node)).in_group("system:nodes");
        let request = SigningRequest::create(&subject, &self.names, key)?;
        let object = json!({
            "metadata": { "generateName": "csr-" },
            "spec": {
                "request": STANDARD.encode(request.to_pem()),
                "signerName": self.signer,
                "usages": ["digital signature", self.usage],
            },
        });
        let csrs = &Resource::CERTIFICATE_SIGNING_REQUESTS;
        let mut now: Value = client.create(csrs, "", &object).await?;
        let name = now.name().to_owned();
        let only = ListOptions::fields(&format!("metadata.name={name}"));
        loop {
            if let Some(certificate) = issued_certificate(&name, &now, key)? {
                return Ok(certificate);
            }
            let revision = now.text("metadata.resourceVersion").to_owned();
            let mut changes = client.watch(csrs, "", &only, &revision).await?;
            while let Some(Ok(change)) = changes.next().await {
                if let WatchEvent::Added(object) | WatchEvent::Modified(object) = change
                    && let Ok(now) = serde_json::from_slice(&object)
                    && let Some(certificate) = issued_certificate(&name, &now, key)?
                {
                    return Ok(certificate);
                }
            }
            // The watch ended, perhaps because the request was deleted. Read the request and watch it again.
            tokio::time::sleep(RETRY_DELAY).await;
            now = client.get(csrs, "", &name).await?;
        }
    }

    /// Writes certificate and key to a new file and moves the link of the current certificate to it.
    pub(crate) fn keep(
        &self,
        dir: &Path,
        certificate: &str,
        key: &Key,
        now: SystemTime,
    ) -> Result<PathBuf, EnrollError> {
        let at = pod_core::timestamp(now).strftime("%Y-%m-%d-%H-%M-%S");
        let name = format!("{}-{at}.pem", self.prefix);
        let content = format!("{certificate}{}", key.to_pem()?);
        pki::write_file(&dir.join(&name), content.as_bytes(), pki::KEY_MODE)?;
        let current = self.current(dir);
        let next = current.with_extension("pem.new");
        let link = |source| EnrollError::Link { path: current.clone(), source };
        match std::fs::remove_file(&next) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(link(error)),
            _ => {}
        }
        std::os::unix::fs::symlink(&name, &next).map_err(link)?;
        std::fs::rename(&next, &current).map_err(link)?;
        Ok(current)
    }
}

/// Reports whether an error may pass without intervention, for example while the API server starts.
pub(crate) fn is_transient(error: &client::Error) -> bool {
    matches!(error, client::Error::Transport { .. })
        || error.is_too_many_requests()
        || error.code().is_some_and(|code| code >= 500)
}

/// Returns the certificate issued for a request, or `None` while the request is pending.
fn issued_certificate(
    name: &str,
    request: &Value,
    key: &Key,
) -> Result<Option<String>, EnrollError> {
    let status = &request["status"];
    let conditions = status["conditions"].as_array();
    for (kind, what) in [("Denied", "denied"), ("Failed", "not signed")] {
        let is_so = |c: &&Value| c["type"] == kind && c["status"] != "False";
        if let Some(condition) = conditions.into_iter().flatten().find(is_so) {
            let (name, message) = (name.to_owned(), condition.text("message").to_owned());
            return Err(EnrollError::Refused { name, what, message });
        }
    }
    let Some(encoded) = status["certificate"].as_str() else { return Ok(None) };
    let unreadable = |message| EnrollError::Unreadable { name: name.to_owned(), message };
    let pem = STANDARD.decode(encoded).map_err(|e| unreadable(e.to_string()))?;
    let pem = String::from_utf8(pem).map_err(|e| unreadable(e.to_string()))?;
    pki::Cert::from_pem(&pem)?.check_key(key)?;
    Ok(Some(pem))
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use client::PatchTarget;
    use pki::{Authority, Usage, Validity};
    use testkit::FakeApi;

    use super::*;

    const YEAR: Duration = Duration::from_secs(365 * 86_400);

    fn start() -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(1_790_000_000)
    }

    fn client_of(node: &str) -> Certificate {
        Certificate::client(node.to_owned())
    }

    fn serving(addresses: &[&str]) -> Certificate {
        let addresses: Vec<_> = addresses.iter().map(ToString::to_string).collect();
        Certificate::serving("n1".to_owned(), &addresses)
    }

    /// Answers the newest request with a certificate or a denial, and returns the request.
    async fn answer(api: &FakeApi, count: usize, usage: Usage, denied: bool) -> Value {
        let csrs = &Resource::CERTIFICATE_SIGNING_REQUESTS;
        let open = |request: &Value| request["status"].get("certificate").is_none();
        api.until("a request is made", |api| {
            let all = api.list(csrs, "");
            all.len() == count && all.iter().any(open)
        })
        .await;
        let request = api.list(csrs, "").into_iter().find(open).unwrap();
        let status = if denied {
            json!({ "conditions": [{ "type": "Denied", "status": "True", "message": "unknown machine" }] })
        } else {
            let csr =
                SigningRequest::from_base64(request["spec"]["request"].as_str().unwrap()).unwrap();
            let validity = Validity::starting(SystemTime::now(), YEAR);
            let ca = Authority::create("ca", KeyAlgorithm::EcdsaP256, validity).unwrap();
            let cert = ca.sign_request(&csr, usage, validity).unwrap();
            json!({ "certificate": STANDARD.encode(cert.to_pem()) })
        };
        let name = request["metadata"]["name"].as_str().unwrap();
        let at = PatchTarget { namespace: "", name, subresource: "status" };
        api.merge(csrs, at, json!({ "status": status })).await;
        request
    }

    #[tokio::test]
    async fn returns_issued_certificate_or_the_cause_of_denial() {
        for denied in [false, true] {
            let api = FakeApi::default();
            let client = api.client("kubelet-bootstrap");
            let key = Key::generate(KeyAlgorithm::EcdsaP256).unwrap();
            let wanted = client_of("n1");
            let (got, _) =
                tokio::join!(wanted.request(&client, &key), answer(&api, 1, Usage::Client, denied));
            if denied {
                assert!(got.unwrap_err().to_string().ends_with("denied: unknown machine"));
                continue;
            }
            let subject = pki::Cert::from_pem(&got.unwrap()).unwrap().info().unwrap().subject;
            assert_eq!(subject, Subject::new("system:node:n1").in_group("system:nodes"));
        }
    }

    #[tokio::test]
    async fn requests_serving_certificate_again_for_new_address() {
        let (api, dir) = (FakeApi::default(), tempfile::tempdir().unwrap());
        let mut requests = Vec::new();
        for addresses in [&["192.0.2.7"][..], &["192.0.2.7", "2001:db8::7"]] {
            let wanted = serving(addresses);
            let tasks = rt::Tasks::new(rt::Shutdown::new());
            let (client, clock) = (api.client("kubelet"), Arc::new(rt::SystemClock));
            let (own, at) = (wanted.clone(), dir.path().to_owned());
            tasks.keep("serving certificate", move || {
                own.clone().keep_current(at.clone(), client.clone(), clock.clone())
            });
            let request = answer(&api, requests.len() + 1, Usage::Server, false).await;
            assert_eq!(request["spec"]["signerName"], "kubernetes.io/kubelet-serving");
            assert_eq!(request["spec"]["usages"], json!(["digital signature", "server auth"]));
            requests.push(request);
            let current = wanted.current(dir.path());
            let settled =
                || wanted.renewal(dir.path(), SystemTime::now()).is_ok_and(|w| !w.is_zero());
            while !settled() {
                tokio::task::yield_now().await;
            }
            let cert = pki::read_cert(&current).unwrap();
            let names = addresses.iter().map(|ip| AltName::Ip(ip.parse().unwrap()));
            let names: Vec<_> = std::iter::once(AltName::dns("n1")).chain(names).collect();
            assert_eq!(cert.info().unwrap().alt_names, names);
            tasks.drain(Duration::from_secs(5)).await;
        }
    }

    #[test]
    fn rejects_certificate_of_another_key() {
        let other = Key::generate(KeyAlgorithm::EcdsaP256).unwrap();
        let wanted = serving(&["192.0.2.7"]);
        let validity = Validity::starting(SystemTime::now(), YEAR);
        let ca = Authority::create("ca", KeyAlgorithm::EcdsaP256, validity).unwrap();
        let foreign = SigningRequest::create(&Subject::new("x"), &wanted.names, &other).unwrap();
        let cert = ca.sign_request(&foreign, Usage::Server, validity).unwrap();
        let request = json!({ "status": { "certificate": STANDARD.encode(cert.to_pem()) } });
        let key = Key::generate(KeyAlgorithm::EcdsaP256).unwrap();
        assert!(issued_certificate("csr-1", &request, &key).is_err());
        assert!(issued_certificate("csr-1", &request, &other).unwrap().is_some());
    }

    #[test]
    fn renews_certificate_long_before_it_expires() {
        let dir = tempfile::tempdir().unwrap();
        let renewal = |node: &str, at| client_of(node).renewal(dir.path(), at).unwrap();
        assert_eq!(renewal("n1", start()), Duration::ZERO, "there is none yet");
        let validity = Validity::starting(start(), YEAR);
        let ca = Authority::create("ca", KeyAlgorithm::EcdsaP256, validity).unwrap();
        pki::write_cert(&client_of("n1").current(dir.path()), ca.cert()).unwrap();
        for node in ["n1", "n2", "a-longer-name"] {
            let wait = renewal(node, start());
            assert!(wait > YEAR * 69 / 100 && wait < YEAR * 91 / 100, "{node}: {wait:?}");
            assert_eq!(renewal(node, start() + YEAR), Duration::ZERO);
        }
        assert_ne!(renewal("n1", start()), renewal("n2", start()));
    }

    #[test]
    fn moves_current_link_on_renewal() {
        let dir = tempfile::tempdir().unwrap();
        let key = Key::generate(KeyAlgorithm::EcdsaP256).unwrap();
        for (after, certificate) in [(0, "first\n"), (1, "second\n")] {
            let at = start() + Duration::from_secs(after);
            let current = client_of("n1").keep(dir.path(), certificate, &key, at).unwrap();
            assert!(std::fs::read_to_string(&current).unwrap().starts_with(certificate));
            assert!(current.is_symlink());
        }
    }
}
