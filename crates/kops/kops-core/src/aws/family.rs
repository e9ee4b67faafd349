//! The names that every family of AWS resources uses.

pub(super) use super::{
    answers::Answers,
    call::Call,
    existing::{ExistingResource, Fields, IdentifiedResource, Ids},
    kind::{Kind, Ref, Tags},
    operations::{Creation, Header, IdSource, Limit, Operations, Update},
    scope::Scope,
    writer::Writer,
};
pub(super) use crate::{
    error::Error,
    terraform::hcl::{Block, Expr},
};
