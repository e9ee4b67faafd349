//! EndpointSlices as this controller and other ones read them.

use api_meta::{ObjectMeta, null_default};
use client::Index;
use serde::{Deserialize, Serialize};

use crate::shared::Watched;

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Slice {
    pub(crate) metadata: ObjectMeta,
    pub(crate) address_type: String,
    #[serde(deserialize_with = "null_default")]
    pub(crate) ports: Vec<SlicePort>,
    #[serde(deserialize_with = "null_default")]
    pub(crate) endpoints: Vec<Endpoint>,
}

impl Slice {
    pub(crate) fn service(&self) -> Option<&str> {
        self.metadata.labels.get("kubernetes.io/service-name").map(String::as_str)
    }

    pub(crate) fn managed_by(&self, manager: &str) -> bool {
        let label = self.metadata.labels.get("endpointslice.kubernetes.io/managed-by");
        label.is_some_and(|by| by == manager)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct SlicePort {
    pub(crate) name: String,
    pub(crate) port: Option<i32>,
    pub(crate) protocol: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) app_protocol: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Endpoint {
    pub(crate) addresses: Vec<String>,
    pub(crate) conditions: EndpointConditions,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hostname: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) target_ref: Option<TargetRef>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) node_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) zone: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hints: Option<Hints>,
}

/// The zones and nodes whose traffic an endpoint should get.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Hints {
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub(crate) for_zones: Vec<Hint>,
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub(crate) for_nodes: Vec<Hint>,
}

/// The name of a zone or a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Hint {
    pub(crate) name: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct EndpointConditions {
    pub(crate) ready: bool,
    pub(crate) serving: bool,
    pub(crate) terminating: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct TargetRef {
    pub(crate) kind: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
}

/// Indexes slices by the key of their Service.
pub(crate) fn by_service(slices: &Watched<Slice>) -> Index<Slice> {
    slices.index("service", |slice| {
        let service = slice.service();
        service.map(|name| format!("{}/{name}", slice.metadata.namespace)).into_iter().collect()
    })
}
