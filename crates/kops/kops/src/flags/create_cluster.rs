//! The flags of `create cluster`, named as upstream's.

use api_config::GoFlag as _;

use super::target::{Target, TargetFlags};

/// The flags of `create cluster`.
#[derive(clap::Args, Debug)]
pub(crate) struct CreateCluster {
    /// The cluster's name, which is also its DNS name
    pub(crate) cluster: Option<String>,
    /// The cloud of its machines: local (this machine), metal, aws or gce [default: aws, if the zones are zones of aws]
    #[arg(long)]
    pub(crate) cloud: Option<String>,
    /// A file with the recommended versions
    #[arg(long, default_value = "stable")]
    pub(crate) channel: String,
    /// The zones of its machines [default with --cloud local: local]
    #[arg(long, value_delimiter = ',')]
    pub(crate) zones: Vec<String>,
    /// The zones of the control planes, if they differ
    #[arg(long, alias = "master-zones", value_delimiter = ',')]
    pub(crate) control_plane_zones: Vec<String>,
    /// The number of control planes [default: one per zone of --control-plane-zones]
    #[arg(long, alias = "master-count", default_value_t = 0)]
    pub(crate) control_plane_count: u32,
    /// The number of workers [default: one per zone]
    #[arg(long, default_value_t = 0)]
    pub(crate) node_count: u32,
    /// The version of Kubernetes [default: the channel's]
    #[arg(long, default_value = "")]
    pub(crate) kubernetes_version: String,
    /// The Pod network [default: cilium; with --cloud local: cni, which is Windlass' own]
    #[arg(long)]
    pub(crate) networking: Option<String>,
    /// The etcd clusters [default: main,events; with --cloud local: main]
    #[arg(long, value_delimiter = ',')]
    pub(crate) etcd_clusters: Vec<String>,
    /// The authorization mode: RBAC or AlwaysAllow
    #[arg(long, default_value = "RBAC")]
    pub(crate) authorization: String,
    /// The ranges that may reach the API [default: 0.0.0.0/0,::/0]
    #[arg(long, value_delimiter = ',')]
    pub(crate) admin_access: Vec<String>,
    /// The ranges that may reach machines by SSH [default: those of --admin-access]
    #[arg(long, value_delimiter = ',')]
    pub(crate) ssh_access: Vec<String>,
    /// The network's range, then additional ranges
    #[arg(long, value_delimiter = ',')]
    pub(crate) network_cidr: Vec<String>,
    /// public or private [default: public; with --ipv6: private]
    #[arg(short, long, default_value = "")]
    pub(crate) topology: String,
    /// public, private or none
    #[arg(long, default_value = "")]
    pub(crate) dns: String,
    /// The DNS zone [default: the longest matching one]
    #[arg(long, default_value = "")]
    pub(crate) dns_zone: String,
    /// The public name of the API
    #[arg(long, alias = "master-public-name", default_value = "")]
    pub(crate) api_public_name: String,
    /// Feature gates of all components: Name or +Name enables one, -Name disables one
    #[arg(long, value_delimiter = ',', allow_hyphen_values = true)]
    pub(crate) kubernetes_feature_gates: Vec<String>,
    /// Tags of the cloud's resources, such as "Owner=John Doe,Team=Some Team"
    #[arg(long, default_value = "")]
    pub(crate) cloud_labels: String,
    /// A field of the cluster to set: path=value
    #[arg(long, alias = "override")]
    pub(crate) set: Vec<String>,
    /// A field of the cluster to unset: path
    #[arg(long)]
    pub(crate) unset: Vec<String>,
    /// The flags of the target.
    #[command(flatten)]
    pub(crate) target: TargetFlags,
    /// Show the objects, and store nothing; with --output
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// yaml or json, with --dry-run
    #[arg(short, long, default_value = "", value_parser = ["", "yaml", "json"])]
    pub(crate) output: String,
    /// Create its machines, too
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// The flags of machines in clouds.
    #[command(flatten)]
    pub(crate) machines: MachineFlags,
    /// The flags of networks in clouds.
    #[command(flatten)]
    pub(crate) network: NetworkFlags,
    /// The flags of clusters on GCE.
    #[command(flatten)]
    pub(crate) gce: GceFlags,
    /// The flags of clouds that are not supported.
    #[command(flatten)]
    pub(crate) foreign: ForeignFlags,
}

