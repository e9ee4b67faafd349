//! The kind `Cluster` of `windlass.io/v1alpha1`, which `up --config` reads. Flags change the same values.
//!
//! A cluster's settings hold the whole document. A later `up` compares its document with those that the processes were
//! started with, and restarts the processes that a change concerns.

mod error;
mod load_balancer;
mod node;
mod publish;
mod registry;

use std::{collections::BTreeMap, ops::RangeInclusive, path::Path};

use api_config::{
    GoDuration, KubeProxyConfiguration, KubeletConfiguration, Strictness, kubeadm::Arg, versioned,
};
use bootstrap_core::manifests::Component as Program;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

pub use error::ConfigError;
pub(crate) use load_balancer::HostNetwork;
pub use load_balancer::{LoadBalancer, LoadBalancerError};
pub use node::{ExtraMount, NodeConfig};
pub(crate) use publish::check as check_ports;
pub use publish::{PublishError, PublishedPort};
pub use registry::Registry;

/// The admission plugins of `up` besides upstream's defaults. Without `DenyServiceExternalIPs`, the author of a Service
/// can hijack traffic to other addresses (CVE-2020-8554), and nothing under `up` needs external addresses.
const ADMISSION_PLUGINS: [&str; 2] = ["NodeRestriction", "DenyServiceExternalIPs"];

const API_VERSION: &str = "windlass.io/v1alpha1";
const KIND: &str = "Cluster";
/// The validity of certificates. Processes check for renewed files about once a minute, and the CAs live ten years.
const VALIDITY: RangeInclusive<GoDuration> =
    GoDuration::from_secs(5 * 60)..=GoDuration::from_secs(87_600 * 3600);
/// The JSON schema of the document.
pub(crate) const SCHEMA: &str = include_str!("config/schema.json");

/// A cluster of `windlass up`, of the kind `Cluster`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ClusterConfig {
    /// The version, `windlass.io/v1alpha1`.
    pub api_version: String,
    /// The kind, `Cluster`.
    pub kind: String,
    /// The address ranges. They cannot change later.
    pub networking: Networking,
    /// The number of control planes among the nodes. It cannot change from or to one later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub control_planes: Option<u8>,
    /// The nodes, the first of which is this host. Nodes that are missing in a later file are kept.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<NodeConfig>,
    /// The source of the addresses of LoadBalancer Services.
    pub load_balancer: LoadBalancer,
    /// The ports of this host that lead to node ports, such as `8080:30080/tcp`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub publish: Vec<PublishedPort>,
    /// The validity of certificates other than CAs, from five minutes to ten years, by default one year.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate_validity_period: Option<GoDuration>,
    /// The API server.
    pub api_server: ApiServer,
    /// The controller manager.
    pub controller_manager: Component,
    /// The scheduler.
    pub scheduler: Component,
    /// The feature gates of all components.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub feature_gates: BTreeMap<String, bool>,
    /// Fields of KubeletConfiguration (`kubelet.config.k8s.io/v1beta1`) for all nodes.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub kubelet: Map<String, Value>,
    /// Fields of KubeProxyConfiguration (`kubeproxy.config.k8s.io/v1alpha1`) for all nodes.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub kube_proxy: Map<String, Value>,
    /// The mirrors and credentials of image registries.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub registries: Vec<Registry>,
}

/// The address ranges of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Networking {
    /// The address range of Pods; two with a comma for both families.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_subnet: Option<String>,
    /// The address range of Services; two with a comma for both families.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_subnet: Option<String>,
    /// `true` if Pods and Services have an IPv6 address besides the IPv4 one.
    pub dual_stack: bool,
    /// `true` if packets between Pods of different nodes use a tunnel even where plain routes would do.
    pub tunnel: bool,
}

