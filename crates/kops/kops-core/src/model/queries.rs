//! Queries on a cluster that the models of all clouds need.

use std::collections::BTreeMap;

use api_meta::Tree as _;
use kops_api::Object;
use serde_json::{Map, Value};

use crate::{
    cluster::{CloudName, Cluster as _},
    error::Error,
};

/// The default range of node ports.
const NODE_PORTS: (i64, i64) = (30000, 32767);
/// The prefix of the tags that tell the cluster autoscaler the taints of future Nodes.
const TAINT: &str = "k8s.io/cluster-autoscaler/node-template/taint/";

/// Returns the subnets of a group. The spec's validation has checked their names.
pub(super) fn subnets_of<'a>(spec: &'a Value, group: &Object) -> Result<Vec<&'a Value>, Error> {
    let all = spec.items("networking.subnets");
    let find = |name: &str| {
        let found = all.iter().find(|subnet| subnet.text("name") == name);
        found.ok_or_else(|| Error::Unknown {
            what: "subnet",
            name: name.to_owned(),
            remedy: "see spec.subnets of the cluster",
        })
    };
    let names = group.spec.texts("subnets");
    let found = names.into_iter().map(find).collect::<Result<Vec<_>, _>>()?;
    if found.is_empty() {
        let field = format!("spec.subnets of instance group {}", group.name());
        return Err(Error::Missing { field, hint: "" });
    }
    Ok(found)
}

/// Reports whether Cilium has an etcd cluster of its own.
pub(super) fn has_cilium_etcd(spec: &Value) -> bool {
    let managed = |etcd: &Value| etcd.text("name") == "cilium";
    spec.has("networking.cilium") && spec.items("etcdClusters").iter().any(managed)
}

/// Returns the first and the last node port.
pub(super) fn node_ports(spec: &Value) -> Result<(i64, i64), Error> {
    let field = "kubeAPIServer.serviceNodePortRange";
    let text = spec.text(field);
    if text.is_empty() {
        return Ok(NODE_PORTS);
    }
    let ports = text.split_once('-').and_then(|(first, last)| {
        Some((first.trim().parse::<u16>().ok()?, last.trim().parse::<u16>().ok()?))
    });
    match ports {
        Some((first, last)) if first <= last => Ok((first.into(), last.into())),
        _ => {
            Err(Error::value(&format!("spec.{field}"), text, "is not a range such as 30000-32767"))
        }
    }
}

/// Returns the labels that tell the cluster autoscaler the taints of a group's future Nodes.
pub(super) fn taint_labels(group: &Object) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::new();
    for taint in group.spec.texts("taints") {
        if let Some((key, effect)) = taint.split_once(':').filter(|(_, effect)| !effect.is_empty())
        {
            let (key, value) = key.split_once('=').unwrap_or((key, ""));
            labels.insert(format!("{TAINT}{key}"), format!("{value}:{effect}"));
        }
    }
    labels
}

/// Returns the group of an etcd member.
pub(super) fn group_of_member<'a>(
    groups: &'a [Object],
    member: &Value,
) -> Result<&'a Object, Error> {
    let name = member.text("instanceGroup");
    groups.iter().find(|one| one.name() == name).ok_or_else(|| Error::Unknown {
        what: "instance group",
        name: name.to_owned(),
        remedy: "an etcd member refers to it; create it first",
    })
}

/// Returns the string values of a map.
pub(super) fn pairs(map: Option<&Value>) -> impl Iterator<Item = (String, String)> + '_ {
    let members = map.and_then(Value::as_object).into_iter().flat_map(Map::iter);
    members.map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned()))
}

/// Returns the non-empty text at a path.
pub(super) fn text_at(spec: &Value, path: &str) -> Option<String> {
    Some(spec.text(path).to_owned()).filter(|text| !text.is_empty())
}

/// Rejects a cluster of another cloud than the model's.
pub(super) fn reject_cloud(cluster: &Object, cloud: CloudName) -> Result<(), Error> {
    if cluster.cloud() == cloud {
        return Ok(());
    }
    Err(Error::Unsupported {
        what: format!("a model of cloud {}", cluster.cloud().word()),
        remedy: "only clusters on aws and gce have a resource model",
    })
}

/// Rejects a spec with one of the unsupported fields, by name. Each field has the alternative.
pub(super) fn reject_fields(
    kind: &str,
    name: &str,
    spec: &Value,
    fields: &[(&str, &'static str)],
) -> Result<(), Error> {
    match fields.iter().find(|(field, _)| spec.has(field)) {
        Some((field, remedy)) => {
            Err(Error::Unsupported { what: format!("spec.{field} of {kind} {name:?}"), remedy })
        }
        None => Ok(()),
    }
}
