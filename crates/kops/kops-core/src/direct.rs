//! Compares a model with the existing resources in AWS, and plans the calls that make them equal.
//!
//! The module is pure: the caller makes the calls. The caller answers [`questions`] until there are none, parses the
//! answers as [`ExistingResources`], and carries out a [`Plan`] change by change.
//!
//! A resource is identified by its kind and by a value that is unique within the kind, such as a name. So an
//! interrupted run finds the resources it has created. Work left after a creation is a difference like any other. Read
//! [`Plan`] first.

mod erase;
mod fields;
mod look;
mod machines;
mod make;
mod network;
mod plan;
mod scope;
mod serve;

use std::collections::BTreeMap;

use serde_json::Value;

pub use self::{
    erase::{Deletion, erasures},
    look::{Answers, ExistingResources, questions},
    machines::{Group, Machine},
    make::{Creation, makes},
    plan::{Change, Plan, changes, plan},
    scope::Scope,
};
use crate::model::aws::{Kind, Ref};

/// A call of an AWS operation, with its parameters under their wire names.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// The AWS service, such as `ec2`.
    pub service: &'static str,
    /// The operation's name.
    pub operation: &'static str,
    /// The operation's parameters.
    pub parameters: Value,
}

impl Call {
    pub(crate) fn new(service: &'static str, operation: &'static str, parameters: Value) -> Self {
        Self { service, operation, parameters }
    }

    pub(crate) fn ec2(operation: &'static str, parameters: Value) -> Self {
        Self::new("ec2", operation, parameters)
    }
}

/// The compared fields of a resource: tags as `Tags.KEY`. Policies and lists are in a canonical order.
pub type Fields = BTreeMap<String, String>;

/// The IDs of existing resources: ARNs of load balancers, names of resources without another ID.
pub type Ids = BTreeMap<Ref, String>;

/// An existing resource.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExistingResource {
    /// Its ID, ARN or name.
    pub id: String,
    /// Its fields.
    pub fields: Fields,
    /// `true` if the cluster owns it. Only owned resources are deleted.
    pub owned: bool,
    /// Further parameters of calls about it, besides its ID.
    pub around: String,
}

/// The identity of a resource: its kind, and a value that is unique within the kind.
pub type Identity = (Kind, String);
