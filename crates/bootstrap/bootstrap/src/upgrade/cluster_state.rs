//! The versions that run in a cluster, and its health.

use std::collections::{BTreeMap, BTreeSet};

use api_meta::Tree as _;
use bootstrap_core::{
    constants::CONTROL_PLANE_LABEL,
    manifests::Component,
    upgrade::{Running, first_image, image_tag, parse_version},
};
use client::{Client, List, ListOptions, Resource};
use semver::Version;
use serde_json::Value;

use crate::{
    Error,
    cluster::{get, is_ready},
};

/// The versions that run in a cluster.
#[derive(Clone, Debug)]
pub struct ClusterState {
    /// The version of the API server.
    pub cluster: Version,
    /// The kubelets' versions by Node.
    pub kubelets: BTreeMap<String, String>,
    /// The image tags of static Pods by component and Node.
    pub static_pods: BTreeMap<&'static str, BTreeMap<String, String>>,
    /// The tag of kube-proxy's image, if it is installed.
    pub proxy: Option<String>,
    /// The tag of CoreDNS' image, if it is installed.
    pub dns: Option<String>,
    /// The control planes that are not ready.
    pub unready_control_planes: Vec<String>,
}

impl ClusterState {
    /// Reads the state from the API.
    pub async fn read(client: &Client) -> Result<Self, Error> {
        let nodes = list(client, &Resource::NODES, ListOptions::default()).await?;
        let is_control_plane =
            |node: &&Value| node.at("metadata.labels").get(CONTROL_PLANE_LABEL).is_some();
        let unready = nodes.iter().filter(is_control_plane).filter(|node| !is_ready(node));
        Ok(Self {
            cluster: server_version(client).await?,
            kubelets: nodes.iter().map(kubelet_version).collect(),
            unready_control_planes: unready.map(|node| node.name().to_owned()).collect(),
            static_pods: static_pods(client).await?,
            proxy: template_tag(client, &Resource::DAEMON_SETS, "kube-proxy").await?,
            dns: template_tag(client, &Resource::DEPLOYMENTS, "coredns").await?,
        })
    }

    /// Returns the versions that the skew policy compares. A kubelet may report any text as its version; those that are
    /// no versions are reported and not compared.
    pub fn running(&self) -> Running {
        let mut kubelets = BTreeSet::new();
        for (node, text) in &self.kubelets {
            match parse_version(text) {
                Ok(version) => drop(kubelets.insert(version)),
                Err(error) => tracing::warn!(node, %error, "the kubelet's version is not compared"),
            }
        }
        Running { cluster: self.cluster.clone(), kubelets }
    }
}

/// Returns the control planes whose API server has another image tag.
pub(super) async fn not_upgraded(client: &Client, tag: &str) -> Result<Vec<String>, Error> {
    let pods = static_pods(client).await?;
    let servers = pods.get(Component::ApiServer.name()).into_iter().flatten();
    Ok(servers.filter(|(_, other)| *other != tag).map(|(node, _)| node.clone()).collect())
}

fn kubelet_version(node: &Value) -> (String, String) {
    (node.name().to_owned(), node.text("status.nodeInfo.kubeletVersion").to_owned())
}

async fn server_version(client: &Client) -> Result<Version, Error> {
    let failed = |source| Error::Api {
        operation: "read",
        subject: "the server's version".to_owned(),
        source,
    };
    let call = client.call(http::Method::GET, "/version", "", Default::default());
    let response: Value = serde_json::from_slice(&call.await.map_err(failed)?).unwrap_or_default();
    Ok(parse_version(response.text("gitVersion"))?)
}

async fn list(
    client: &Client,
    resource: &Resource,
    options: ListOptions,
) -> Result<Vec<Value>, Error> {
    let namespace = if resource.kind == "Pod" { "kube-system" } else { "" };
    let listed: Result<List<Value>, _> = client.list(resource, namespace, &options).await;
    let subject = || format!("all {}", resource.plural);
    Ok(listed.map_err(|source| Error::Api { operation: "list", subject: subject(), source })?.items)
}

/// Returns the image tags of the control planes' static Pods.
async fn static_pods(
    client: &Client,
) -> Result<BTreeMap<&'static str, BTreeMap<String, String>>, Error> {
    let options =
        ListOptions { label_selector: "tier=control-plane".to_owned(), ..ListOptions::default() };
    let pods = list(client, &Resource::PODS, options).await?;
    let mut found = BTreeMap::<_, BTreeMap<_, _>>::new();
    for component in Component::CONTROL_PLANE.into_iter().chain([Component::Etcd]) {
        let pods =
            pods.iter().filter(|pod| *pod.at("metadata.labels.component") == component.name());
        for pod in pods {
            let node = pod.text("spec.nodeName").to_owned();
            let tag = image_tag(first_image(pod)).to_owned();
            found.entry(component.name()).or_default().insert(node, tag);
        }
    }
    Ok(found)
}

async fn template_tag(
    client: &Client,
    resource: &Resource,
    name: &str,
) -> Result<Option<String>, Error> {
    let found = get(client, resource, "kube-system", name).await?;
    Ok(found.map(|object| image_tag(first_image(object.at("spec.template"))).to_owned()))
}