/// The flags of machines in clouds. [`AWS_ONLY`] lists those that GCE lacks.
#[derive(clap::Args, Debug)]
pub(crate) struct MachineFlags {
    /// The image of all machines on AWS or GCE
    #[arg(long, default_value = "")]
    pub(crate) image: String,
    /// The image of control planes on AWS or GCE
    #[arg(long, alias = "master-image", default_value = "")]
    pub(crate) control_plane_image: String,
    /// The image of workers on AWS or GCE
    #[arg(long, default_value = "")]
    pub(crate) node_image: String,
    /// The image of bastions on AWS or GCE
    #[arg(long, default_value = "")]
    pub(crate) bastion_image: String,
    /// The machine types of control planes on AWS or GCE; several are alternatives on AWS
    #[arg(long, alias = "master-size", value_delimiter = ',')]
    pub(crate) control_plane_size: Vec<String>,
    /// The machine types of workers on AWS or GCE; several are alternatives on AWS
    #[arg(long, value_delimiter = ',')]
    pub(crate) node_size: Vec<String>,
    /// The size of control planes' disks on AWS or GCE, in GB
    #[arg(long, alias = "master-volume-size", default_value_t = 0)]
    pub(crate) control_plane_volume_size: u32,
    /// The size of workers' disks on AWS or GCE, in GB
    #[arg(long, default_value_t = 0)]
    pub(crate) node_volume_size: u32,
    /// The type of control planes' disks on AWS or GCE
    #[arg(long, default_value = "")]
    pub(crate) control_plane_volume_type: String,
    /// The type of workers' disks on AWS or GCE, such as gp3
    #[arg(long, default_value = "")]
    pub(crate) node_volume_type: String,
    /// The tenancy of control planes on AWS: default or dedicated
    #[arg(long, alias = "master-tenancy", default_value = "")]
    pub(crate) control_plane_tenancy: String,
    /// The tenancy of workers on AWS: default or dedicated
    #[arg(long, default_value = "")]
    pub(crate) node_tenancy: String,
    /// Additional security groups of control planes on AWS
    #[arg(long, alias = "master-security-groups", value_delimiter = ',')]
    pub(crate) control_plane_security_groups: Vec<String>,
    /// Additional security groups of workers on AWS
    #[arg(long, value_delimiter = ',')]
    pub(crate) node_security_groups: Vec<String>,
    /// Give machines on AWS or GCE public addresses, or none [default: by the subnet]
    #[arg(long, go_bool())]
    pub(crate) associate_public_ip: Option<bool>,
    /// Create a bastion on AWS or GCE, with --topology private
    #[arg(long, go_bool(), default_value_t = false)]
    pub(crate) bastion: bool,
    /// The program that starts workers on AWS: cloudgroups or karpenter
    #[arg(long, default_value = "cloudgroups")]
    pub(crate) instance_manager: String,
    /// A file with the SSH public key for machines on AWS or GCE
    #[arg(long)]
    pub(crate) ssh_public_key: Option<String>,
    /// Encrypt etcd's disks on AWS, or do not [default: true]
    #[arg(long, go_bool())]
    pub(crate) encrypt_etcd_storage: Option<bool>,
    /// The type of etcd's disks on AWS or GCE
    #[arg(long, default_value = "")]
    pub(crate) etcd_storage_type: String,
}

