//! The vocabulary of the model: what there is in AWS, and how one thing refers to another.

use std::collections::BTreeMap;

/// Tags by key, as AWS has them.
pub type Tags = BTreeMap<String, String>;

/// The kinds of resources, and with the name the identity of each.
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
    pub kind: Kind,
    pub name: String,
}

impl Ref {
    /// A reference by what identifies a resource; [`super::Model::find`] says whether there is one.
    pub fn new(kind: Kind, name: impl Into<String>) -> Self {
        Self { kind, name: name.into() }
    }
}

/// One thing in AWS.
#[derive(Clone, Debug)]
pub struct Resource {
    /// Unique among those of its kind.
    pub name: String,
    /// The id of one that is there already and is only used, never made, changed or deleted.
    pub shared: Option<String>,
    pub tags: Tags,
    pub body: Body,
}

/// What a resource is made of.
#[derive(Clone, Debug)]
pub enum Body {
    Vpc {
        cidr: String,
    },
    /// A further range of the VPC.
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
    /// `role` says whose routes it has, as in the tag that says so.
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
        via: Via,
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
    /// `assumed` is the policy that says who may take the role; `known` is what outputs call it.
    Role {
        assumed: String,
        boundary: Option<String>,
        known: String,
    },
    RolePolicy {
        role: Ref,
        document: String,
    },
    /// A policy that others keep, by its ARN.
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
        /// What it is called within its group.
        hook: String,
        result: String,
        /// In seconds.
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

/// A subnet. Without a range it has IPv6 alone.
#[derive(Clone, Debug)]
pub struct SubnetBody {
    /// What the spec calls it.
    pub short: String,
    pub vpc: Ref,
    pub zone: String,
    pub cidr: String,
    /// A range, or `/SIZE#NUMBER` of the VPC's own.
    pub ipv6: String,
    /// Whether machines are named by their ids.
    pub named_by_id: bool,
}

/// Where a route leads.
#[derive(Clone, Debug)]
pub enum Via {
    Internet(Ref),
    EgressOnly(Ref),
    Nat(Ref),
    /// Those that others keep, by id.
    GivenInternet(String),
    GivenEgressOnly(String),
    GivenNat(String),
    Instance(String),
    Transit(String),
    Peering(String),
}

/// Whom a rule of a security group is about.
#[derive(Clone, Debug)]
pub enum Peer {
    Group(Ref),
    V4(String),
    V6(String),
    Prefixes(String),
}

/// One rule. Without a protocol it is for all.
#[derive(Clone, Debug)]
pub struct Rule {
    pub group: Ref,
    pub peer: Peer,
    pub egress: bool,
    pub protocol: Option<String>,
    pub ports: Option<(i64, i64)>,
}

/// A disk in EBS.
#[derive(Clone, Debug, Default)]
pub struct Ebs {
    /// In GiB.
    pub size: i64,
    pub class: String,
    pub iops: Option<i64>,
    /// In MiB a second.
    pub throughput: Option<i64>,
    pub encrypted: bool,
    pub key: Option<String>,
    pub deleted_with_machine: bool,
}

/// A disk as a machine sees it, under a name as `/dev/xvda`.
#[derive(Clone, Debug)]
pub struct BlockDevice {
    pub device: String,
    pub disk: Disk,
}

/// What is behind a device: a disk in EBS, or one that the machine itself has, by its name.
#[derive(Clone, Debug)]
pub enum Disk {
    Ebs(Ebs),
    Own(String),
}

/// How a machine's metadata service answers.
#[derive(Clone, Debug)]
pub struct MetadataService {
    pub hops: i64,
    pub tokens: String,
    pub ipv6: bool,
}

/// How spare capacity is asked for: the highest price of an hour in dollars, for how long, and what happens at its end.
#[derive(Clone, Debug)]
pub struct SpotOptions {
    pub price: String,
    pub minutes: Option<i64>,
    pub interruption: Option<String>,
}

/// What a group's machines are made of.
#[derive(Clone, Debug)]
pub struct LaunchTemplate {
    pub image: String,
    pub machine_type: Option<String>,
    pub profile: Ref,
    pub key: Option<Ref>,
    pub devices: Vec<BlockDevice>,
    pub optimized: Option<bool>,
    pub cpu_credits: Option<String>,
    pub monitoring: bool,
    pub metadata: MetadataService,
    pub public_address: Option<bool>,
    pub ipv6_addresses: i64,
    pub security_groups: Vec<Ref>,
    pub tenancy: Option<String>,
    pub spot: Option<SpotOptions>,
    /// A script, or several parts. It is for the machine alone, and carries no private key.
    pub user_data: Vec<u8>,
}

/// How many of a group's machines are bought how.
#[derive(Clone, Debug, Default)]
pub struct Distribution {
    pub types: Vec<String>,
    pub on_demand_above_base: Option<i64>,
    pub on_demand_base: Option<i64>,
    pub on_demand_strategy: Option<String>,
    pub spot_strategy: Option<String>,
    pub spot_pools: Option<i64>,
    pub spot_price: String,
}

/// How many stopped machines wait until they are needed; without `max`, as many as the group may have.
#[derive(Clone, Debug)]
pub struct WarmPool {
    pub min: i64,
    pub max: Option<i64>,
}

/// A group of machines that is held at its size.
#[derive(Clone, Debug)]
pub struct ScalingGroup {
    /// `master`, `node`, `apiserver` or `bastion`.
    pub role: String,
    pub template: Ref,
    pub min: i64,
    pub max: i64,
    pub subnets: Vec<Ref>,
    pub metrics: Vec<String>,
    pub suspended: Vec<String>,
    pub protected: bool,
    pub balancers: Vec<Ref>,
    pub target_groups: Vec<Ref>,
    /// In seconds; none is zero.
    pub lifetime: i64,
    pub rebalanced: Option<bool>,
    pub mixed: Option<Distribution>,
    pub warm_pool: Option<WarmPool>,
}

/// A subnet that a load balancer stands in.
#[derive(Clone, Debug)]
pub struct Mapping {
    pub subnet: Ref,
    pub allocation: Option<String>,
    pub address: Option<String>,
}

/// A load balancer of either class.
#[derive(Clone, Debug)]
pub struct Balancer {
    /// Its name in AWS, of 32 characters at most.
    pub short: String,
    pub internal: bool,
    pub dual_stack: bool,
    pub subnets: Vec<Mapping>,
    pub security_groups: Vec<Ref>,
    pub cross_zone: bool,
    /// The bucket of its log, the prefix there, and for classic ones the interval in minutes.
    pub log: Option<(String, Option<String>, i64)>,
    /// Of classic ones: the certificate of port 443, and after how many seconds a silent connection ends.
    pub certificate: Option<String>,
    pub idle_timeout: i64,
}

/// A port of a network load balancer, and whom it passes on to.
#[derive(Clone, Debug)]
pub struct Listener {
    pub balancer: Ref,
    pub port: i64,
    pub group: Ref,
    /// A certificate and a policy, with which it ends TLS.
    pub tls: Option<(String, String)>,
}

/// How a balancer asks a target whether it is well: every 10 s, and twice before it believes it.
#[derive(Clone, Debug)]
pub struct HealthCheck {
    pub protocol: &'static str,
    pub path: Option<&'static str>,
}

/// Machines that a listener passes on to, and the port there.
#[derive(Clone, Debug)]
pub struct TargetGroup {
    pub vpc: Ref,
    pub port: i64,
    pub protocol: &'static str,
    pub health: HealthCheck,
}

impl Resource {
    /// Its kind, which with the name is its identity.
    pub fn kind(&self) -> Kind {
        self.body.kind()
    }
}

impl Body {
    /// The kind of what it is the body of.
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
