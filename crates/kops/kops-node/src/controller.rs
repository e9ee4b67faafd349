//! kops-controller: admits workers, each with certificates for its kubelet and kube-proxy, and with the configuration
//! of its group. It also sets the groups' labels on Nodes, which kubelets may not set themselves.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use api_meta::{Timestamp, Tree as _};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bootstrap_core::constants::NODES_GROUP;
use client::{Client, ListOptions, PatchKind, PatchTarget, Resource};
use futures_util::{FutureExt as _, future::BoxFuture};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use kops_core::{life, node_config_path};
use kops_store::{DOCKER_CONFIG, IDENTITY_CA, parse_yaml};
use pki::{Authority, Cert, ClientCa, SigningRequest, Subject, Usage, Validity};
use serde_json::{Map, Value, json};
use serve::{Body, Connection, Handler, Limits, ServerTls, answer};
use vfs::Store;

use crate::{
    error::Error,
    parameters::{CERTIFICATE_PERIOD, PROXY_USER},
    store_access::{open, read_secret},
};

pub(crate) const PORT: u16 = 3988;
pub(crate) const DIRECTORY: &str = "/etc/kubernetes/kops-controller";
pub(crate) const CONFIG: &str = "/etc/kubernetes/kops-controller/config.json";
pub(crate) const API_VERSION: &str = "bootstrap.kops.k8s.io/v1alpha1";
pub(crate) const PATH: &str = "/bootstrap";
/// The controller's user name at the API server.
pub const USER: &str = "kops-controller";
/// The namespace of Nodes' Leases.
pub const LEASES: &str = "kube-node-lease";
/// The largest request in bytes; usual ones are a few kilobytes.
const LARGEST: usize = 64 << 10;
const POLL: Duration = Duration::from_secs(10);

/// Admits machines to the cluster, and labels their Nodes
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The file with settings
    #[arg(long)]
    conf: PathBuf,
}

/// The rejection of a machine.
struct Refusal(StatusCode, String);

fn refuse<T>(code: StatusCode, reason: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal(code, reason.into()))
}

struct Controller {
    store: Store,
    authority: Authority,
    /// The authority that signs the machines' identities.
    identities: ClientCa,
    nodes: Arc<dyn Nodes>,
}

/// A machine that sent a request, by its identity.
struct RequestingMachine {
    machine: String,
    group: String,
    /// The creation time of the machine. Its predecessor had ended by then.
    created_at: Timestamp,
}

/// The queries to the cluster.
trait Nodes: Send + Sync {
    /// Returns the last sign of life of a Node's machine, if the Node exists and is Ready.
    fn last_sign<'a>(
        &'a self,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<Timestamp>, client::Error>>;
}

