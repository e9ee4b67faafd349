//! The vocabulary of the model: resources in AWS, and references between them.

use std::collections::BTreeMap;

/// Tags by key.
pub type Tags = BTreeMap<String, String>;

/// The kinds of resources. Kind and name identify a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Vpc,
    VpcCidr,
    DhcpOptions,
    DhcpOptionsAssociation,
    InternetGateway,
    EgressOnlyGateway,
    Subnet,
    RouteTable,
    RouteTableAssociation,
    Route,
    ElasticIp,
    NatGateway,
    SecurityGroup,
    SecurityGroupRule,
    Volume,
    Role,
    RolePolicy,
    RolePolicyAttachment,
    InstanceProfile,
    OidcProvider,
    SshKey,
    LaunchTemplate,
    ScalingGroup,
    LifecycleHook,
    ClassicBalancer,
    NetworkBalancer,
    Listener,
    TargetGroup,
    Zone,
    ZoneAssociation,
    Record,
    Queue,
    EventRule,
    EventTarget,
    StoreObject,
}

/// A reference to a resource of the model.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ref {
    /// The resource's kind.
    pub kind: Kind,
    /// The resource's name.
    pub name: String,
}

impl Ref {
    /// Creates a reference. [`super::Model::find`] returns its resource, if it exists.
    pub fn new(kind: Kind, name: impl Into<String>) -> Self {
        Self { kind, name: name.into() }
    }
}

/// A resource in AWS.
#[derive(Clone, Debug)]
pub struct Resource {
    /// The name, unique within the kind.
    pub name: String,
    /// The ID of an existing resource, which the cluster only uses; `None` for one that it creates.
    pub shared: Option<String>,
    /// The tags.
    pub tags: Tags,
    /// The kind-specific part.
    pub body: Body,
}

/// The kind-specific part of a resource.
#[derive(Clone, Debug)]
pub enum Body {
    Vpc {
        cidr: String,
    },
    /// An additional range of the VPC.
    VpcCidr {
        vpc: Ref,
        cidr: String,
    },
    DhcpOptions {
        domain: String,
        servers: Vec<String>,
    },
    DhcpOptionsAssociation {
        vpc: Ref,
        options: Ref,
    },
    InternetGateway {
        vpc: Ref,
    },
    EgressOnlyGateway {
        vpc: Ref,
    },
    Subnet(SubnetBody),
    /// A route table. `role` is the value of its role tag.
    RouteTable {
        vpc: Ref,
        role: String,
    },
    RouteTableAssociation {
        table: Ref,
        subnet: Ref,
    },
    Route {
        table: Ref,
        to: String,
        via: RouteTarget,
    },
    ElasticIp,
    NatGateway {
        address: Option<Ref>,
        subnet: Ref,
    },
    SecurityGroup {
        vpc: Ref,
        description: String,
    },
    SecurityGroupRule(Rule),
    Volume {
        zone: String,
        ebs: Ebs,
    },
    /// An IAM role. `assumed` is the trust policy; `known` is the role's name in outputs.
    Role {
        assumed: String,
        boundary: Option<String>,
        known: String,
    },
    RolePolicy {
        role: Ref,
        document: String,
    },
    /// An existing policy, by its ARN.
    RolePolicyAttachment {
        role: Ref,
        policy: String,
    },
    InstanceProfile {
        role: Option<Ref>,
    },
    OidcProvider {
        url: String,
        audiences: Vec<String>,
        thumbprints: Vec<String>,
    },
    SshKey {
        public: String,
    },
    LaunchTemplate(Box<LaunchTemplate>),
    ScalingGroup(Box<ScalingGroup>),
    LifecycleHook {
        group: Ref,
        /// The hook's name within its group.
        hook: String,
        result: String,
        /// The timeout in seconds.
        heartbeat: i64,
        transition: String,
    },
    ClassicBalancer(Box<Balancer>),
    NetworkBalancer(Box<Balancer>),
    Listener(Listener),
    TargetGroup(TargetGroup),
    Zone,
    ZoneAssociation {
        zone: Ref,
        vpc: Ref,
    },
    Record {
        zone: Ref,
        name: String,
        class: String,
        to: Ref,
    },
    Queue {
        retention: i64,
        policy: String,
    },
    EventRule {
        pattern: String,
    },
    EventTarget {
        rule: Ref,
        queue: Ref,
    },
    StoreObject {
        bucket: String,
        key: String,
        content: String,
    },
}

