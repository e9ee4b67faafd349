//! A cluster's resources in AWS, under upstream's names and tags, so that clusters created by upstream's kOps look the
//! same.
//!
//! A [`Resource`] is one resource in AWS; its kinds are in `crate::aws`. A resource that already exists and that the
//! cluster neither creates nor deletes is in the model with its ID. So references work the same for both. Each part of
//! the model is built by one function of the complete cluster, which adds to the [`Model`]. `Model::check` then
//! verifies that every reference has a target. Read [`aws`] first.

mod access;
mod balancer;
mod bastion;
mod context;
mod dns;
mod firewall;
mod graph;
mod groups;
mod iam;
pub(crate) mod names;
mod network;
mod policy;
mod statements;
mod template;
mod termination;
mod unsupported;
mod volumes;

use kops_api::Object;

pub use self::{
    context::{AwsInputs, fingerprint},
    graph::Model,
};
pub use crate::aws::{
    AccessLog, Balancer, BlockDevice, Body, ClassicBalancer, DhcpOptions, DhcpOptionsAssociation,
    Disk, Distribution, Ebs, EgressOnlyGateway, ElasticIp, EventRule, EventTarget, HealthCheck,
    InstanceProfile, InternetGateway, Kind, LaunchTemplate, LifecycleHook, Listener, Mapping,
    MetadataService, NatGateway, NetworkBalancer, OidcProvider, Peer, Queue, Record, Ref, Resource,
    Role, RolePolicy, RolePolicyAttachment, Route, RouteTable, RouteTableAssociation, RouteTarget,
    ScalingGroup, SecurityGroup, SecurityGroupRule, SpotOptions, SshKey, StoreObject, Subnet, Tags,
    TargetGroup, TlsTermination, Volume, Vpc, VpcCidr, WarmPool, Zone, ZoneAssociation,
};
use crate::{
    error::Error,
    model::{
        bucket::Scheme,
        store::{self, NamedObject, StoreContext},
    },
};

/// Builds the model of a complete cluster and its complete groups. Unsupported fields are rejected by name.
pub fn aws(cluster: &Object, groups: &[Object], inputs: &AwsInputs) -> Result<Model, Error> {
    let cluster = cluster.normalized();
    unsupported::reject(&cluster, groups)?;
    let context = context::Context::new(&cluster, groups, inputs)?;
    let mut model = Model::of(&context.region);
    network::add(&context, &mut model)?;
    firewall::add(&context, &mut model);
    access::add(&context, &mut model)?;
    balancer::add(&context, &mut model)?;
    bastion::add(&context, &mut model)?;
    dns::add(&context, &mut model)?;
    volumes::add(&context, &mut model)?;
    iam::add(&context, &mut model)?;
    termination::add(&context, &mut model)?;
    groups::add(&context, &mut model)?;
    add_store(&context, &mut model)?;
    model.check()?;
    Ok(model)
}

/// Adds the objects that machines read from the state store.
fn add_store(context: &context::Context<'_>, model: &mut Model) -> Result<(), Error> {
    let objects = store::objects(StoreContext {
        cluster: context.cluster,
        groups: context.groups,
        node: &context.inputs.node,
        addons: &context.inputs.addons,
        key_set: &context.inputs.key_set,
        schemes: &[Scheme::S3],
    })?;
    for NamedObject { name, object, .. } in objects {
        model.add(name, Tags::new(), object);
    }
    Ok(())
}