/// The flags of networks in clouds. [`AWS_ONLY`] lists those that GCE lacks.
#[derive(clap::Args, Debug)]
pub(crate) struct NetworkFlags {
    /// The ID of an existing VPC on AWS, or the name of a network on GCE
    #[arg(long, alias = "vpc", default_value = "")]
    pub(crate) network_id: String,
    /// The IDs or names of existing subnets on AWS or GCE
    #[arg(long, value_delimiter = ',')]
    pub(crate) subnets: Vec<String>,
    /// The IDs of existing utility subnets on AWS
    #[arg(long, value_delimiter = ',')]
    pub(crate) utility_subnets: Vec<String>,
    /// Leave subnets on AWS untagged
    #[arg(long)]
    pub(crate) disable_subnet_tags: bool,
    /// Use IPv6 for Pods on AWS
    #[arg(long)]
    pub(crate) ipv6: bool,
    /// The type of the API's load balancer on AWS or GCE: public or internal
    #[arg(long, default_value = "")]
    pub(crate) api_loadbalancer_type: String,
    /// The ARN of the certificate of the API's load balancer on AWS
    #[arg(long, default_value = "")]
    pub(crate) api_ssl_certificate: String,
    /// A public store on AWS for the OIDC documents of service accounts
    #[arg(long, default_value = "")]
    pub(crate) discovery_store: String,
}

/// The flags of clusters on GCE.
#[derive(clap::Args, Debug)]
pub(crate) struct GceFlags {
    /// The project on GCE
    #[arg(long)]
    pub(crate) project: Option<String>,
    /// The existing service account of all machines on GCE [default: kOps makes one for each role]
    #[arg(long)]
    pub(crate) gce_service_account: Option<String>,
}

/// The flags of clouds that are not supported. Each is rejected by name.
#[derive(clap::Args, Debug)]
pub(crate) struct ForeignFlags {
    #[arg(long, hide = true)]
    pub(crate) os_dns_servers: Option<String>,
    #[arg(long, hide = true)]
    pub(crate) os_ext_net: Option<String>,
    #[arg(long, hide = true)]
    pub(crate) os_ext_subnet: Option<String>,
    #[arg(long, go_bool(), hide = true)]
    pub(crate) os_kubelet_ignore_az: Option<bool>,
    #[arg(long, hide = true)]
    pub(crate) os_lb_floating_subnet: Option<String>,
    #[arg(long, hide = true)]
    pub(crate) os_network: Option<String>,
    #[arg(long, go_bool(), hide = true)]
    pub(crate) os_octavia: Option<bool>,
    #[arg(long, hide = true)]
    pub(crate) os_octavia_provider: Option<String>,
}

/// A flag that only some clouds have.
pub(crate) struct CloudFlag {
    /// The flag.
    pub(crate) flag: &'static str,
    /// The clouds that have the flag.
    pub(crate) clouds: Clouds,
}

/// The clouds that have a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clouds {
    Aws,
    Gce,
    AwsAndGce,
    Openstack,
}

impl Clouds {
    /// Reports whether a cloud has the flag.
    pub(crate) fn contains(self, cloud: &str) -> bool {
        match self {
            Self::AwsAndGce => ["aws", "gce"].contains(&cloud),
            one => one.words() == cloud,
        }
    }

    /// Returns the clouds for an error.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Aws => "aws",
            Self::Gce => "gce",
            Self::AwsAndGce => "aws or gce",
            Self::Openstack => "openstack",
        }
    }
}

/// The flags of machines and networks that only AWS has.
const AWS_ONLY: [&str; 11] = [
    "--control-plane-tenancy",
    "--node-tenancy",
    "--control-plane-security-groups",
    "--node-security-groups",
    "--instance-manager",
    "--encrypt-etcd-storage",
    "--utility-subnets",
    "--disable-subnet-tags",
    "--ipv6",
    "--api-ssl-certificate",
    "--discovery-store",
];

