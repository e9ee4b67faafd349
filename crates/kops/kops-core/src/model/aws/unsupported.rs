//! Rejects fields of specs that the model does not support, by name, instead of ignoring them silently.

use api_meta::Tree as _;
use kops_api::Object;
use serde_json::Value;

use crate::{
    cluster::{CloudName, Cluster as _},
    error::Error,
};

/// The unsupported fields of groups, with the alternative.
const OF_GROUPS: [(&str, &str); 2] = [
    (
        "mixedInstancesPolicy.instanceRequirements",
        "name machine types in mixedInstancesPolicy.instances",
    ),
    ("guestAccelerators", "choose a machine type that has them"),
];
/// The unsupported fields of clusters.
const OF_CLUSTERS: [(&str, &str); 1] =
    [("cloudProvider.aws.spotinstProduct", "use scaling groups of AWS")];

/// Rejects the unsupported fields of a cluster and its groups.
pub(super) fn reject(cluster: &Object, groups: &[Object]) -> Result<(), Error> {
    if cluster.cloud() != CloudName::Aws {
        return Err(Error::Unsupported {
            what: format!("a model of cloud {}", cluster.cloud().word()),
            remedy: "only clusters on aws have a resource model",
        });
    }
    reject_fields("cluster", cluster.name(), &cluster.spec, &OF_CLUSTERS)?;
    for group in groups {
        reject_fields("instance group", group.name(), &group.spec, &OF_GROUPS)?;
    }
    Ok(())
}

fn reject_fields(
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
