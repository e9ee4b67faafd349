//! A cluster's resources on Google Compute Engine, under upstream's names, so that clusters created by upstream's kOps
//! look the same.
//!
//! The kinds of resources are in `crate::gce`. Each part of the model is built by one function of the complete cluster,
//! which adds to the [`Model`]. `Model::check` then verifies that every reference has a target, and that GCE accepts
//! every name. Only Terraform creates the resources. Read [`gce`] first.

mod access;
mod accounts;
mod balancer;
mod context;
mod disks;
mod firewall;
mod graph;
mod groups;
mod names;
mod network;
mod template;
mod unsupported;

use kops_api::Object;

use self::context::{Context, SCHEMES};
pub use self::{context::GceInputs, graph::Model};
pub use super::bucket::Scheme;
use super::store::{self, NamedObject, StoreContext};
pub use crate::gce::{Kind, Ref};
use crate::{
    error::Error,
    gce::{GsObject, S3Object},
};

/// Builds the model of a complete cluster and its complete groups. Unsupported fields are rejected by name.
pub fn gce(cluster: &Object, groups: &[Object], inputs: &GceInputs) -> Result<Model, Error> {
    let cluster = cluster.normalized();
    unsupported::reject(&cluster, groups)?;
    let context = Context::new(&cluster, groups, inputs)?;
    let mut model = Model::new(context.project, context.region);
    network::add(&context, &mut model)?;
    firewall::add(&context, &mut model)?;
    access::add(&context, &mut model)?;
    balancer::add(&context, &mut model)?;
    disks::add(&context, &mut model)?;
    accounts::add(&context, &mut model)?;
    groups::add(&context, &mut model)?;
    add_store(&context, &mut model)?;
    model.check()?;
    Ok(model)
}

/// Adds the objects that machines read from the state store.
fn add_store(context: &Context<'_>, model: &mut Model) -> Result<(), Error> {
    let objects = store::objects(StoreContext {
        cluster: context.cluster,
        groups: context.groups,
        node: &context.inputs.node,
        addons: &context.inputs.addons,
        key_set: "",
        schemes: SCHEMES,
    })?;
    for NamedObject { name, scheme, object } in objects {
        model.add_bucket(scheme, &object.bucket);
        if scheme == Scheme::S3 {
            model.add(name, S3Object(object));
        } else {
            model.add(name, GsObject(object));
        }
    }
    Ok(())
}
