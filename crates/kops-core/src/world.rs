use std::collections::BTreeMap;

/// What is there already, of what completion asks for. Adapters fill it in; nothing here calls a cloud.
#[derive(Clone, Debug, Default)]
pub struct World {
    /// Networks by id.
    pub networks: BTreeMap<String, Network>,
    pub zones: Vec<DnsZone>,
    pub machine_types: BTreeMap<String, MachineType>,
    /// The machine type that a role gets (`ControlPlane`, `Node`, `Bastion`, `APIServer`), where the cloud has it to say.
    pub default_machine_types: BTreeMap<String, String>,
    /// Whether the cluster has groups of API servers: then control planes say that they are such, too.
    pub api_server_nodes: bool,
    /// Regions of the S3 buckets that the spec names.
    pub bucket_regions: BTreeMap<String, String>,
    /// Images of AWS, by what specs call them.
    pub images: BTreeMap<String, Image>,
    /// The account in AWS that the cluster is made in.
    pub account: String,
    /// The part of AWS that ARNs name, if it does not follow from the region.
    pub partition: String,
    /// The project that a GCE cluster is made in, unless its options name one.
    pub project: String,
}

/// A network that is there already.
#[derive(Clone, Debug, Default)]
pub struct Network {
    pub cidr: String,
    pub subnets: Vec<Subnet>,
    /// Its gateways' ids, where it has some.
    pub internet_gateway: String,
    pub egress_only_gateway: String,
}

/// A subnet of it.
#[derive(Clone, Debug, Default)]
pub struct Subnet {
    pub id: String,
    pub zone: String,
    pub cidr: String,
}

/// A zone of the cloud's DNS.
#[derive(Clone, Debug, Default)]
pub struct DnsZone {
    pub id: String,
    /// With or without the dot at its end.
    pub name: String,
    /// Where the cloud tells private zones from public ones.
    pub private: Option<bool>,
    /// The networks that ask a private one.
    pub networks: Vec<String>,
}

/// An image of AWS.
#[derive(Clone, Debug, Default)]
pub struct Image {
    pub id: String,
    /// What machines that are made of it call their first disk.
    pub root_device: String,
}

/// What a cloud's name for a machine type stands for.
#[derive(Clone, Debug, Default)]
pub struct MachineType {
    /// `amd64` or `arm64`.
    pub architecture: String,
    pub gpu: bool,
    /// How many disks machines have of their own.
    pub disks: u8,
}

impl World {
    /// The id of the longest zone that holds a name; nothing if two are equally long, since either may be meant.
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
    fn the_longest_zone_of_the_right_kind_is_found() {
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