/// The additions to the API server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ApiServer {
    /// The additional names and addresses of the serving certificate.
    #[serde(rename = "certSANs", skip_serializing_if = "Vec::is_empty")]
    pub cert_sans: Vec<String>,
    /// The additional or replaced flags, as in kubeadm. Flags that name files configure admission, audit, encryption,
    /// authentication and authorization.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub extra_args: Vec<Arg>,
}

/// The additions to the controller manager or the scheduler.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Component {
    /// The additional or replaced flags, as in kubeadm.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub extra_args: Vec<Arg>,
}

/// The flags of the API server that `up` sets itself, by their beginnings.
const OWN_API_SERVER: &[&str] = &[
    "advertise-address",
    "bind-address",
    "client-ca-file",
    "etcd-cafile",
    "etcd-certfile",
    "etcd-keyfile",
    "etcd-prefix",
    "etcd-servers",
    "feature-gates",
    "kubelet-",
    "proxy-client-",
    "requestheader-",
    "secure-port",
    "service-account-key-file",
    "service-account-signing-key-file",
    "service-cluster-ip-range",
    "snapshot-",
    "store-dir",
    "tls-cert-file",
    "tls-private-key-file",
];
/// The flags of the other components that `up` sets itself.
const OWN: &[&str] = &[
    "allocate-node-cidrs",
    "authentication-kubeconfig",
    "authorization-kubeconfig",
    "bind-address",
    "client-ca-file",
    "cluster-cidr",
    "cluster-name",
    "cluster-signing-cert-file",
    "cluster-signing-key-file",
    "feature-gates",
    "kubeconfig",
    "leader-elect",
    "load-balancer-ranges",
    "requestheader-",
    "root-ca-file",
    "secure-port",
    "service-account-private-key-file",
    "service-cluster-ip-range",
    "tls-",
    "use-service-account-credentials",
];

/// The fields of KubeletConfiguration that differ between nodes or that `up` needs to have.
const OWN_KUBELET: [&str; 8] = [
    "apiVersion",
    "kind",
    "address",
    "cgroupRoot",
    "podLogsDir",
    "port",
    "staticPodPath",
    "featureGates",
];
/// The same for KubeProxyConfiguration.
const OWN_PROXY: [&str; 6] =
    ["apiVersion", "kind", "clientConnection", "clusterCIDR", "hostnameOverride", "featureGates"];

