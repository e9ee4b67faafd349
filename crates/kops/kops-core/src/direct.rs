//! Compares a model with the existing resources in AWS, and plans the calls that make them equal.
//!
//! The module is pure: the caller makes the calls. The caller answers [`next_queries`] until there are none, parses the
//! answers as [`ExistingResources`], and carries out a [`Plan`] change by change.
//!
//! A resource is identified by its kind and by a value that is unique within the kind, such as a name. So an
//! interrupted run finds the resources it has created. Work left after a creation is a difference like any other. Read
//! [`Plan`] first.

mod creation;
mod deletion;
mod existing;
mod lifecycle;
mod order;
mod plan;
mod scope;

pub use self::{
    creation::plan_creation,
    deletion::{Deletion, plan_deletion},
    existing::{ExistingResources, next_queries},
    lifecycle::{Lifecycle, Phase, Selection},
    plan::{Change, Plan, plan, update_calls},
};
pub use crate::aws::{
    Answers, Call, Creation, ExistingResource, Fields, Group, Identity, Ids, Machine, Scope,
    group_queries, groups,
};
