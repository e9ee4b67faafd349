//! Requests a worker's configuration and certificate from kops-controller, authenticated by the machine's identity.

use std::{fs, path::Path, sync::Arc};

use api_config::{
    Kubeconfig,
    kubeconfig::{Cluster as Server, User},
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bootstrap_core::{Layout, config::Init, constants::NODES_GROUP};
use client::{Client, HttpTransport, TlsMaterial};
use instances::{Machine, machine};
use kops_api::Spec as _;
use pki::{Key, KeyAlgorithm, SigningRequest, Subject};
use serde_json::{Value, json};

use super::{
    context::{Certificate, NodeAnswer, NodeContext},
    control_plane,
};
use crate::{
    controller::{API_VERSION, PATH},
    error::Error,
    parameters::API_PORT,
};

/// Asks each server in turn until one answers.
pub(super) async fn request_config(boot: &Value, machine: &Machine) -> Result<NodeAnswer, Error> {
    let key = Key::generate(KeyAlgorithm::EcdsaP256)?;
    let subject = Subject::new(format!("system:node:{}", machine.name)).in_group(NODES_GROUP);
    let request = SigningRequest::create(&subject, &[], &key)?.to_pem();
    let body = json!({"apiVersion": API_VERSION, "certs": {"kubelet": request}, "includeNodeConfig": true});
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
        let text = body.to_string();
        match client.call(http::Method::POST, PATH, "application/json", text.into()).await {
            Ok(response) => return read_response(&response, &key),
            Err(error) => last = error.into(),
        }
    }
    Err(last)
}

fn read_response(response: &[u8], key: &Key) -> Result<NodeAnswer, Error> {
    let tree: Value = serde_json::from_slice(response).map_err(Error::ControllerJson)?;
    let (config, cert) = (tree.text("nodeConfig.nodeupConfig"), tree.text("certs.kubelet"));
    if config.is_empty() || cert.is_empty() {
        return Err(Error::ControllerResponse);
    }
    let certificate = Certificate { cert: cert.to_owned(), key: key.to_pem()? };
    let docker_config = match tree.text("nodeConfig.nodeSecrets.dockerconfig") {
        "" => None,
        text => Some(STANDARD.decode(text).map_err(Error::NodeSecret)?),
    };
    Ok(NodeAnswer { config: config.to_owned(), certificate: Some(certificate), docker_config })
}

/// Writes the kubelet's files, and returns the configuration of `init` for the rest.
pub(super) fn write_files(context: &NodeContext, certificate: Certificate) -> Result<Init, Error> {
    let layout = Layout::default();
    let authority = context.boot.text("ConfigServer.CACertificates");
    let path = layout.pki("ca", "crt");
    let directory = layout.certificates.display().to_string();
    fs::create_dir_all(&layout.certificates)
        .map_err(kops_store::Error::file("making the directory", &directory))?;
    pki::write_file(&path, authority.as_bytes(), pki::PUBLIC_MODE)?;
    let cluster = &context.machine.cluster;
    let server = Server::with_ca(format!("https://api.internal.{cluster}:{API_PORT}"), authority);
    let user = User::with_cert(&certificate.cert, &certificate.key);
    let name = format!("system:node:{}", context.machine.name);
    Kubeconfig::single(cluster, server, &name, user).write(&layout.kubeconfig("kubelet.conf"))?;
    Ok(control_plane::worker_init(context))
}