/// Returns the object, or `None` if it does not exist.
async fn optional(
    request: impl Future<Output = Result<Value, client::Error>>,
) -> Result<Option<Value>, client::Error> {
    match request.await {
        Ok(object) => Ok(Some(object)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

impl Nodes for Client {
    fn last_sign<'a>(
        &'a self,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<Timestamp>, client::Error>> {
        Box::pin(async move {
            let node = optional(self.get::<Value>(&Resource::NODES, "", name)).await?;
            let Some(node) = node.filter(|node| life::readiness(node).0) else { return Ok(None) };
            let lease = optional(self.get(&Resource::LEASES, LEASES, name)).await?;
            Ok(life::last_sign(&node, lease.as_ref()))
        })
    }
}

/// Runs `kops-controller`: admits workers and labels their Nodes, until shutdown.
pub async fn run(args: &Args, tasks: &rt::Tasks) -> Result<(), Error> {
    let path = args.conf.display().to_string();
    let text = std::fs::read(&args.conf).map_err(kops_store::Error::file("reading", &path))?;
    let settings = parse_yaml(&path, &text)?;
    let store = open(settings.text("store"))?;
    let file = |name: &str| Path::new(DIRECTORY).join(name);
    let (certificate, key) = (file("kops-controller.crt"), file("kops-controller.key"));
    let authority = Authority::from_parts(
        pki::read_cert(&file("kubernetes-ca.crt"))?,
        pki::read_key(&file("kubernetes-ca.key"))?,
    )?;
    let (pem, _) = store.read(IDENTITY_CA)?.ok_or(Error::IdentityCa)?;
    let identities = ClientCa::from_pem(&pem)?;
    let read = |path: &Path| {
        std::fs::read(path).map_err(kops_store::Error::file("reading", &path.display().to_string()))
    };
    let tls = ServerTls::new(&read(&certificate)?, &read(&key)?, identities.authorities())?;
    let client =
        Client::from_kubeconfig_file(&file("kubeconfig"), &version::user_agent("kops-controller"))?;
    let address = settings.text("listen");
    let listener = tokio::net::TcpListener::bind(address).await;
    let listener = listener.map_err(kops_store::Error::file("listening on", address))?;
    let labelled = (client.clone(), store.clone());
    tasks.keep("labels", move || keep_labels(labelled.0.clone(), labelled.1.clone()));
    let handler = Controller { store, authority, identities, nodes: Arc::new(client) };
    serve::serve(listener, Some(tls), Limits::default(), Arc::new(handler), tasks.clone()).await;
    Ok(())
}

impl Handler for Controller {
    fn handle(&self, request: Request<Body>) -> BoxFuture<'_, Response<Body>> {
        Box::pin(async move {
            match (request.method(), request.uri().path()) {
                (&Method::GET, "/healthz") => answer(StatusCode::OK, "text/plain", "OK"),
                (&Method::POST, PATH) => match self.bootstrap(request).await {
                    Ok(tree) => answer(StatusCode::OK, "application/json", tree.to_string()),
                    Err(Refusal(code, reason)) => {
                        tracing::warn!(%code, reason, "rejected a machine");
                        answer(code, "text/plain", reason)
                    }
                },
                _ => answer(StatusCode::NOT_FOUND, "text/plain", "not found"),
            }
        })
    }
}

impl Controller {
    async fn bootstrap(&self, request: Request<Body>) -> Result<Value, Refusal> {
        let RequestingMachine { machine, group, created_at } = self.identify(&request)?;
        let body = Limited::new(request.into_body(), LARGEST).collect().boxed().await;
        let Ok(body) = body.map(http_body_util::Collected::to_bytes) else {
            return refuse(
                StatusCode::BAD_REQUEST,
                "the request's body is too large or incomplete",
            );
        };
        let Ok(parameters) = serde_json::from_slice::<Value>(&body) else {
            return refuse(StatusCode::BAD_REQUEST, "the request's body is not JSON");
        };
        if parameters.text("apiVersion") != API_VERSION {
            return refuse(StatusCode::BAD_REQUEST, "the request is of an unknown apiVersion");
        }
        let Some(config) = self.node_config(&group)? else {
            return refuse(
                StatusCode::FORBIDDEN,
                format!("{group:?} is not an instance group of workers"),
            );
        };
        match self.nodes.last_sign(&machine).await {
            // The name has shown no sign of life since this machine was created, so the Node is its predecessor's.
            Ok(sign) if sign.is_none_or(|sign| sign < created_at) => {}
            Ok(_) => {
                let reason =
                    format!("node {machine:?} exists and is Ready: another machine has that name");
                return refuse(StatusCode::CONFLICT, reason);
            }
            // Without the API it is unknown whether another machine runs, so the worker must retry.
            Err(error) => return refuse(StatusCode::SERVICE_UNAVAILABLE, error.to_string()),
        }
        let mut certs = Map::new();
        for (name, key) in parameters.at("certs").as_object().into_iter().flatten() {
            let cert = self.sign(name, key.as_str().unwrap_or_default(), &machine)?;
            certs.insert(name.clone(), cert.into());
        }
        tracing::info!(machine, group, "admitted a machine");
        let mut response = json!({"certs": certs});
        if parameters.flag("includeNodeConfig") {
            response.put("nodeConfig.nodeupConfig", config);
            if let Some(credentials) = self.docker_config()? {
                response.put("nodeConfig.nodeSecrets.dockerconfig", STANDARD.encode(credentials));
            }
        }
        Ok(response)
    }

    /// Returns the requesting machine and its group, from the client certificate signed by the creator of machines.
    fn identify(&self, request: &Request<Body>) -> Result<RequestingMachine, Refusal> {
        let connection = request.extensions().get::<Arc<Connection>>();
        let chain = connection.map(|c| c.client_certificates.as_slice()).unwrap_or_default();
        let verified = match self.identities.verify(chain, rt::now()) {
            Ok(Some(verified)) => verified.identity,
            Ok(None) => {
                return refuse(
                    StatusCode::FORBIDDEN,
                    "the request has no client certificate that names the machine",
                );
            }
            Err(error) => return refuse(StatusCode::FORBIDDEN, error.to_string()),
        };
        let shown = chain.first().map(|leaf| Cert::from_der(leaf.to_vec()).and_then(|c| c.info()));
        let Some(Ok(shown)) = shown else {
            return refuse(StatusCode::FORBIDDEN, "the machine's certificate cannot be read");
        };
        match &verified.groups[..] {
            [group] if group_of(&verified.name) == Some(group) => Ok(RequestingMachine {
                machine: verified.name,
                group: group.clone(),
                created_at: instances::created_at(&shown).into(),
            }),
            _ => refuse(
                StatusCode::FORBIDDEN,
                format!("{:?} is not a machine of exactly one group", verified.name),
            ),
        }
    }

    /// Returns the configuration of a group of workers.
    fn node_config(&self, group: &str) -> Result<Option<String>, Refusal> {
        match self.store.read(&node_config_path("Node", group)) {
            Ok(found) => {
                Ok(found.map(|(content, _)| String::from_utf8_lossy(&content).into_owned()))
            }
            Err(error) => refuse(StatusCode::SERVICE_UNAVAILABLE, error.to_string()),
        }
    }

    /// Returns the credentials of registries, if the cluster has some.
    fn docker_config(&self) -> Result<Option<Vec<u8>>, Refusal> {
        let refusal = |error: Error| Refusal(StatusCode::SERVICE_UNAVAILABLE, error.to_string());
        read_secret(&self.store, DOCKER_CONFIG).map_err(refusal)
    }

    /// Signs a certificate for the machine's own Node or for kube-proxy, without any other content.
    fn sign(&self, name: &str, request: &str, machine: &str) -> Result<String, Refusal> {
        let own = match name {
            "kubelet" => Subject::new(format!("system:node:{machine}")).in_group(NODES_GROUP),
            "kube-proxy" => Subject::new(PROXY_USER),
            _ => {
                return refuse(
                    StatusCode::BAD_REQUEST,
                    format!("certificate {name:?} is not issued by kops-controller"),
                );
            }
        };
        let bad = |error: pki::Error| Refusal(StatusCode::BAD_REQUEST, error.to_string());
        let request = SigningRequest::from_pem(request).map_err(bad)?;
        let info = request.info().map_err(bad)?;
        if info.subject != own || !info.alt_names.is_empty() {
            let reason = format!(
                "the request of {machine:?} for certificate {name:?} is for {}, but must be for {own}",
                info.subject
            );
            return refuse(StatusCode::FORBIDDEN, reason);
        }
        let validity = Validity::starting(rt::now(), CERTIFICATE_PERIOD);
        let signed = self.authority.sign_request(&request, Usage::Client, validity).map_err(bad)?;
        Ok(signed.to_pem())
    }
}

/// Returns the group in a machine's name: the part before the number.
fn group_of(machine: &str) -> Option<&str> {
    let (group, number) = machine.rsplit_once('-')?;
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    (is_number && !group.is_empty()).then_some(group)
}

/// Adds missing group labels to Nodes periodically, until the task is aborted.
async fn keep_labels(client: Client, store: Store) {
    loop {
        if let Err(error) = label_nodes(&client, &store).await {
            tracing::warn!(%error, "could not label Nodes");
        }
        tokio::time::sleep(POLL).await;
    }
}

async fn label_nodes(client: &Client, store: &Store) -> Result<(), Error> {
    let nodes = client.list::<Value>(&Resource::NODES, "", &ListOptions::default()).await?;
    for node in nodes.items {
        let name = node.text("metadata.name");
        let Some(group) = group_of(name) else { continue };
        let mut missing = Map::new();
        for role in ["ControlPlane", "Node"] {
            let path = node_config_path(role, group);
            if let Some((content, _)) = store.read(&path)? {
                let config = parse_yaml(&path, &content)?;
                let labels = config.at("KubeletConfig.nodeLabels").as_object();
                missing.extend(labels.into_iter().flatten().map(|(k, v)| (k.clone(), v.clone())));
            }
        }
        let has = node.at("metadata.labels").clone();
        missing.retain(|key, value| has.get(key.as_str()) != Some(value));
        if missing.is_empty() {
            continue;
        }
        let at = PatchTarget { namespace: "", name, subresource: "" };
        let patch = json!({"metadata": {"labels": missing}});
        client.patch::<Value>(&Resource::NODES, at, PatchKind::Merge, &patch).await?;
    }
    Ok(())
}

#[cfg(test)]
mod fuzzed;

#[cfg(test)]
mod tests {
    use pki::{Key, KeyAlgorithm, LeafSpec};
    use serve::full;

    use super::*;

    struct FixedSign(Option<Timestamp>);

    impl Nodes for FixedSign {
        fn last_sign<'a>(
            &'a self,
            _: &'a str,
        ) -> BoxFuture<'a, Result<Option<Timestamp>, client::Error>> {
            Box::pin(async { Ok(self.0) })
        }
    }

    pub(super) struct TestController {
        _dir: tempfile::TempDir,
        pub(super) controller: Controller,
        pub(super) fleet: Authority,
    }

    fn hour() -> Validity {
        Validity::starting(rt::now(), Duration::from_secs(3600))
    }

    pub(super) fn place(sign: Option<Timestamp>) -> TestController {
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join("igconfig/node/nodes-a");
        std::fs::create_dir_all(&config).unwrap();
        std::fs::write(config.join("nodeupconfig.yaml"), "ClusterName: a\n").unwrap();
        let make = |name| Authority::create(name, KeyAlgorithm::EcdsaP256, hour()).unwrap();
        let fleet = make("fleet");
        let controller = Controller {
            store: Store::open(&format!("file://{}", dir.path().display())).unwrap(),
            authority: make("kubernetes-ca"),
            identities: ClientCa::from_pem(fleet.cert().to_pem().as_bytes()).unwrap(),
            nodes: Arc::new(FixedSign(sign)),
        };
        TestController { _dir: dir, controller, fleet }
    }

    pub(super) fn request(
        signer: &Authority,
        machine: &str,
        group: &str,
        asks_for: &str,
    ) -> Request<Body> {
        let spec = LeafSpec {
            subject: Subject::new(machine).in_group(group),
            alt_names: Vec::new(),
            usage: Usage::Client,
        };
        let (cert, _) = signer.issue_new(&spec, KeyAlgorithm::EcdsaP256, hour()).unwrap();
        let node = Subject::new(format!("system:node:{asks_for}")).in_group(NODES_GROUP);
        let certs = json!({"kubelet": csr(&node), "kube-proxy": csr(&Subject::new(PROXY_USER))});
        let body = json!({"apiVersion": API_VERSION, "certs": certs, "includeNodeConfig": true});
        let mut request = Request::post(PATH).body(full(body.to_string())).unwrap();
        let connection =
            Connection { client_certificates: vec![cert.to_rustls()], ..Connection::default() };
        request.extensions_mut().insert(Arc::new(connection));
        request
    }

    fn csr(subject: &Subject) -> String {
        let key = Key::generate(KeyAlgorithm::EcdsaP256).unwrap();
        SigningRequest::create(subject, &[], &key).unwrap().to_pem()
    }

    async fn code(place: &TestController, request: Request<Body>) -> (u16, String) {
        let answer = place.controller.handle(request).await;
        let code = answer.status().as_u16();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        (code, String::from_utf8_lossy(&body).into_owned())
    }

    #[tokio::test]
    async fn rejects_certificates_of_other_users() {
        let place = self::place(None);
        let node = Subject::new("system:node:nodes-a-1").in_group(NODES_GROUP);
        let admin = Subject::new(PROXY_USER).in_group("system:masters");
        for (name, subject, wanted) in [
            ("kube-proxy", &admin, 403),
            ("kube-proxy", &node, 403),
            ("kubelet", &Subject::new(PROXY_USER), 403),
            ("kube-router", &node, 400),
        ] {
            let mut asked = request(&place.fleet, "nodes-a-1", "nodes-a", "nodes-a-1");
            let body = json!({"apiVersion": API_VERSION, "certs": {name: csr(subject)}});
            *asked.body_mut() = full(body.to_string());
            let (code, body) = code(&place, asked).await;
            assert!(code == wanted && body.contains(name), "{name} {subject}: {code} {body}");
        }
    }

    #[tokio::test]
    async fn machine_gets_its_certificates_and_configuration() {
        let place = place(None);
        let (code, body) =
            code(&place, request(&place.fleet, "nodes-a-1", "nodes-a", "nodes-a-1")).await;
        assert_eq!(code, 200, "{body}");
        let answer: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(answer.text("nodeConfig.nodeupConfig"), "ClusterName: a\n");
        let cert = pki::Cert::from_pem(answer.text("certs.kubelet")).unwrap();
        cert.check_signed_by(place.controller.authority.cert()).unwrap();
        assert_eq!(cert.info().unwrap().subject.common_name, "system:node:nodes-a-1");
        let proxy = pki::Cert::from_pem(answer.text("certs.kube-proxy")).unwrap();
        assert_eq!(proxy.info().unwrap().subject, Subject::new(PROXY_USER));
    }

    #[tokio::test]
    async fn workers_get_the_credentials_of_registries_only() {
        let place = self::place(None);
        let secrets = place._dir.path().join("secrets");
        std::fs::create_dir_all(&secrets).unwrap();
        std::fs::write(secrets.join("encryptionconfig"), r#"{"Data": "a2V5"}"#).unwrap();
        let ask = || request(&place.fleet, "nodes-a-1", "nodes-a", "nodes-a-1");
        let (_, body) = code(&place, ask()).await;
        assert!(!body.contains("nodeSecrets"), "{body}");
        std::fs::write(secrets.join("dockerconfig"), r#"{"Data": "e30="}"#).unwrap();
        let (status, body) = code(&place, ask()).await;
        let answer: Value = serde_json::from_str(&body).unwrap();
        let secrets_of = answer.at("nodeConfig.nodeSecrets");
        assert_eq!((status, secrets_of), (200, &json!({"dockerconfig": "e30="})), "{body}");
        // Only an admitted worker gets them.
        let stranger = Authority::create("fleet", KeyAlgorithm::EcdsaP256, hour()).unwrap();
        let (status, body) =
            code(&place, request(&stranger, "nodes-a-1", "nodes-a", "nodes-a-1")).await;
        assert!(status == 403 && !body.contains("e30="), "{body}");
        std::fs::write(secrets.join("dockerconfig"), r#"{"Data": "?"}"#).unwrap();
        assert_eq!(code(&place, ask()).await.0, 503);
    }

    #[tokio::test]
    async fn rejects_machines_without_rights() {
        let place = self::place(None);
        let stranger = Authority::create("fleet", KeyAlgorithm::EcdsaP256, hour()).unwrap();
        for (request, wanted) in [
            // Another authority of the same name, another machine's Node, another group, and a group that is not of
            // workers.
            (request(&stranger, "nodes-a-1", "nodes-a", "nodes-a-1"), 403),
            (request(&place.fleet, "nodes-a-1", "nodes-a", "nodes-a-2"), 403),
            (request(&place.fleet, "nodes-a-1", "nodes-b", "nodes-a-1"), 403),
            (
                request(&place.fleet, "control-plane-a-1", "control-plane-a", "control-plane-a-1"),
                403,
            ),
            (request(&place.fleet, "../x-1", "../x", "../x-1"), 503),
            (Request::post(PATH).body(full("{}")).unwrap(), 403),
        ] {
            let (code, body) = code(&place, request).await;
            assert_eq!(code, wanted, "{body}");
            assert!(!body.contains("CERTIFICATE"), "{body}");
        }
        // The identity is created now. A sign of life since then means that the name is taken; no sign means that it is
        // free.
        let own = Timestamp::from(rt::now());
        for (sign, wanted) in [
            (own.plus(Duration::from_secs(2)), 409),
            (Timestamp::from_unix(own.unix() - 2, 0), 200),
        ] {
            let taken = self::place(Some(sign));
            let again = request(&taken.fleet, "nodes-a-1", "nodes-a", "nodes-a-1");
            assert_eq!(code(&taken, again).await.0, wanted);
        }
        let mut large = request(&place.fleet, "nodes-a-1", "nodes-a", "nodes-a-1");
        *large.body_mut() = full(vec![b' '; LARGEST + 1]);
        assert_eq!(code(&place, large).await.0, 400);
    }

    #[test]
    fn parses_group_of_a_machines_name() {
        assert_eq!(group_of("nodes-a-12"), Some("nodes-a"));
        for name in ["nodes", "nodes-", "-1", "nodes-a"] {
            assert_eq!(group_of(name), None, "{name}");
        }
    }
}