/// A subnet. Without an IPv4 range it has only IPv6.
#[derive(Clone, Debug)]
pub struct SubnetBody {
    /// The subnet's name in the spec.
    pub short: String,
    /// The VPC.
    pub vpc: Ref,
    /// The availability zone.
    pub zone: String,
    /// The IPv4 range; empty for none.
    pub cidr: String,
    /// The IPv6 range, or `/SIZE#NUMBER` within the VPC's; empty for none.
    pub ipv6: String,
    /// `true` if machines are named by their IDs.
    pub named_by_id: bool,
}

/// The target of a route.
#[derive(Clone, Debug)]
pub enum RouteTarget {
    Internet(Ref),
    EgressOnly(Ref),
    Nat(Ref),
    /// An existing gateway, by ID.
    GivenInternet(String),
    GivenEgressOnly(String),
    GivenNat(String),
    Instance(String),
    Transit(String),
    Peering(String),
}

/// The peer of a security group's rule.
#[derive(Clone, Debug)]
pub enum Peer {
    Group(Ref),
    V4(String),
    V6(String),
    Prefixes(String),
}

/// A rule of a security group.
#[derive(Clone, Debug)]
pub struct Rule {
    /// The group.
    pub group: Ref,
    /// The source, or the destination of an egress rule.
    pub peer: Peer,
    /// `true` for an egress rule.
    pub egress: bool,
    /// The protocol; `None` for all.
    pub protocol: Option<String>,
    /// The first and last port, or the ICMP type and code; `None` for all.
    pub ports: Option<(i64, i64)>,
}

/// An EBS volume.
#[derive(Clone, Debug, Default)]
pub struct Ebs {
    /// The size in GiB.
    pub size: i64,
    /// The volume type, such as `gp3`.
    pub class: String,
    /// The provisioned operations per second.
    pub iops: Option<i64>,
    /// The throughput in MiB per second.
    pub throughput: Option<i64>,
    /// `true` if encrypted.
    pub encrypted: bool,
    /// The KMS key; `None` for the default key.
    pub key: Option<String>,
    /// `true` if deleted with its machine.
    pub deleted_with_machine: bool,
}

/// A disk of a machine.
#[derive(Clone, Debug)]
pub struct BlockDevice {
    /// The device name, such as `/dev/xvda`.
    pub device: String,
    /// The disk.
    pub disk: Disk,
}

/// The disk of a device: an EBS volume, or an instance store by its name.
#[derive(Clone, Debug)]
pub enum Disk {
    Ebs(Ebs),
    Own(String),
}

/// The options of a machine's metadata service.
#[derive(Clone, Debug)]
pub struct MetadataService {
    /// The hop limit of its answers.
    pub hops: i64,
    /// `required` or `optional`.
    pub tokens: String,
    /// `true` if it answers over IPv6.
    pub ipv6: bool,
}

/// The options of spot machines.
#[derive(Clone, Debug)]
pub struct SpotOptions {
    /// The highest price per hour, in dollars.
    pub price: String,
    /// The duration in minutes.
    pub minutes: Option<i64>,
    /// The behaviour at an interruption.
    pub interruption: Option<String>,
}

