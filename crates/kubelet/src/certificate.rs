//! The certificates that a kubelet asks of the cluster for itself, keeps in files, and renews.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use api_meta::Tree as _;
use base64::{Engine, engine::general_purpose::STANDARD};
use client::{Client, ListOptions, Resource, WatchEvent};
use pki::{AltName, Key, KeyAlgorithm, SigningRequest, Subject};
use serde_json::{Value, json};

use crate::EnrollError;

/// How long to wait before a server that does not answer is asked again: it may be one that this kubelet starts.
pub(crate) const AGAIN: Duration = Duration::from_millis(500);
/// How long a request may wait for its approval before another takes its place.
const PATIENCE: Duration = Duration::from_secs(15 * 60);
/// After a refusal, at first and at the most.
const REFUSED: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(32));
/// A clock that was set is noticed after this long.
const REVIEW: Duration = Duration::from_secs(3600);

/// One of the node's own certificates: whom it is asked of, what for, and how its files are called.
#[derive(Clone, Debug)]
pub(crate) struct Certificate {
    signer: &'static str,
    /// The extended key usage, as CertificateSigningRequests name it.
    usage: &'static str,
    /// What the names of its files begin with.
    prefix: &'static str,
    node: String,
    names: Vec<AltName>,
}

impl Certificate {
    /// That by which the kubelet is known to the API server.
    pub(crate) fn client(node: String) -> Self {
        let signer = "kubernetes.io/kube-apiserver-client-kubelet";
        Self { signer, usage: "client auth", prefix: "kubelet-client", node, names: Vec::new() }
    }

    /// That with which the kubelet serves, for the node's name and addresses (`serverTLSBootstrap`).
    pub(crate) fn serving(node: String, addresses: &[String]) -> Self {
        let signer = "kubernetes.io/kubelet-serving";
        let ips = addresses.iter().filter_map(|ip| ip.parse().ok()).map(AltName::Ip);
        let names = std::iter::once(AltName::dns(&node)).chain(ips).collect();
        Self { signer, usage: "server auth", prefix: "kubelet-server", node, names }
    }

    /// The link to the newest file, which holds certificate and key.
    pub(crate) fn current(&self, dir: &Path) -> PathBuf {
        dir.join(format!("{}-current.pem", self.prefix))
    }

    /// Renews the certificate long before its end: each node at a time of its own, so that they do not all ask at once. What
    /// there is not yet is asked for at once, and so is one that lacks a name.
    pub(crate) async fn keep_current(
        self,
        dir: PathBuf,
        client: Client,
        clock: Arc<dyn rt::Clock>,
    ) {
        let (node, usage) = (&self.node, self.usage);
        let mut failures = rt::Backoff::new(REFUSED.0, REFUSED.1);
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
                    // One that lacks a name is asked for again, as after a refusal.
                    tokio::time::sleep(failures.next(rt::random())).await;
                }
                // A first control plane's kubelet asks before the API server that it starts is up, and `init` waits for it.
                Err(EnrollError::Api(error)) if is_passing(&error) => {
                    tracing::debug!(node, usage, %error, "renew the node's certificate again");
                    tokio::time::sleep(AGAIN).await;
                }
                Err(error) => {
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
        let certificate = tokio::time::timeout(PATIENCE, self.obtain(client, &key))
            .await
            .map_err(|_| EnrollError::Unanswered { usage: self.usage, after: PATIENCE })??;
        self.keep(dir, &certificate, &key, now)
    }

    /// How long until the certificate is to be renewed: when 70 to 90 % of its life are over, or a name is missing in it.
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

