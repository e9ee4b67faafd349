//! The kinds of resources in AWS, one file per family.
//!
//! A kind implements [`operations::Operations`]: it finds existing resources in answers, compares them with desired
//! ones, returns the calls that create, change and delete them, and renders them for Terraform. A new kind is an
//! implementation and one line in each of the tables in `kind.rs` and `body.rs`. The modules are pure: the caller
//! makes the calls. They do not know which resources a cluster needs; that is [`crate::model`]'s task.

mod answers;
mod body;
mod call;
mod dns;
mod ec2;
mod elbv2;
mod event;
mod existing;
mod family;
pub(crate) mod fields;
mod gateway;
mod iam;
mod kind;
mod launch_template;
mod lifecycle_hook;
mod listener;
pub(crate) mod load_balancer;
pub(crate) mod machine;
mod network;
pub(crate) mod operations;
mod route;
mod scaling_group;
mod scope;
mod security_group;
mod ssh_key;
mod store_object;
mod subnet;
mod volume;
pub(crate) mod writer;

pub use self::{
    answers::Answers,
    body::{Body, Resource},
    call::Call,
    dns::{Record, Zone, ZoneAssociation},
    event::{EventRule, EventTarget, Queue},
    existing::{ExistingResource, Fields, Identity, Ids},
    gateway::{EgressOnlyGateway, ElasticIp, InternetGateway, NatGateway},
    iam::{InstanceProfile, OidcProvider, Role, RolePolicy, RolePolicyAttachment},
    kind::{Kind, Ref, Tags},
    launch_template::{BlockDevice, Disk, LaunchTemplate, MetadataService, SpotOptions},
    lifecycle_hook::LifecycleHook,
    listener::{HealthCheck, Listener, TargetGroup, TlsTermination},
    load_balancer::{AccessLog, Balancer, ClassicBalancer, Mapping, NetworkBalancer},
    machine::{Group, Machine, group_queries, groups},
    network::{DhcpOptions, DhcpOptionsAssociation, Vpc, VpcCidr},
    operations::Creation,
    route::{Route, RouteTable, RouteTableAssociation, RouteTarget},
    scaling_group::{Distribution, ScalingGroup, WarmPool},
    scope::Scope,
    security_group::{Peer, SecurityGroup, SecurityGroupRule},
    ssh_key::SshKey,
    store_object::StoreObject,
    subnet::Subnet,
    volume::{Ebs, Volume},
};