/// The template of a group's machines.
#[derive(Clone, Debug)]
pub struct LaunchTemplate {
    /// The image ID.
    pub image: String,
    /// The machine type; `None` if the scaling group names the types.
    pub machine_type: Option<String>,
    /// The instance profile.
    pub profile: Ref,
    /// The SSH key.
    pub key: Option<Ref>,
    /// The disks; the root disk is first.
    pub devices: Vec<BlockDevice>,
    /// `true` to force EBS optimization.
    pub optimized: Option<bool>,
    /// The CPU credit mode.
    pub cpu_credits: Option<String>,
    /// `true` for detailed monitoring.
    pub monitoring: bool,
    /// The metadata service.
    pub metadata: MetadataService,
    /// `Some` to force or forbid a public address.
    pub public_address: Option<bool>,
    /// The number of IPv6 addresses.
    pub ipv6_addresses: i64,
    /// The security groups.
    pub security_groups: Vec<Ref>,
    /// The tenancy.
    pub tenancy: Option<String>,
    /// The spot options; `None` for on-demand machines.
    pub spot: Option<SpotOptions>,
    /// A script, or several parts. Only the machine reads it, and it contains no private key.
    pub user_data: Vec<u8>,
}

/// The mixture of a group's machine types and purchase options.
#[derive(Clone, Debug, Default)]
pub struct Distribution {
    /// The machine types, in order of preference.
    pub types: Vec<String>,
    /// The percentage of on-demand machines above the base.
    pub on_demand_above_base: Option<i64>,
    /// The number of on-demand machines in the base.
    pub on_demand_base: Option<i64>,
    /// The allocation strategy of on-demand machines.
    pub on_demand_strategy: Option<String>,
    /// The allocation strategy of spot machines.
    pub spot_strategy: Option<String>,
    /// The number of spot pools.
    pub spot_pools: Option<i64>,
    /// The highest spot price; empty for the on-demand price.
    pub spot_price: String,
}

/// A pool of stopped machines that start when needed.
#[derive(Clone, Debug)]
pub struct WarmPool {
    /// The smallest size.
    pub min: i64,
    /// The largest size; `None` for the group's.
    pub max: Option<i64>,
}

/// A scaling group.
#[derive(Clone, Debug)]
pub struct ScalingGroup {
    /// `master`, `node`, `apiserver` or `bastion`.
    pub role: String,
    /// The launch template.
    pub template: Ref,
    /// The smallest size.
    pub min: i64,
    /// The largest size.
    pub max: i64,
    /// The subnets.
    pub subnets: Vec<Ref>,
    /// The enabled metrics.
    pub metrics: Vec<String>,
    /// The suspended processes.
    pub suspended: Vec<String>,
    /// `true` to protect machines from scale-in.
    pub protected: bool,
    /// The classic load balancers.
    pub balancers: Vec<Ref>,
    /// The target groups.
    pub target_groups: Vec<Ref>,
    /// The longest lifetime of a machine in seconds; zero for none.
    pub lifetime: i64,
    /// `Some` to enable or disable capacity rebalancing.
    pub rebalanced: Option<bool>,
    /// The mixture of machine types; `None` for the template's type.
    pub mixed: Option<Distribution>,
    /// The warm pool.
    pub warm_pool: Option<WarmPool>,
}

/// A subnet of a load balancer.
#[derive(Clone, Debug)]
pub struct Mapping {
    /// The subnet.
    pub subnet: Ref,
    /// The allocation ID of an elastic address.
    pub allocation: Option<String>,
    /// A private address in the subnet.
    pub address: Option<String>,
}

/// A classic or network load balancer.
#[derive(Clone, Debug)]
pub struct Balancer {
    /// The name in AWS, of at most 32 characters.
    pub short: String,
    /// `true` for an internal load balancer.
    pub internal: bool,
    /// `true` for IPv4 and IPv6.
    pub dual_stack: bool,
    /// The subnets.
    pub subnets: Vec<Mapping>,
    /// The security groups.
    pub security_groups: Vec<Ref>,
    /// `true` to balance across zones.
    pub cross_zone: bool,
    /// The access log: bucket, prefix, and for classic ones the interval in minutes.
    pub log: Option<(String, Option<String>, i64)>,
    /// The certificate of port 443, for classic ones.
    pub certificate: Option<String>,
    /// The idle timeout in seconds, for classic ones.
    pub idle_timeout: i64,
}