    /// Asks for the certificate and waits until it is there, refused or failed.
    pub(crate) async fn obtain(&self, client: &Client, key: &Key) -> Result<String, EnrollError> {
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
            if let Some(certificate) = issued(&name, &now, key)? {
                return Ok(certificate);
            }
            let revision = now.text("metadata.resourceVersion").to_owned();
            let mut changes = client.watch(csrs, "", &only, &revision).await?;
            while let Some(Ok(change)) = changes.next().await {
                if let WatchEvent::Added(object) | WatchEvent::Modified(object) = change
                    && let Ok(now) = serde_json::from_slice(&object)
                    && let Some(certificate) = issued(&name, &now, key)?
                {
                    return Ok(certificate);
                }
            }
            // A watch that ends, and be it because the request is gone, is begun again with what there is then.
            tokio::time::sleep(AGAIN).await;
            now = client.get(csrs, "", &name).await?;
        }
    }

    /// Keeps a certificate and its key in one file, to which the name of the current one leads.
    pub(crate) fn keep(
        &self,
        dir: &Path,
        certificate: &str,
        key: &Key,
        now: SystemTime,
    ) -> Result<PathBuf, EnrollError> {
        let at = crate::context::timestamp(now).strftime("%Y-%m-%d-%H-%M-%S");
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

/// Whether a server that is starting may answer otherwise in a moment.
pub(crate) fn is_passing(error: &client::Error) -> bool {
    matches!(error, client::Error::Transport { .. })
        || error.is_too_many_requests()
        || error.code().is_some_and(|code| code >= 500)
}

/// The certificate that a request got, if it was decided.
fn issued(name: &str, request: &Value, key: &Key) -> Result<Option<String>, EnrollError> {
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

    use client::Patched;
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

    /// Answers the newest request with a certificate, or with a refusal; says what was asked.
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
        let at = Patched { namespace: "", name, subresource: "status" };
        api.merge(csrs, at, json!({ "status": status })).await;
        request
    }

    #[tokio::test]
    async fn an_approved_request_gives_the_nodes_certificate_and_a_denied_one_its_cause() {
        for denied in [false, true] {
            let api = FakeApi::default();
            let client = api.client("kubelet-bootstrap");
            let key = Key::generate(KeyAlgorithm::EcdsaP256).unwrap();
            let wanted = client_of("n1");
            let (got, _) =
                tokio::join!(wanted.obtain(&client, &key), answer(&api, 1, Usage::Client, denied));
            if denied {
                assert!(got.unwrap_err().to_string().ends_with("denied: unknown machine"));
                continue;
            }
            let subject = pki::Cert::from_pem(&got.unwrap()).unwrap().info().unwrap().subject;
            assert_eq!(subject, Subject::new("system:node:n1").in_group("system:nodes"));
        }
    }

    #[tokio::test]
    async fn a_serving_certificate_is_asked_for_each_address_and_again_for_a_new_one() {
        let (api, dir) = (FakeApi::default(), tempfile::tempdir().unwrap());
        let mut asked = Vec::new();
        for addresses in [&["192.0.2.7"][..], &["192.0.2.7", "2001:db8::7"]] {
            let wanted = serving(addresses);
            let tasks = rt::Tasks::new(rt::Shutdown::new());
            let (client, clock) = (api.client("kubelet"), Arc::new(rt::SystemClock));
            let (own, at) = (wanted.clone(), dir.path().to_owned());
            tasks.keep("serving certificate", move || {
                own.clone().keep_current(at.clone(), client.clone(), clock.clone())
            });
            let request = answer(&api, asked.len() + 1, Usage::Server, false).await;
            assert_eq!(request["spec"]["signerName"], "kubernetes.io/kubelet-serving");
            assert_eq!(request["spec"]["usages"], json!(["digital signature", "server auth"]));
            asked.push(request);
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
    fn a_certificate_of_another_key_is_not_taken() {
        let other = Key::generate(KeyAlgorithm::EcdsaP256).unwrap();
        let wanted = serving(&["192.0.2.7"]);
        let validity = Validity::starting(SystemTime::now(), YEAR);
        let ca = Authority::create("ca", KeyAlgorithm::EcdsaP256, validity).unwrap();
        let foreign = SigningRequest::create(&Subject::new("x"), &wanted.names, &other).unwrap();
        let cert = ca.sign_request(&foreign, Usage::Server, validity).unwrap();
        let request = json!({ "status": { "certificate": STANDARD.encode(cert.to_pem()) } });
        let key = Key::generate(KeyAlgorithm::EcdsaP256).unwrap();
        assert!(issued("csr-1", &request, &key).is_err());
        assert!(issued("csr-1", &request, &other).unwrap().is_some());
    }

    #[test]
    fn a_certificate_is_renewed_long_before_its_end() {
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
    fn the_current_identity_is_a_link_that_renewals_move() {
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
