//! kops-controller: admits workers, each with certificates for its kubelet and kube-proxy, and with the configuration
//! of its group. Machines prove their identity by a certificate (cloud local) or by the key of their Host (cloud
//! metal). It also sets the groups' labels on Nodes, which kubelets may not set themselves. Read [`Controller`] first.

mod host;
mod labels;
mod machine;
mod settings;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use api_meta::Tree as _;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bootstrap_core::constants::NODES_GROUP;
use client::{Client, Resource};
use futures_util::{FutureExt as _, future::BoxFuture};
use http::{Method, Request, Response, StatusCode, header, request::Parts};
use http_body_util::{BodyExt as _, Limited};
use kops_core::{life, node_config_path};
use kops_store::{DOCKER_CONFIG, IDENTITY_CA, parse_yaml};
use pki::{Authority, Cert, ClientCa, LeafSpec, SigningRequest, Subject, Usage, Validity};
use serde_json::{Map, Value, json};
use serve::{Body, Connection, Handler, Limits, ServerTls, answer};
use vfs::Store;

pub use self::host::{HOSTS, HOSTS_NAMESPACE};
pub(crate) use self::{
    host::{AUDIENCE, SCHEME},
    settings::DIRECTORY,
};
use self::{
    host::{HostError, SignedRequest},
    machine::{Cluster, RequestingMachine, group_of},
    settings::{ProofSettings, Settings},
};
use crate::{
    error::Error,
    parameters::{CERTIFICATE_PERIOD, PROXY_USER},
    store_access::{open, read_secret},
};

pub(crate) const PORT: u16 = 3988;
pub(crate) const CONFIG: &str = "/etc/kubernetes/kops-controller/config.json";
pub(crate) const API_VERSION: &str = "bootstrap.kops.k8s.io/v1alpha1";
pub(crate) const PATH: &str = "/bootstrap";
/// The controller's user name at the API server.
pub const USER: &str = "kops-controller";
/// The namespace of Nodes' Leases.
pub const LEASES: &str = "kube-node-lease";
/// The authority that signs the machines' certificates.
const SIGNER: &str = "kubernetes-ca";
/// The label of public keys in upstream's requests, whatever their algorithm.
pub(crate) const REQUEST_LABEL: &str = "RSA PUBLIC KEY";
/// The largest request in bytes; usual ones are a few kilobytes.
const LARGEST: usize = 64 << 10;

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

/// The server of kops-controller.
struct Controller {
    store: Store,
    authority: Authority,
    /// The ID of the authority's key pair; empty if requests do not name it.
    keypair: String,
    /// The names of the certificates that machines may request.
    cert_names: Vec<String>,
    proof: Proof,
    cluster: Arc<dyn Cluster>,
}

/// The way in which machines prove their identity.
enum Proof {
    /// A client certificate of the authority that signs the machines' identities.
    Certificate(ClientCa),
    /// A signature with the key of the machine's Host, at most this old.
    Host { skew: Duration },
}

/// Runs `kops-controller`: admits workers and labels their Nodes, until shutdown.
pub async fn run(args: &Args, tasks: &rt::Tasks) -> Result<(), Error> {
    let path = args.conf.display().to_string();
    let text = read(&args.conf)?;
    let settings = Settings::parse(&parse_yaml(&path, &text)?)?;
    let store = open(&settings.store)?;
    let file = |name: &str| settings.authorities.join(name);
    let authority = Authority::from_parts(
        pki::read_cert(&file(&format!("{SIGNER}.crt")))?,
        pki::read_key(&file(&format!("{SIGNER}.key")))?,
    )?;
    let agent = version::user_agent("kops-controller");
    let (proof, keypair, client) = match settings.proof {
        ProofSettings::Certificate => {
            let (pem, _) = store.read(IDENTITY_CA)?.ok_or(Error::IdentityCa)?;
            let client = Client::from_kubeconfig_file(&file("kubeconfig"), &agent)?;
            (Proof::Certificate(ClientCa::from_pem(&pem)?), String::new(), client)
        }
        ProofSettings::Host { skew } => {
            let path = file("keypair-ids.yaml");
            let ids = parse_yaml(&path.display().to_string(), &read(&path)?)?;
            let client = Client::from_service_account(&agent)?;
            (Proof::Host { skew }, ids.text(SIGNER).to_owned(), client)
        }
    };
    let tls = ServerTls::new(
        &read(&settings.certificate)?,
        &read(&settings.key)?,
        proof.client_authorities(),
    )?;
    let address = settings.listen.as_str();
    let listener = tokio::net::TcpListener::bind(address).await;
    let listener = listener.map_err(kops_store::Error::file("listening on", address))?;
    let (labelled, kind) = ((client.clone(), store.clone()), settings.proof);
    tasks.keep("labels", move || labels::keep_labels(labelled.0.clone(), labelled.1.clone(), kind));
    let cert_names = settings.cert_names;
    let cluster = Arc::new(client);
    let handler = Controller { store, authority, keypair, cert_names, proof, cluster };
    serve::serve(listener, Some(tls), Limits::default(), Arc::new(handler), tasks.clone()).await;
    Ok(())
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    let shown = path.display().to_string();
    Ok(std::fs::read(path).map_err(kops_store::Error::file("reading", &shown))?)
}

