//! Requests a worker's configuration and certificate from kops-controller, authenticated by the machine's identity.

use std::{fs, path::Path, sync::Arc};

use api_config::{
    Kubeconfig,
    kubeconfig::{Cluster as Server, User},
};
use api_meta::Tree as _;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bootstrap_core::{Layout, config::Init, constants::NODES_GROUP};
use client::{Client, HttpTransport, TlsMaterial};
use instances::{Machine, machine};
use pki::{Key, KeyAlgorithm, SigningRequest, Subject};
use serde_json::{Value, json};

use super::{
    context::{Certificate, Certificates, NodeAnswer, NodeContext},
    control_plane,
    manifest::make_directory,
    proxy,
};
use crate::{
    controller::{API_VERSION, PATH},
    error::Error,
    parameters::{API_PORT, PROXY_USER},
};

/// The keys of the certificates that a worker requests.
struct Keys {
    kubelet: Key,
    proxy: Key,
}

impl Keys {
    fn generate() -> Result<Self, Error> {
        let generate = || Key::generate(KeyAlgorithm::EcdsaP256);
        Ok(Self { kubelet: generate()?, proxy: generate()? })
    }

    /// Returns the request's body. Control planes of earlier versions reject requests for `proxy`.
    fn body(&self, machine: &str, proxy: bool) -> Result<String, Error> {
        let request = |subject: &Subject, key: &Key| {
            Ok::<_, Error>(SigningRequest::create(subject, &[], key)?.to_pem())
        };
        let node = Subject::new(format!("system:node:{machine}")).in_group(NODES_GROUP);
        let mut certs = json!({"kubelet": request(&node, &self.kubelet)?});
        if proxy {
            certs.put("kube-proxy", request(&Subject::new(PROXY_USER), &self.proxy)?);
        }
        let body = json!({"apiVersion": API_VERSION, "certs": certs, "includeNodeConfig": true});
        Ok(body.to_string())
    }
}

/// Asks each server in turn until one answers.
pub(super) async fn request_config(boot: &Value, machine: &Machine) -> Result<NodeAnswer, Error> {
    let keys = Keys::generate()?;
    let read = |name: &str| {
        let path = Path::new(machine::DOCUMENT).join(name);
        fs::read(&path).map_err(kops_store::Error::file("reading", &path.display().to_string()))
    };
    let tls = TlsMaterial {
        ca: Some(boot.text("ConfigServer.CACertificates").as_bytes().to_vec()),
        certificate: Some(read("identity.crt")?),
        key: Some(read("identity.key")?),
        insecure: false,
    };
    let mut last = Error::ConfigServer;
    for server in boot.texts("ConfigServer.servers") {
        let config = tls.client_config()?;
        let mut transport = HttpTransport::new(server, config, None)?;
        let name = boot.text("ConfigServer.tlsServerName");
        if !name.is_empty() {
            transport = transport.with_server_name(name);
        }
        let client = Client::new(Arc::new(transport), &version::user_agent("nodeup"));
        for proxy in [true, false] {
            let body = keys.body(&machine.name, proxy)?;
            match client.call(http::Method::POST, PATH, "application/json", body.into()).await {
                Ok(response) => return read_response(&response, &keys),
                Err(error) => {
                    let is_older = error.status().is_some_and(|status| status.code == 400);
                    last = error.into();
                    if !is_older {
                        break;
                    }
                }
            }
        }
    }
    Err(last)
}

fn read_response(response: &[u8], keys: &Keys) -> Result<NodeAnswer, Error> {
    let tree: Value = serde_json::from_slice(response).map_err(Error::ControllerJson)?;
    let config = tree.text("nodeConfig.nodeupConfig");
    let certificate = |name: &str, key: &Key| match tree.text(&format!("certs.{name}")) {
        "" => Ok(None),
        cert => Ok::<_, Error>(Some(Certificate { cert: cert.to_owned(), key: key.to_pem()? })),
    };
    let kubelet = certificate("kubelet", &keys.kubelet)?;
    let Some(kubelet) = kubelet.filter(|_| !config.is_empty()) else {
        return Err(Error::ControllerResponse);
    };
    let proxy = certificate("kube-proxy", &keys.proxy)?;
    let docker_config = match tree.text("nodeConfig.nodeSecrets.dockerconfig") {
        "" => None,
        text => Some(STANDARD.decode(text).map_err(Error::NodeSecret)?),
    };
    Ok(NodeAnswer {
        config: config.to_owned(),
        certificates: Some(Certificates { kubelet, proxy }),
        docker_config,
    })
}

/// Writes the files of the kubelet and of kube-proxy, and returns the configuration of `init` for the rest.
pub(super) fn write_files(
    context: &NodeContext,
    certificates: Certificates,
) -> Result<Init, Error> {
    let layout = Layout::default();
    let authority = context.boot.text("ConfigServer.CACertificates");
    let path = layout.pki("ca", "crt");
    make_directory(&layout.certificates)?;
    pki::write_file(&path, authority.as_bytes(), pki::PUBLIC_MODE)?;
    let kubeconfig = |user: &str, certificate: &Certificate| {
        let cluster = &context.machine.cluster;
        let server = format!("https://api.internal.{cluster}:{API_PORT}");
        let credentials = User::with_cert(&certificate.cert, &certificate.key);
        Kubeconfig::single(cluster, Server::with_ca(server, authority), user, credentials)
    };
    let name = format!("system:node:{}", context.machine.name);
    kubeconfig(&name, &certificates.kubelet).write(&layout.kubeconfig("kubelet.conf"))?;
    if let Some(certificate) = &certificates.proxy {
        proxy::write_kubeconfig(&kubeconfig(PROXY_USER, certificate))?;
    }
    Ok(control_plane::worker_init(context))
}
