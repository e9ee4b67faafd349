//! The options of the plugin `kubernetes`.

use std::path::PathBuf;

use api_meta::Selector;
use hickory_proto::rr::Name;

use crate::directive::Fallthrough;

/// The handling of names such as `1-2-3-4.NAMESPACE.pod.ZONE`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PodMode {
    /// These names do not exist.
    #[default]
    Disabled,
    /// Every address has a record.
    Insecure,
    /// Only addresses of existing Pods have records.
    Verified,
}

/// The API server of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ApiServer {
    /// The server of the command line's kubeconfig, or that of the Pod's service account.
    #[default]
    Default,
    /// The server of a kubeconfig.
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// The context; `None` for the current one.
        context: Option<String>,
    },
    /// A server by its URL.
    Endpoint {
        /// The URL.
        url: String,
        /// The client certificate, its key and the CA.
        tls: Option<[PathBuf; 3]>,
    },
}

/// The plugin `kubernetes`.
#[derive(Clone, Debug, Default)]
pub struct KubernetesOptions {
    /// The zones, including reverse zones.
    pub zones: Vec<Name>,
    /// The handling of Pod records.
    pub pods: PodMode,
    /// The TTL of all records, in seconds.
    pub ttl: u32,
    /// The zones whose unknown names go to the next plugin.
    pub fallthrough: Fallthrough,
    /// `true` if endpoints without a hostname are named after their Pods.
    pub endpoint_pod_names: bool,
    /// `true` if endpoints have no records.
    pub no_endpoints: bool,
    /// `true` if Services without ready endpoints do not exist.
    pub ignores_empty_services: bool,
    /// The namespaces with records; empty for all.
    pub namespaces: Vec<Box<str>>,
    /// The labels of Services with records.
    pub labels: Option<Selector>,
    /// The labels of namespaces with records.
    pub namespace_labels: Option<Selector>,
    /// The API server.
    pub api: ApiServer,
}