impl Proof {
    /// Returns the subjects of the authorities whose client certificates are requested.
    fn client_authorities(&self) -> Vec<Vec<u8>> {
        match self {
            Self::Certificate(identities) => identities.authorities(),
            Self::Host { .. } => Vec::new(),
        }
    }
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
        let (head, body) = request.into_parts();
        let body = Limited::new(body, LARGEST).collect().boxed().await;
        let Ok(body) = body.map(http_body_util::Collected::to_bytes) else {
            return refuse(
                StatusCode::BAD_REQUEST,
                "the request's body is too large or incomplete",
            );
        };
        let requesting = self.identify(&head, &body).await?;
        let Ok(parameters) = serde_json::from_slice::<Value>(&body) else {
            return refuse(StatusCode::BAD_REQUEST, "the request's body is not JSON");
        };
        if parameters.text("apiVersion") != API_VERSION {
            return refuse(StatusCode::BAD_REQUEST, "the request is of an unknown apiVersion");
        }
        let RequestingMachine { machine, group, .. } = &requesting;
        let Some(config) = self.node_config(group)? else {
            return refuse(
                StatusCode::FORBIDDEN,
                format!("{group:?} is not an instance group of workers"),
            );
        };
        self.check_free(&requesting).await?;
        self.check_keypair(&parameters)?;
        let mut certs = Map::new();
        for (name, key) in parameters.at("certs").as_object().into_iter().flatten() {
            let cert = self.sign(name, key.as_str().unwrap_or_default(), machine)?;
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

    /// Returns the requesting machine and its group.
    async fn identify(&self, head: &Parts, body: &[u8]) -> Result<RequestingMachine, Refusal> {
        let skew = match &self.proof {
            Proof::Certificate(identities) => return identify_by_certificate(identities, head),
            Proof::Host { skew } => *skew,
        };
        let authorization = head.headers.get(header::AUTHORIZATION);
        let authorization = authorization.and_then(|value| value.to_str().ok()).unwrap_or_default();
        let request = SignedRequest { authorization, body, now: rt::now() };
        request.machine(&*self.cluster, skew).await.map_err(|error| {
            tracing::warn!(%error, "could not verify a request");
            // The sender is unknown, so it must not learn which Hosts exist.
            match error {
                HostError::Api { .. } => {
                    let reason = "the Host could not be read; see kops-controller's log";
                    Refusal(StatusCode::SERVICE_UNAVAILABLE, reason.to_owned())
                }
                _ => Refusal(StatusCode::FORBIDDEN, "failed to verify token".to_owned()),
            }
        })
    }

    /// Rejects a machine whose name another machine has: its Node is Ready.
    async fn check_free(&self, requesting: &RequestingMachine) -> Result<(), Refusal> {
        let RequestingMachine { machine, created_at, .. } = requesting;
        // Without the API it is unknown whether another machine runs, so the worker must retry.
        let silent =
            |error: client::Error| Refusal(StatusCode::SERVICE_UNAVAILABLE, error.to_string());
        let node = self.cluster.find(&Resource::NODES, "", machine).await.map_err(silent)?;
        let Some(node) = node.filter(|node| life::readiness(node).0) else { return Ok(()) };
        if let Some(created_at) = created_at {
            let lease = self.cluster.find(&Resource::LEASES, LEASES, machine).await;
            let sign = life::last_sign(&node, lease.map_err(silent)?.as_ref());
            // The name has shown no sign of life since this machine was created, so the Node is its predecessor's.
            if sign.is_none_or(|sign| sign < *created_at) {
                return Ok(());
            }
        }
        let reason = format!("node {machine:?} exists and is Ready: another machine has that name");
        refuse(StatusCode::CONFLICT, reason)
    }

    /// Rejects a request for certificates of another key pair than that of the authority.
    fn check_keypair(&self, parameters: &Value) -> Result<(), Refusal> {
        let ids = parameters.at("keypairIDs").as_object();
        let is_other = |ids: &Map<String, Value>| {
            let id = ids.get(SIGNER).and_then(Value::as_str);
            !ids.is_empty() && id.unwrap_or_default() != self.keypair
        };
        if !ids.is_some_and(is_other) {
            return Ok(());
        }
        let reason = format!(
            "the request is for another key pair of {SIGNER} than {:?}; use the boot configuration of the last \
             kops update cluster",
            self.keypair
        );
        refuse(StatusCode::BAD_REQUEST, reason)
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

    /// Signs a certificate for the machine's own Node or for kube-proxy, without any other content. The request is a
    /// certificate request or, as upstream's, a public key.
    fn sign(&self, name: &str, request: &str, machine: &str) -> Result<String, Refusal> {
        let known = match name {
            "kubelet" => {
                let node = Subject::new(format!("system:node:{machine}"));
                Some((node.in_group(NODES_GROUP), Usage::Client))
            }
            "kubelet-server" => Some((Subject::new(machine), Usage::Server)),
            "kube-proxy" => Some((Subject::new(PROXY_USER), Usage::Client)),
            _ => None,
        };
        let is_enabled = self.cert_names.iter().any(|enabled| enabled == name);
        let Some((own, usage)) = known.filter(|_| is_enabled) else {
            let reason = format!("certificate {name:?} is not issued by kops-controller");
            return refuse(StatusCode::BAD_REQUEST, reason);
        };
        let bad = |error: pki::Error| Refusal(StatusCode::BAD_REQUEST, error.to_string());
        let validity = Validity::starting(rt::now(), CERTIFICATE_PERIOD);
        let blocks = pki::decode_all(request).map_err(bad)?;
        if let [(label, key)] = &blocks[..]
            && label == REQUEST_LABEL
        {
            let spec = LeafSpec { subject: own, alt_names: Vec::new(), usage };
            return Ok(self.authority.issue_to(&spec, key, validity).map_err(bad)?.to_pem());
        }
        let request = SigningRequest::from_pem(request).map_err(bad)?;
        let info = request.info().map_err(bad)?;
        if info.subject != own || !info.alt_names.is_empty() {
            let reason = format!(
                "the request of {machine:?} for certificate {name:?} is for {}, but must be for {own}",
                info.subject
            );
            return refuse(StatusCode::FORBIDDEN, reason);
        }
        Ok(self.authority.sign_request(&request, usage, validity).map_err(bad)?.to_pem())
    }
}

/// Returns the requesting machine and its group, from the client certificate signed by the creator of machines.
fn identify_by_certificate(
    identities: &ClientCa,
    head: &Parts,
) -> Result<RequestingMachine, Refusal> {
    let connection = head.extensions.get::<Arc<Connection>>();
    let chain = connection.map(|c| c.client_certificates.as_slice()).unwrap_or_default();
    let verified = match identities.verify(chain, rt::now()) {
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
            created_at: Some(instances::created_at(&shown).into()),
        }),
        _ => refuse(
            StatusCode::FORBIDDEN,
            format!("{:?} is not a machine of exactly one group", verified.name),
        ),
    }
}

#[cfg(test)]
mod fuzzed;
#[cfg(test)]
pub(crate) mod host_tests;
#[cfg(test)]
pub(crate) mod tests;
