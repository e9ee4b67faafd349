//! The cluster's parameters for the phases of `init`, which control planes, workers and add-ons share.

use std::{net::IpAddr, time::Duration};

use api_meta::Tree as _;
use bootstrap_core::{
    config::{Documents, Facts, Init},
    constants::OWN_REPOSITORY,
};
use kops_api::Object;

/// The annotation of an upstream manifest whose program is replaced by ours.
pub const PROGRAM_ANNOTATION: &str = "kops.windlass.local/runs";
/// The user name of kube-proxy at the API server.
pub(crate) const PROXY_USER: &str = "system:kube-proxy";
/// The lifetime of the certificates that a machine makes or receives at its creation, as upstream's. Those of the
/// machine's programs other than the kubelet are not renewed: a rolling update replaces the machine in time.
pub const CERTIFICATE_PERIOD: Duration = Duration::from_secs(455 * 86_400);
/// The API's port on its machines.
pub const API_PORT: u16 = 443;

/// The cluster's parameters for the phases of `init`.
#[derive(Clone, Debug)]
pub struct ClusterParameters {
    /// The cluster's name.
    pub name: String,
    /// The version of Kubernetes, without a `v`.
    pub version: String,
    /// The address range of Services.
    pub services: String,
    /// The address range of Pods.
    pub pods: String,
    /// The DNS domain of Services.
    pub domain: String,
}

impl ClusterParameters {
    /// Returns the parameters of a complete spec.
    pub fn of(cluster: &Object) -> Self {
        let text = |path| cluster.spec.text(path).to_owned();
        Self {
            name: cluster.name().to_owned(),
            version: text("kubernetesVersion"),
            services: text("networking.serviceClusterIPRange"),
            pods: text("networking.podCIDR"),
            domain: text("clusterDNSDomain"),
        }
    }

    /// Returns the API's name in the machines' hosts files.
    pub fn api_name(&self) -> String {
        format!("api.internal.{}", self.name)
    }

    /// Returns the configuration of `init`, for a machine if one is given.
    pub fn init(&self, machine: Option<(&str, IpAddr)>) -> Init {
        let mut documents = Documents::default();
        let cluster = documents.cluster.get_or_insert_default();
        cluster.cluster_name.clone_from(&self.name);
        cluster.kubernetes_version = format!("v{}", self.version);
        cluster.networking.service_subnet.clone_from(&self.services);
        cluster.networking.pod_subnet.clone_from(&self.pods);
        cluster.networking.dns_domain.clone_from(&self.domain);
        cluster.control_plane_endpoint = format!("{}:{API_PORT}", self.api_name());
        cluster.image_repository = OWN_REPOSITORY.to_owned();
        cluster.encryption_algorithm = "ECDSA-P256".to_owned();
        let names =
            [self.api_name(), format!("api.{}", self.name), "localhost".into(), "127.0.0.1".into()];
        cluster.api_server.cert_sans = names.into();
        let init = documents.init.get_or_insert_default();
        init.local_api_endpoint.bind_port = API_PORT.into();
        let mut facts = Facts {
            image_repository: OWN_REPOSITORY.to_owned(),
            cgroup_driver: "cgroupfs".to_owned(),
            ..Facts::default()
        };
        if let Some((name, address)) = machine {
            init.node_registration.name = name.to_owned();
            init.local_api_endpoint.advertise_address = address.to_string();
            facts.hostname = name.to_owned();
            facts.address = Some(address);
        }
        Init::complete(documents, &facts)
    }
}
