//! The options of `create cluster`.

/// The options of `create cluster`. Each is a flag of upstream's; empty or `None` means that it was not given.
#[derive(Clone, Debug)]
pub struct Options {
    /// The cluster's name, which is also its DNS name.
    pub name: String,
    /// The URL of the state store. The cluster is stored in a directory of its name.
    pub store: String,
    /// `aws`, `gce`, `metal` or `local`.
    pub cloud: String,
    /// The channel's name or location.
    pub channel: String,
    /// The Kubernetes version; empty for the channel's.
    pub kubernetes_version: String,
    /// Feature gates of all components: `+Name` or `Name` enables one, `-Name` disables one.
    pub feature_gates: Vec<String>,
    /// The authorization mode.
    pub authorization: String,
    /// The ranges that may reach the API.
    pub admin_access: Vec<String>,
    /// The ranges that may reach machines by SSH.
    pub ssh_access: Vec<String>,
    /// The public store of the service account issuer's OIDC documents.
    pub discovery_store: String,

    /// The zones of workers, and of control planes unless these have their own.
    pub zones: Vec<String>,
    /// The zones of control planes.
    pub control_plane_zones: Vec<String>,
    /// The number of control planes; zero for a default by zones.
    pub control_plane_count: u32,
    /// The number of dedicated API servers.
    pub api_server_count: u32,
    /// The number of workers; zero for a default.
    pub node_count: u32,
    /// `true` to create a bastion.
    pub bastion: bool,
    /// `cloudgroups` or `karpenter`.
    pub instance_manager: String,

    /// The image of all machines without one of their own.
    pub image: String,
    /// The image of control planes.
    pub control_plane_image: String,
    /// The image of workers.
    pub node_image: String,
    /// The image of bastions.
    pub bastion_image: String,
    /// The machine types of control planes. On AWS, several are alternatives.
    pub control_plane_sizes: Vec<String>,
    /// The machine types of workers. On AWS, several are alternatives.
    pub node_sizes: Vec<String>,
    /// The size of control planes' root volumes, in gigabytes.
    pub control_plane_volume_size: u32,
    /// The size of workers' root volumes, in gigabytes.
    pub node_volume_size: u32,
    /// The type of control planes' root volumes.
    pub control_plane_volume_type: String,
    /// The type of workers' root volumes.
    pub node_volume_type: String,
    /// The tenancy of control planes.
    pub control_plane_tenancy: String,
    /// The tenancy of workers.
    pub node_tenancy: String,
    /// IDs of additional security groups of control planes.
    pub control_plane_security_groups: Vec<String>,
    /// IDs of additional security groups of workers.
    pub node_security_groups: Vec<String>,
    /// `Some` to force or forbid public addresses of machines.
    pub associate_public_ip: Option<bool>,

    /// The names of the etcd clusters.
    pub etcd_clusters: Vec<String>,
    /// The type of etcd's volumes.
    pub etcd_storage_type: String,
    /// `Some` to force or forbid encryption of etcd's volumes.
    pub encrypt_etcd_storage: Option<bool>,

    /// The Pod network.
    pub networking: String,
    /// The ID of an existing network.
    pub network_id: String,
    /// The network's range, then additional ranges.
    pub network_cidrs: Vec<String>,
    /// IDs of existing subnets.
    pub subnet_ids: Vec<String>,
    /// IDs of existing utility subnets.
    pub utility_subnet_ids: Vec<String>,
    /// The egress of private subnets, such as the ID of a NAT gateway.
    pub egress: String,
    /// `true` for an IPv6-only cluster.
    pub ipv6: bool,
    /// `public` or `private`.
    pub topology: String,
    /// `public`, `private` or `none`, in any case.
    pub dns: String,
    /// The ID or name of the DNS zone.
    pub dns_zone: String,
    /// `true` to leave subnets untagged.
    pub disable_subnet_tags: bool,

    /// The public name of the API.
    pub api_public_name: String,
    /// `public` or `internal`.
    pub api_load_balancer_type: String,
    /// `classic` or `network`.
    pub api_load_balancer_class: String,
    /// The ARN of the API load balancer's certificate.
    pub api_ssl_certificate: String,

    /// The GCE project.
    pub project: String,
    /// The service account of machines on GCE.
    pub gce_service_account: String,
    /// Labels of cloud resources: `key=value` pairs, separated by commas.
    pub cloud_labels: String,
    /// Values to set in the cluster's spec, as `path=value`.
    pub sets: Vec<String>,
    /// Paths to unset in the cluster's spec.
    pub unsets: Vec<String>,
}

/// Returns the cloud that has a zone, by the form of the zone's name: `us-east-1a` is a zone of AWS.
pub fn cloud_of_zone(zone: &str) -> Option<&'static str> {
    let region = zone.strip_suffix(|c: char| c.is_ascii_lowercase())?;
    let area = region.trim_end_matches(|c: char| c.is_ascii_digit()).strip_suffix('-')?;
    let (country, rest) = area.split_once('-')?;
    let is_word = |word: &str| !word.is_empty() && word.bytes().all(|b| b.is_ascii_lowercase());
    let is_aws = country.len() == 2 && is_word(country) && rest.split('-').all(is_word);
    (is_aws && !region.ends_with('-')).then_some("aws")
}

impl Default for Options {
    fn default() -> Self {
        let text = String::new;
        Self {
            channel: "stable".to_owned(),
            authorization: "RBAC".to_owned(),
            etcd_clusters: vec!["main".to_owned(), "events".to_owned()],
            networking: "cilium".to_owned(),
            instance_manager: "cloudgroups".to_owned(),
            name: text(),
            store: text(),
            cloud: text(),
            kubernetes_version: text(),
            feature_gates: Vec::new(),
            admin_access: Vec::new(),
            ssh_access: Vec::new(),
            discovery_store: text(),
            zones: Vec::new(),
            control_plane_zones: Vec::new(),
            control_plane_count: 0,
            api_server_count: 0,
            node_count: 0,
            bastion: false,
            image: text(),
            control_plane_image: text(),
            node_image: text(),
            bastion_image: text(),
            control_plane_sizes: Vec::new(),
            node_sizes: Vec::new(),
            control_plane_volume_size: 0,
            node_volume_size: 0,
            control_plane_volume_type: text(),
            node_volume_type: text(),
            control_plane_tenancy: text(),
            node_tenancy: text(),
            control_plane_security_groups: Vec::new(),
            node_security_groups: Vec::new(),
            associate_public_ip: None,
            etcd_storage_type: text(),
            encrypt_etcd_storage: None,
            network_id: text(),
            network_cidrs: Vec::new(),
            subnet_ids: Vec::new(),
            utility_subnet_ids: Vec::new(),
            egress: text(),
            ipv6: false,
            topology: text(),
            dns: text(),
            dns_zone: text(),
            disable_subnet_tags: false,
            api_public_name: text(),
            api_load_balancer_type: text(),
            api_load_balancer_class: text(),
            api_ssl_certificate: text(),
            project: text(),
            gce_service_account: text(),
            cloud_labels: text(),
            sets: Vec::new(),
            unsets: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_cloud_by_zone() {
        for zone in ["us-east-1a", "ap-southeast-2c", "us-gov-west-1b", "us-test-1a"] {
            assert_eq!(cloud_of_zone(zone), Some("aws"), "{zone}");
        }
        for zone in [
            "us-central1-a",
            "eastus-1",
            "fsn1",
            "NYC1",
            "nova",
            "",
            "a",
            "us-east-1",
            "us--1a",
            "us-east-a",
        ] {
            assert_eq!(cloud_of_zone(zone), None, "{zone}");
        }
    }
}
