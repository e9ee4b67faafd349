//! The complete configuration of `init`.

use api_config::{
    KubeProxyConfiguration, KubeletConfiguration,
    kubeadm::{ClusterConfiguration, InitConfiguration},
};

use super::{
    defaults::{default_cluster, default_init, default_kubelet, default_proxy},
    dynamic,
    facts::Facts,
    read::Documents,
};

/// The complete configuration of `init`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Init {
    /// The machine's configuration.
    pub init: InitConfiguration,
    /// The cluster's configuration.
    pub cluster: ClusterConfiguration,
    /// The kubelets' configuration.
    pub kubelet: KubeletConfiguration,
    /// kube-proxy's configuration.
    pub proxy: KubeProxyConfiguration,
    /// `true` if the user provided the kubelet's configuration. Then no hash marks it as generated, and an upgrade
    /// keeps it.
    pub custom_kubelet: bool,
    /// `true` if the user provided kube-proxy's configuration.
    pub custom_proxy: bool,
}

impl Init {
    /// Completes the documents of a configuration file.
    pub fn complete(documents: Documents, facts: &Facts) -> Self {
        let mut all = Self {
            custom_kubelet: documents.kubelet.is_some(),
            custom_proxy: documents.proxy.is_some(),
            init: documents.init.unwrap_or_default(),
            cluster: documents.cluster.unwrap_or_default(),
            kubelet: documents.kubelet.unwrap_or_default(),
            proxy: documents.proxy.unwrap_or_default(),
        };
        all.fill(facts);
        all
    }

    /// Sets defaults of unset fields. It may run again after flags have changed fields.
    pub fn fill(&mut self, facts: &Facts) {
        default_init(&mut self.init, facts);
        default_cluster(&mut self.cluster, facts);
        dynamic::resolve_cluster(&mut self.cluster, &self.init.local_api_endpoint);
        default_kubelet(&mut self.kubelet, &self.cluster, facts);
        default_proxy(&mut self.proxy, &self.cluster, &self.init.local_api_endpoint);
    }
}
