//! Common queries on a cluster's spec.

use api_meta::Tree as _;
use kops_api::{CLOUD_LABEL, Object};

/// The clouds that clusters are completed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloudName {
    Aws,
    Gce,
    Metal,
    Local,
    /// A cloud without support.
    Other,
}

impl CloudName {
    /// Returns the cloud's name for `--cloud`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Aws => "aws",
            Self::Gce => "gce",
            Self::Metal => "metal",
            Self::Local => "local",
            Self::Other => "other",
        }
    }

    /// Reports whether the machines belong to no cloud, so that no cloud controller manages them.
    pub fn is_bare(self) -> bool {
        matches!(self, Self::Metal | Self::Local)
    }
}

/// The way in which a cluster's names are resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dns {
    Public,
    Private,
    None,
    /// Gossip between machines: the cluster's name ends in `.k8s.local`.
    Gossip,
}

/// Queries on a cluster.
pub trait Cluster {
    fn cloud(&self) -> CloudName;
    fn dns(&self) -> Dns;
    fn is_ipv6_only(&self) -> bool;
    /// Returns the region on AWS: the zone of the subnets without its last letter.
    fn region(&self) -> Option<&str>;
    /// Reports whether the cluster's names are published as DNS records.
    fn publishes_dns(&self) -> bool {
        matches!(self.dns(), Dns::Public | Dns::Private)
    }
}

impl Cluster for Object {
    fn cloud(&self) -> CloudName {
        let label = self.metadata.at(&["labels", CLOUD_LABEL]);
        match label.as_str() {
            Some("metal") => return CloudName::Metal,
            Some("local") => return CloudName::Local,
            _ => {}
        }
        match [("aws", CloudName::Aws), ("gce", CloudName::Gce)]
            .into_iter()
            .find(|(field, _)| self.spec.has(&format!("cloudProvider.{field}")))
        {
            Some((_, cloud)) => cloud,
            None => CloudName::Other,
        }
    }

    fn region(&self) -> Option<&str> {
        let zones = self.spec.items("networking.subnets").iter().map(|subnet| subnet.text("zone"));
        let mut regions = zones.filter_map(|zone| zone.get(..zone.len().checked_sub(1)?));
        regions.find(|region| !region.is_empty())
    }

    fn dns(&self) -> Dns {
        match self.spec.text("networking.topology.dns") {
            "None" => Dns::None,
            _ if self.name().ends_with(".k8s.local") => Dns::Gossip,
            "Private" => Dns::Private,
            _ => Dns::Public,
        }
    }

    fn is_ipv6_only(&self) -> bool {
        self.spec.text("networking.nonMasqueradeCIDR").contains(':')
    }
}