/// A listener of a network load balancer.
#[derive(Clone, Debug)]
pub struct Listener {
    /// The load balancer.
    pub balancer: Ref,
    /// The port.
    pub port: i64,
    /// The target group.
    pub group: Ref,
    /// The certificate and policy for TLS termination; `None` for TCP.
    pub tls: Option<(String, String)>,
}

/// A health check of targets: every 10 s, two results decide.
#[derive(Clone, Debug)]
pub struct HealthCheck {
    /// `TCP`, `HTTP` or `HTTPS`.
    pub protocol: &'static str,
    /// The path of HTTP checks.
    pub path: Option<&'static str>,
}

/// The target group of a listener.
#[derive(Clone, Debug)]
pub struct TargetGroup {
    /// The VPC.
    pub vpc: Ref,
    /// The targets' port.
    pub port: i64,
    /// The protocol.
    pub protocol: &'static str,
    /// The health check.
    pub health: HealthCheck,
}

impl Resource {
    /// Returns the kind.
    pub fn kind(&self) -> Kind {
        self.body.kind()
    }
}

impl Body {
    /// Returns the kind of the resource.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Vpc { .. } => Kind::Vpc,
            Self::VpcCidr { .. } => Kind::VpcCidr,
            Self::DhcpOptions { .. } => Kind::DhcpOptions,
            Self::DhcpOptionsAssociation { .. } => Kind::DhcpOptionsAssociation,
            Self::InternetGateway { .. } => Kind::InternetGateway,
            Self::EgressOnlyGateway { .. } => Kind::EgressOnlyGateway,
            Self::Subnet(_) => Kind::Subnet,
            Self::RouteTable { .. } => Kind::RouteTable,
            Self::RouteTableAssociation { .. } => Kind::RouteTableAssociation,
            Self::Route { .. } => Kind::Route,
            Self::ElasticIp => Kind::ElasticIp,
            Self::NatGateway { .. } => Kind::NatGateway,
            Self::SecurityGroup { .. } => Kind::SecurityGroup,
            Self::SecurityGroupRule(_) => Kind::SecurityGroupRule,
            Self::Volume { .. } => Kind::Volume,
            Self::Role { .. } => Kind::Role,
            Self::RolePolicy { .. } => Kind::RolePolicy,
            Self::RolePolicyAttachment { .. } => Kind::RolePolicyAttachment,
            Self::InstanceProfile { .. } => Kind::InstanceProfile,
            Self::OidcProvider { .. } => Kind::OidcProvider,
            Self::SshKey { .. } => Kind::SshKey,
            Self::LaunchTemplate(_) => Kind::LaunchTemplate,
            Self::ScalingGroup(_) => Kind::ScalingGroup,
            Self::LifecycleHook { .. } => Kind::LifecycleHook,
            Self::ClassicBalancer(_) => Kind::ClassicBalancer,
            Self::NetworkBalancer(_) => Kind::NetworkBalancer,
            Self::Listener(_) => Kind::Listener,
            Self::TargetGroup(_) => Kind::TargetGroup,
            Self::Zone => Kind::Zone,
            Self::ZoneAssociation { .. } => Kind::ZoneAssociation,
            Self::Record { .. } => Kind::Record,
            Self::Queue { .. } => Kind::Queue,
            Self::EventRule { .. } => Kind::EventRule,
            Self::EventTarget { .. } => Kind::EventTarget,
            Self::StoreObject { .. } => Kind::StoreObject,
        }
    }
}