impl CreateCluster {
    /// Returns the given flags that only some clouds have.
    pub(crate) fn cloud_flags(&self) -> impl Iterator<Item = CloudFlag> {
        let own = [
            ("--target=terraform", self.target.program == Target::Terraform),
            ("--out", self.target.out.is_some()),
            ("--known", self.target.known.is_some()),
        ];
        let given = |clouds| {
            move |(flag, given): (&'static str, bool)| given.then_some(CloudFlag { flag, clouds })
        };
        let made = own.into_iter().chain(self.machines.given()).chain(self.network.given());
        let made = made.filter_map(|(flag, is_given)| {
            let is_aws = AWS_ONLY.contains(&flag);
            let clouds = if is_aws { Clouds::Aws } else { Clouds::AwsAndGce };
            is_given.then_some(CloudFlag { flag, clouds })
        });
        let gce = self.gce.given().into_iter().filter_map(given(Clouds::Gce));
        let openstack = self.foreign.openstack().into_iter().filter_map(given(Clouds::Openstack));
        made.chain(gce).chain(openstack)
    }
}

impl MachineFlags {
    /// Returns all flags, and whether each is given.
    fn given(&self) -> [(&'static str, bool); 20] {
        [
            ("--image", !self.image.is_empty()),
            ("--control-plane-image", !self.control_plane_image.is_empty()),
            ("--node-image", !self.node_image.is_empty()),
            ("--bastion-image", !self.bastion_image.is_empty()),
            ("--control-plane-size", !self.control_plane_size.is_empty()),
            ("--node-size", !self.node_size.is_empty()),
            ("--control-plane-volume-size", self.control_plane_volume_size > 0),
            ("--node-volume-size", self.node_volume_size > 0),
            ("--control-plane-volume-type", !self.control_plane_volume_type.is_empty()),
            ("--node-volume-type", !self.node_volume_type.is_empty()),
            ("--control-plane-tenancy", !self.control_plane_tenancy.is_empty()),
            ("--node-tenancy", !self.node_tenancy.is_empty()),
            ("--control-plane-security-groups", !self.control_plane_security_groups.is_empty()),
            ("--node-security-groups", !self.node_security_groups.is_empty()),
            ("--associate-public-ip", self.associate_public_ip.is_some()),
            ("--bastion", self.bastion),
            ("--instance-manager", self.instance_manager != "cloudgroups"),
            ("--ssh-public-key", self.ssh_public_key.is_some()),
            ("--encrypt-etcd-storage", self.encrypt_etcd_storage.is_some()),
            ("--etcd-storage-type", !self.etcd_storage_type.is_empty()),
        ]
    }
}

impl NetworkFlags {
    /// Returns all flags, and whether each is given.
    fn given(&self) -> [(&'static str, bool); 8] {
        [
            ("--network-id", !self.network_id.is_empty()),
            ("--subnets", !self.subnets.is_empty()),
            ("--utility-subnets", !self.utility_subnets.is_empty()),
            ("--disable-subnet-tags", self.disable_subnet_tags),
            ("--ipv6", self.ipv6),
            ("--api-loadbalancer-type", !self.api_loadbalancer_type.is_empty()),
            ("--api-ssl-certificate", !self.api_ssl_certificate.is_empty()),
            ("--discovery-store", !self.discovery_store.is_empty()),
        ]
    }
}

impl GceFlags {
    /// Returns all flags, and whether each is given.
    fn given(&self) -> [(&'static str, bool); 2] {
        [
            ("--project", self.project.is_some()),
            ("--gce-service-account", self.gce_service_account.is_some()),
        ]
    }
}

impl ForeignFlags {
    /// Returns the flags of openstack, and whether each is given.
    fn openstack(&self) -> [(&'static str, bool); 8] {
        [
            ("--os-dns-servers", self.os_dns_servers.is_some()),
            ("--os-ext-net", self.os_ext_net.is_some()),
            ("--os-ext-subnet", self.os_ext_subnet.is_some()),
            ("--os-kubelet-ignore-az", self.os_kubelet_ignore_az.is_some()),
            ("--os-lb-floating-subnet", self.os_lb_floating_subnet.is_some()),
            ("--os-network", self.os_network.is_some()),
            ("--os-octavia", self.os_octavia.is_some()),
            ("--os-octavia-provider", self.os_octavia_provider.is_some()),
        ]
    }
}
