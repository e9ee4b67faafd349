//! Services.

use api_meta::{LabelSelector, ObjectMeta, Selector, null_default};
use serde::Deserialize;

use super::labels::{Labels, selector};

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Service {
    pub(crate) metadata: ObjectMeta,
    pub(crate) spec: ServiceSpec,
    pub(crate) status: ServiceStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ServiceSpec {
    pub(crate) r#type: String,
    #[serde(deserialize_with = "null_default")]
    pub(crate) selector: Labels,
    #[serde(deserialize_with = "null_default")]
    pub(crate) ports: Vec<ServicePort>,
    #[serde(rename = "clusterIP")]
    pub(crate) cluster_ip: Option<String>,
    #[serde(deserialize_with = "null_default")]
    pub(crate) ip_families: Vec<String>,
    pub(crate) publish_not_ready_addresses: bool,
    pub(crate) traffic_distribution: Option<String>,
    pub(crate) external_traffic_policy: Option<String>,
    pub(crate) load_balancer_class: Option<String>,
    #[serde(rename = "loadBalancerIP")]
    pub(crate) load_balancer_ip: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ServiceStatus {
    pub(crate) load_balancer: LoadBalancerStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct LoadBalancerStatus {
    #[serde(deserialize_with = "null_default")]
    pub(crate) ingress: Vec<LoadBalancerIngress>,
}

/// An address of a load balancer, with the fields that controllers read.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct LoadBalancerIngress {
    pub(crate) ip: String,
    pub(crate) ip_mode: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ServicePort {
    pub(crate) name: Option<String>,
    pub(crate) protocol: Option<String>,
    pub(crate) port: i32,
    pub(crate) target_port: Option<api_meta::IntOrString>,
    pub(crate) app_protocol: Option<String>,
}

impl Service {
    /// Returns the selector. An empty one selects nothing.
    pub(crate) fn selector(&self) -> Selector {
        let match_labels = self.spec.selector.clone();
        selector(Some(&LabelSelector { match_labels, ..LabelSelector::default() }))
    }
}
