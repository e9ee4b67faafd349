//! Rejects fields of specs that the model does not support, by name, instead of ignoring them silently.

use api_meta::Tree as _;
use kops_api::Object;

use crate::{
    cluster::{CloudName, Cluster as _},
    error::Error,
    model::queries::{reject_cloud, reject_fields},
};

/// The remedy for fields of AWS' machines.
const AWS_ONLY: &str = "it is for clusters on aws; remove it";

/// The unsupported fields of groups, with the alternative.
const OF_GROUPS: [(&str, &str); 24] = [
    ("additionalSecurityGroups", AWS_ONLY),
    ("capacityRebalance", AWS_ONLY),
    ("cpuCredits", AWS_ONLY),
    ("detailedInstanceMonitoring", AWS_ONLY),
    ("externalLoadBalancers", AWS_ONLY),
    ("iam.profile", "set spec.cloudConfig.gceServiceAccount of the cluster"),
    ("instanceInterruptionBehavior", AWS_ONLY),
    ("instanceMetadata", AWS_ONLY),
    ("instanceProtection", AWS_ONLY),
    ("maxInstanceLifetime", AWS_ONLY),
    ("maxPrice", "use gcpProvisioningModel: SPOT"),
    ("mixedInstancesPolicy", AWS_ONLY),
    ("rootVolume.encryption", "GCE encrypts all disks; remove it"),
    ("rootVolume.encryptionKey", AWS_ONLY),
    ("rootVolume.optimization", AWS_ONLY),
    ("securityGroupOverride", AWS_ONLY),
    ("spotDurationInMinutes", AWS_ONLY),
    ("suspendProcesses", AWS_ONLY),
    ("tenancy", AWS_ONLY),
    ("volumes", "etcd's disks are the only further ones on gce"),
    ("volumeMounts", "etcd's disks are the only further ones on gce"),
    ("warmPool.maxSize", AWS_ONLY),
    ("warmPool.minSize", AWS_ONLY),
    ("warmPool.enableLifecycleHook", AWS_ONLY),
];
/// The unsupported fields of clusters.
const OF_CLUSTERS: [(&str, &str); 10] = [
    ("api.loadBalancer.accessLog", AWS_ONLY),
    ("api.loadBalancer.additionalSecurityGroups", AWS_ONLY),
    ("api.loadBalancer.crossZoneLoadBalancing", AWS_ONLY),
    ("api.loadBalancer.idleTimeoutSeconds", AWS_ONLY),
    ("api.loadBalancer.securityGroupOverride", AWS_ONLY),
    ("api.loadBalancer.sslCertificate", AWS_ONLY),
    ("api.loadBalancer.sslPolicy", AWS_ONLY),
    ("additionalPolicies", AWS_ONLY),
    ("externalPolicies", AWS_ONLY),
    (
        "serviceAccountIssuerDiscovery.discoveryStore",
        "the keys of service accounts are published on aws only",
    ),
];

/// Rejects the unsupported fields of a cluster and its groups.
pub(super) fn reject(cluster: &Object, groups: &[Object]) -> Result<(), Error> {
    reject_cloud(cluster, CloudName::Gce)?;
    if cluster.is_ipv6_only() {
        let what = "an IPv6 cluster on gce".to_owned();
        return Err(Error::Unsupported { what, remedy: "use an IPv4 spec.nonMasqueradeCIDR" });
    }
    reject_fields("cluster", cluster.name(), &cluster.spec, &OF_CLUSTERS)?;
    let etcd = cluster.spec.items("etcdClusters").iter();
    if etcd.flat_map(|etcd| etcd.items("etcdMembers")).any(|member| member.has("kmsKeyID")) {
        let what = "spec.etcdClusters[].etcdMembers[].kmsKeyId on gce".to_owned();
        return Err(Error::Unsupported { what, remedy: "GCE encrypts all disks; remove it" });
    }
    for group in groups {
        reject_fields("instance group", group.name(), &group.spec, &OF_GROUPS)?;
        if group.spec.text("manager") == "Karpenter" {
            let what = format!("manager Karpenter of instance group {:?}", group.name());
            return Err(Error::Unsupported { what, remedy: AWS_ONLY });
        }
    }
    Ok(())
}
