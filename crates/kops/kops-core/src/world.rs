//! The facts about existing resources, which the caller provides.

use std::collections::BTreeMap;

use crate::machine_types;

/// Existing resources and facts that completion needs. Adapters fill it in; this crate calls no cloud.
#[derive(Clone, Debug, Default)]
pub struct World {
    /// The networks by ID.
    pub networks: BTreeMap<String, Network>,
    /// The DNS zones.
    pub zones: Vec<DnsZone>,
    /// The machine types by name.
    pub machine_types: BTreeMap<String, MachineType>,
    /// The default machine type of a role (`ControlPlane`, `Node`, `Bastion`, `APIServer`), if the cloud defines it.
    pub default_machine_types: BTreeMap<String, String>,
    /// `true` if the cluster has dedicated API servers. Control planes are then labelled as API servers, too.
    pub api_server_nodes: bool,
    /// The regions of the S3 buckets in the spec.
    pub bucket_regions: BTreeMap<String, String>,
    /// The AWS images, by their names in specs.
    pub images: BTreeMap<String, Image>,
    /// The AWS account of the cluster.
    pub account: String,
    /// The AWS partition for ARNs; empty if it follows from the region.
    pub partition: String,
    /// The project of a GCE cluster, unless its options name one.
    pub project: String,
}

/// An existing network.
#[derive(Clone, Debug, Default)]
pub struct Network {
    /// The range.
    pub cidr: String,
    /// The subnets.
    pub subnets: Vec<Subnet>,
    /// The internet gateway's ID; empty for none.
    pub internet_gateway: String,
    /// The egress-only gateway's ID; empty for none.
    pub egress_only_gateway: String,
}

/// An existing subnet.
#[derive(Clone, Debug, Default)]
pub struct Subnet {
    /// The ID.
    pub id: String,
    /// The availability zone.
    pub zone: String,
    /// The range.
    pub cidr: String,
}

/// A zone of the cloud's DNS.
#[derive(Clone, Debug, Default)]
pub struct DnsZone {
    /// The ID.
    pub id: String,
    /// The name, with or without a trailing dot.
    pub name: String,
    /// `true` for a private zone; `None` if the cloud does not distinguish.
    pub private: Option<bool>,
    /// The networks that use a private zone.
    pub networks: Vec<String>,
}

/// An image of AWS.
#[derive(Clone, Debug, Default)]
pub struct Image {
    /// The image ID.
    pub id: String,
    /// The device name of the root disk.
    pub root_device: String,
}

/// The properties of a cloud's machine type.
#[derive(Clone, Debug, Default)]
pub struct MachineType {
    /// `amd64` or `arm64`.
    pub architecture: String,
    /// `true` if machines have a GPU.
    pub gpu: bool,
    /// The number of instance stores.
    pub disks: u8,
}

impl World {
    /// Returns the architecture of a machine type, by its name if it is not known.
    pub fn architecture<'a>(&'a self, machine_type: &str) -> &'a str {
        let known = self.machine_types.get(machine_type);
        known.map_or(machine_types::architecture(machine_type), |known| &known.architecture)
    }

    /// Returns the ID of the longest zone that contains a name; `None` if two zones are equally long.
    pub(crate) fn zone_of(&self, name: &str, private: bool) -> Option<&str> {
        let name = format!(".{}", name.trim_end_matches('.'));
        let dotted = |zone: &DnsZone| format!(".{}", zone.name.trim_end_matches('.'));
        let holding = self.zones.iter().filter(|zone| {
            name.ends_with(&dotted(zone)) && zone.private.is_none_or(|p| p == private)
        });
        let longest = holding.clone().map(|zone| dotted(zone).len()).max()?;
        let mut longest = holding.filter(|zone| dotted(zone).len() == longest);
        match (longest.next(), longest.next()) {
            (Some(zone), None) => Some(&zone.id),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_longest_zone_of_the_right_kind() {
        let zone = |id: &str, name: &str, private| DnsZone {
            id: id.to_owned(),
            name: name.to_owned(),
            private: Some(private),
            ..DnsZone::default()
        };
        let mut world = World {
            zones: vec![
                zone("a", "example.com.", false),
                zone("b", "sub.example.com", false),
                zone("c", "sub.example.com", true),
                zone("d", "ample.com", false),
            ],
            ..World::default()
        };
        assert_eq!(world.zone_of("x.sub.example.com", false), Some("b"));
        assert_eq!(world.zone_of("x.sub.example.com", true), Some("c"));
        assert_eq!(world.zone_of("x.example.com", false), Some("a"));
        assert_eq!(world.zone_of("example.org", false), None);
        world.zones.push(zone("e", "sub.example.com.", false));
        assert_eq!(world.zone_of("x.sub.example.com", false), None);
    }
}
