//! kubeadm's configuration: parses documents of every version, sets defaults, validates and prints. Read [`Init`]
//! first.

mod convert;
mod defaults;
mod dynamic;
mod print;
mod read;
mod validate;

use api_config::{
    KubeProxyConfiguration, KubeletConfiguration,
    kubeadm::{ClusterConfiguration, InitConfiguration},
};

pub use defaults::{
    Facts, default_cluster, default_init, default_join, default_kubelet, default_proxy,
    default_reset, default_timeouts, default_upgrade,
};
pub use print::{Kinds, document, init_defaults, join_defaults, reset_defaults, upgrade_defaults};
pub use read::{Documents, Read, migrate, read};
pub use validate::{
    validate_cluster, validate_init, validate_join, validate_reset, validate_upgrade,
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
    pub kubelet_given: bool,
    /// `true` if the user provided kube-proxy's configuration.
    pub proxy_given: bool,
}

impl Init {
    /// Completes the documents of a configuration file.
    pub fn complete(documents: Documents, facts: &Facts) -> Self {
        let mut all = Self {
            kubelet_given: documents.kubelet.is_some(),
            proxy_given: documents.proxy.is_some(),
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

#[cfg(test)]
mod tests;