impl ClusterConfig {
    /// Reads a file and checks what needs no cluster.
    pub(crate) fn load(path: &Path) -> Result<Self, ConfigError> {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: name.clone(), source })?;
        let config = Self::read(&name, &text)?;
        config.check_sections()?;
        Ok(config)
    }

    /// Decodes the document. An unknown field is an error that names its path.
    fn read(path: &str, text: &str) -> Result<Self, ConfigError> {
        let failed = |source| ConfigError::Decode { path: path.to_owned(), source };
        let mut documents = api_config::yaml::parse_all(text).map_err(failed)?;
        if documents.len() != 1 {
            return Err(ConfigError::Documents { path: path.to_owned(), count: documents.len() });
        }
        versioned(KIND, documents.remove(0), &[API_VERSION], Strictness::Refuse).map_err(failed)
    }

    /// Checks the parts that are kinds of components.
    fn check_sections(&self) -> Result<(), ConfigError> {
        let (planes, nodes) = (self.control_planes.unwrap_or(1), self.nodes.len());
        for (field, number, most) in
            [("controlPlanes", usize::from(planes), 7), ("nodes", nodes.max(1), 100)]
        {
            if !(1..=most).contains(&number) {
                let (field, value) = (field.to_owned(), number.to_string());
                let expected = "from 1 to 7 control planes and at most 100 nodes";
                return Err(ConfigError::Value { field, value, expected });
            }
        }
        if let Some(period) = self.certificate_validity_period
            && !VALIDITY.contains(&period)
        {
            let (field, value) = ("certificateValidityPeriod".to_owned(), period.to_string());
            return Err(ConfigError::Value { field, value, expected: "from 5m to 87600h" });
        }
        self.kubelet_over(KubeletConfiguration::new())?;
        self.kube_proxy_over(KubeProxyConfiguration::new())?;
        self.nodes.iter().enumerate().try_for_each(|(index, node)| node.check(index))?;
        self.registries
            .iter()
            .enumerate()
            .try_for_each(|(index, registry)| registry.check(index))?;
        self.check_flags()
    }

    /// Returns a kubelet's configuration with the document's fields.
    pub(crate) fn kubelet_over(
        &self,
        base: KubeletConfiguration,
    ) -> Result<KubeletConfiguration, ConfigError> {
        let section = "kubelet";
        let failed = |source| ConfigError::Section { section, source };
        let mut tree = base.to_value().map_err(failed)?;
        self.overlay(&mut tree, &self.kubelet, section, &OWN_KUBELET)?;
        let decoded = KubeletConfiguration::from_value(tree).map_err(failed)?;
        Ok(decoded.checked(Strictness::Refuse).map_err(failed)?.value)
    }

    /// Returns a service proxy's configuration with the document's fields.
    pub(crate) fn kube_proxy_over(
        &self,
        base: KubeProxyConfiguration,
    ) -> Result<KubeProxyConfiguration, ConfigError> {
        let section = "kubeProxy";
        let failed = |source| ConfigError::Section { section, source };
        let mut tree = base.to_value().map_err(failed)?;
        self.overlay(&mut tree, &self.kube_proxy, section, &OWN_PROXY)?;
        let decoded = KubeProxyConfiguration::from_value(tree).map_err(failed)?;
        Ok(decoded.checked(Strictness::Refuse).map_err(failed)?.value)
    }

    /// Replaces fields of a configuration, and sets the feature gates. A map or list of the document replaces the whole
    /// one.
    fn overlay(
        &self,
        tree: &mut Value,
        fields: &Map<String, Value>,
        section: &'static str,
        own: &[&str],
    ) -> Result<(), ConfigError> {
        for (field, value) in fields {
            if own.contains(&field.as_str()) {
                return Err(ConfigError::Managed { section, field: field.clone() });
            }
            tree[field] = value.clone();
        }
        if !self.feature_gates.is_empty() {
            tree["featureGates"] = json!(self.feature_gates);
        }
        Ok(())
    }

    /// Checks that the document sets no flag of `up`.
    fn check_flags(&self) -> Result<(), ConfigError> {
        for (section, args, own) in [
            ("apiServer.extraArgs", &self.api_server.extra_args, OWN_API_SERVER),
            ("controllerManager.extraArgs", &self.controller_manager.extra_args, OWN),
            ("scheduler.extraArgs", &self.scheduler.extra_args, OWN),
        ] {
            let is_own = |arg: &&Arg| own.iter().any(|own| arg.name.starts_with(own));
            if let Some(arg) = args.iter().find(is_own) {
                return Err(ConfigError::Managed { section, field: arg.name.clone() });
            }
        }
        Ok(())
    }

    /// Returns the flags of a component, for kubeadm's configuration. Those of the document come last and win.
    pub(crate) fn extra_args(&self, component: Program) -> Vec<Arg> {
        let (mut args, own) = match component {
            Program::ApiServer => (
                vec![Arg::new("enable-admission-plugins", ADMISSION_PLUGINS.join(","))],
                &self.api_server.extra_args,
            ),
            Program::ControllerManager => {
                (self.load_balancer.flags(), &self.controller_manager.extra_args)
            }
            Program::Scheduler | Program::Etcd => (Vec::new(), &self.scheduler.extra_args),
        };
        if !self.feature_gates.is_empty() {
            let gates = self.feature_gates.iter().map(|(gate, on)| format!("{gate}={on}"));
            args.push(Arg::new("feature-gates", gates.collect::<Vec<_>>().join(",")));
        }
        args.retain(|arg| !own.iter().any(|other| other.name == arg.name));
        args.extend(own.iter().cloned());
        args
    }
}

#[cfg(test)]
pub(crate) mod tests;
