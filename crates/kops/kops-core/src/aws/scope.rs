//! The scope of queries for a cluster, beyond the resources that carry its tag.

use std::collections::{BTreeMap, BTreeSet};

use crate::names::{queue_name, rule_prefix};

/// The scope of queries about a cluster in AWS.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    /// The cluster's name.
    pub cluster: String,
    /// The queue's name; empty without one.
    pub queue: String,
    /// The prefix of its event rules' names.
    pub rules: String,
    /// The Route 53 zone of the cluster's names; empty without one.
    pub zone: String,
    /// The cluster's names in the zone.
    pub names: BTreeSet<String>,
    /// `true` if the VPCs of a private zone are queried.
    pub zone_is_private: bool,
    /// The service account issuer with an OIDC provider; empty without one.
    pub issuer: String,
    /// The names of the wanted lifecycle hooks, by scaling group.
    pub hooks: BTreeMap<String, BTreeSet<String>>,
    /// `true` for a deletion, which also queries the owners of resources whose listings have no tags.
    pub for_deletion: bool,
}

/// The names of a cluster in its zone.
const NAMES: [&str; 4] = ["api", "api.internal", "bastion", "kops-controller.internal"];

impl Scope {
    /// Returns the scope given by a cluster's name alone.
    pub fn of_name(cluster: &str) -> Self {
        Self {
            cluster: cluster.to_owned(),
            queue: queue_name(cluster),
            rules: rule_prefix(cluster),
            ..Self::default()
        }
    }

    /// Returns the scope of a deletion. `zone` and `issuer` are empty if the cluster has none.
    pub fn of_deletion(cluster: &str, zone: &str, issuer: &str) -> Self {
        let names = match zone {
            "" => BTreeSet::new(),
            _ => NAMES.iter().map(|name| format!("{name}.{cluster}")).collect(),
        };
        Self {
            zone: zone.to_owned(),
            names,
            issuer: issuer.to_owned(),
            for_deletion: true,
            ..Self::of_name(cluster)
        }
    }
}
