//! Rejects fields of specs that the model does not support, by name, instead of ignoring them silently.

use kops_api::Object;

use crate::{
    cluster::CloudName,
    error::Error,
    model::queries::{reject_cloud, reject_fields},
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
    reject_cloud(cluster, CloudName::Aws)?;
    reject_fields("cluster", cluster.name(), &cluster.spec, &OF_CLUSTERS)?;
    for group in groups {
        reject_fields("instance group", group.name(), &group.spec, &OF_GROUPS)?;
    }
    Ok(())
}
