//! The names that every family of GCE resources uses.

pub(super) use super::{
    kind::{Kind, Ref},
    operations::{Labels, Operations},
    writer::Writer,
};
pub(super) use crate::{
    error::Error,
    terraform::hcl::{Block, Expr},
};
