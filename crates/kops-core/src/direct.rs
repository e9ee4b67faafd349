//! A model beside what is in AWS already: what is asked, what is there, what differs, and the calls that make it so.
//!
//! All of it is pure. Whoever calls AWS asks [`questions`] until there are none, reads [`There`] of the answers, and carries
//! a [`Plan`] out change by change. A resource is known by its kind and by what only one of its kind has (a name, or what it
//! consists of), so that who was interrupted finds what was made. What is left to do after it was made is a difference like
//! any other.

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
    erase::{Erasure, erasures},
    look::{Answers, There, questions},
    machines::{Group, Machine},
    make::{Making, makes},
    plan::{Change, Plan, changes, plan},
    scope::Scope,
};
use crate::model::aws::{Kind, Ref};

/// A call of an operation, with its parameters under their wire names.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    pub service: &'static str,
    pub operation: &'static str,
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

/// What is compared of a resource: tags as `Tags.KEY`. A policy is in one order of its members, a list in order.
pub type Fields = BTreeMap<String, String>;

/// Ids of what is there: ARNs of balancers, names of what has nothing else.
pub type Ids = BTreeMap<Ref, String>;

/// What is there of a resource.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Found {
    pub id: String,
    pub fields: Fields,
    /// Whether it is the cluster's: nothing else is deleted.
    pub owned: bool,
    /// What calls about it have to say beside its id.
    pub around: String,
}

/// What makes a resource one of its kind.
pub type Identity = (Kind, String);
