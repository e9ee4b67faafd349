//! The kinds of resources on Google Compute Engine, one file per family.
//!
//! A kind implements [`operations::Operations`]: it renders a resource for Terraform. There are no direct calls. The
//! modules do not know which resources a cluster needs; that is [`crate::model::gce`]'s task.

mod balancer;
mod disk;
mod family;
mod firewall;
mod iam;
mod instance;
mod kind;
mod network;
pub(crate) mod operations;
mod store_object;
pub(crate) mod writer;

pub use self::kind::{Kind, Ref};
pub(crate) use self::{
    balancer::{
        Address, BackendService, ForwardingRule, HealthCheck, HttpHealthCheck, Probe, TargetPool,
        Traffic,
    },
    disk::Disk,
    firewall::{Allowed, FirewallRule},
    iam::{RoleBinding, RoleScope, ServiceAccount},
    instance::{
        Accelerator, AliasRange, BootDisk, InstanceGroupManager, InstanceTemplate, Scheduling,
    },
    network::{Network, Router, RouterNat, Subnetwork},
    store_object::{GsObject, S3Object},
};
