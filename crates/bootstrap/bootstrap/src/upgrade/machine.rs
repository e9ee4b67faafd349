//! Reads the configuration of a running machine: its own from its files, the cluster's from the API.

use std::fs;

use api_config::{KubeProxyConfiguration, Kubeconfig, kubeadm::ApiEndpoint, yaml};
use api_meta::Tree as _;
use bootstrap_core::{Layout, config::Documents, hash, manifests::Component};
use client::{Client, Resource};
use pki::Cert;
use serde_json::Value;

use super::context::Role;
use crate::{
    Error, UpgradeError,
    cluster::get,
    error::io,
    join::{cluster_configuration, kubelet_configuration},
};

/// The annotation with the advertised address of an API server's static Pod.
const ADVERTISED: &str = "kubeadm.kubernetes.io/kube-apiserver.advertise-address.endpoint";

/// The configuration of a running machine.
pub struct Machine {
    /// The documents that `init` would have read. They have no defaults.
    pub documents: Documents,
    /// `true` if a user has changed or provided the kubelets' configuration in the cluster.
    pub custom_kubelet: bool,
    /// `true` if a user has changed or provided kube-proxy's configuration in the cluster.
    pub custom_proxy: bool,
    /// The part of the machine in the cluster.
    pub role: Role,
}

/// Reads the configuration of the machine with these files.
pub async fn read_machine(client: &Client, layout: &Layout) -> Result<Machine, Error> {
    let manifest = layout.manifests().join(Component::ApiServer.file());
    let role = if manifest.exists() { Role::ControlPlane } else { Role::Worker };
    let mut documents = Documents::default();
    let init = documents.init.get_or_insert_default();
    init.node_registration.name = node_name(layout)?;
    if let Some(socket) = runtime_socket(layout) {
        init.node_registration.cri_socket = socket;
    }
    if role == Role::ControlPlane {
        init.local_api_endpoint = advertised(&read_pod(&manifest)?)
            .ok_or_else(|| UpgradeError::NoAddress { manifest: manifest.clone() })?;
    }
    documents.cluster = Some(cluster_configuration(client).await?);
    let (kubelet, custom_kubelet) = kubelet_configuration(client).await?;
    documents.kubelet = Some(kubelet);
    let mut custom_proxy = false;
    // Nodes may not read it, and a cluster may have another service proxy.
    if role == Role::ControlPlane
        && let Some(proxy) =
            get(client, &Resource::CONFIG_MAPS, "kube-system", "kube-proxy").await?
    {
        let text = proxy["data"]["config.conf"].as_str().unwrap_or_default();
        documents.proxy = Some(KubeProxyConfiguration::from_value(yaml::parse(text)?)?.value);
        custom_proxy = !hash::is_untouched(&proxy);
    }
    Ok(Machine { documents, custom_kubelet, custom_proxy, role })
}

/// Reads the name of the Node from the kubelet's client certificate.
fn node_name(layout: &Layout) -> Result<String, Error> {
    let path = layout.kubeconfig("kubelet.conf");
    let config = Kubeconfig::load(&path)?;
    let pem = config.current()?.user.cert_pem()?.unwrap_or_default();
    let name = Cert::from_pem(&pem)?.info()?.subject.common_name;
    match name.strip_prefix("system:node:") {
        Some(name) => Ok(name.to_owned()),
        None => Err(UpgradeError::NotANode { path, user: name }.into()),
    }
}

/// Returns the runtime's endpoint from the kubelet's configuration on this machine.
fn runtime_socket(layout: &Layout) -> Option<String> {
    let files = [layout.kubelet_instance_config(), layout.kubelet_config()];
    files.iter().find_map(|path| {
        let config: Value = yaml::parse(&fs::read_to_string(path).ok()?).ok()?;
        let socket = config.text("containerRuntimeEndpoint");
        (!socket.is_empty()).then(|| socket.to_owned())
    })
}

/// Reads a static Pod.
pub(super) fn read_pod(path: &std::path::Path) -> Result<Value, Error> {
    Ok(yaml::parse(&fs::read_to_string(path).map_err(io("read", path))?)?)
}

/// Returns the address in the annotation of an API server's static Pod.
fn advertised(pod: &Value) -> Option<ApiEndpoint> {
    let (address, port) = pod.annotation(ADVERTISED)?.rsplit_once(':')?;
    let advertise_address = address.trim_start_matches('[').trim_end_matches(']').to_owned();
    Some(ApiEndpoint { advertise_address, bind_port: port.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn reads_advertised_address() {
        for (text, expected) in [
            ("192.0.2.1:6443", Some(("192.0.2.1", 6443))),
            ("[2001:db8::1]:8443", Some(("2001:db8::1", 8443))),
            ("192.0.2.1", None),
            ("192.0.2.1:port", None),
        ] {
            let pod = json!({"metadata": {"annotations": {ADVERTISED: text}}});
            let expected = expected.map(|(address, bind_port)| ApiEndpoint {
                advertise_address: address.to_owned(),
                bind_port,
            });
            assert_eq!(advertised(&pod), expected, "{text}");
        }
        assert_eq!(advertised(&json!({})), None);
    }
}
