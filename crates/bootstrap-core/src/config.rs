//! kubeadm's configuration: reading documents of every version, defaults, validation and printing.

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

/// Everything that `init` works on, defaults filled in.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Init {
    pub init: InitConfiguration,
    pub cluster: ClusterConfiguration,
    pub kubelet: KubeletConfiguration,
    pub proxy: KubeProxyConfiguration,
    /// Whether the kubelet's and kube-proxy's configuration came from the user; then no hash marks them as
    /// generated, and an upgrade leaves them alone.
    pub kubelet_given: bool,
    pub proxy_given: bool,
}

impl Init {
    /// The documents of a configuration file, completed.
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

    /// Fills in what is not set; may run again after flags have changed something.
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
