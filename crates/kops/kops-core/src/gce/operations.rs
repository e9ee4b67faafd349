//! The operations that each kind of resources implements.

use std::{collections::BTreeMap, fmt::Debug};

use super::{
    kind::{Kind, Ref},
    writer::Writer,
};
use crate::{error::Error, terraform::hcl::Block};

/// Labels by key.
pub(crate) type Labels = BTreeMap<String, String>;

/// A resource of one kind.
pub(crate) trait Operations: Debug + Send + Sync {
    /// Returns the kind.
    fn kind(&self) -> Kind;

    /// Returns the name that GCE validates; `None` if the resource has none. `name` is that of the model.
    fn gce_name<'a>(&'a self, name: &'a str) -> Option<&'a str> {
        Some(name)
    }

    /// Returns the resources that must exist before this one.
    fn refs(&self) -> Vec<&Ref> {
        Vec::new()
    }

    /// Returns the arguments in Terraform.
    fn terraform(&self, name: &str, writer: &mut Writer<'_>) -> Result<Block, Error>;
}

/// A resource of the model.
#[derive(Debug)]
pub(crate) enum Resource {
    /// A resource that the cluster creates.
    Own(Box<dyn Operations>),
    /// An existing resource, which the cluster only uses, by the text that refers to it.
    Existing(String),
}

/// The resources by reference.
pub(crate) type Resources = BTreeMap<Ref, Resource>;
