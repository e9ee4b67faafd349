//! The model of a cluster: resources by identity, and the references between them.

use std::collections::BTreeSet;

use super::names;
use crate::{
    error::Error,
    gce::{
        Kind, Ref,
        operations::{Operations, Resource, Resources},
    },
    model::bucket::Scheme,
};

/// All resources of a cluster on GCE.
#[derive(Debug)]
pub struct Model {
    /// The project.
    pub project: String,
    /// The region.
    pub region: String,
    /// The buckets in S3 that the configuration writes to.
    pub s3_buckets: BTreeSet<String>,
    /// The resources by reference.
    pub(crate) resources: Resources,
    /// References that two parts of the model added. An existing resource may be added twice.
    duplicates: Vec<Ref>,
}

impl Model {
    /// Returns an empty model.
    pub(super) fn new(project: &str, region: &str) -> Self {
        Self {
            project: project.to_owned(),
            region: region.to_owned(),
            s3_buckets: BTreeSet::new(),
            resources: Resources::new(),
            duplicates: Vec::new(),
        }
    }

    /// Adds a resource that the cluster creates, and returns its reference.
    pub(super) fn add(&mut self, name: impl Into<String>, body: impl Operations + 'static) -> Ref {
        let id = Ref::new(body.kind(), name);
        if self.resources.insert(id.clone(), Resource::Own(Box::new(body))).is_some() {
            self.duplicates.push(id.clone());
        }
        id
    }

    /// Adds an existing resource. `text` refers to it in Terraform.
    pub(super) fn add_existing(&mut self, to: Ref, text: &str) {
        let before = self.resources.insert(to.clone(), Resource::Existing(text.to_owned()));
        if matches!(before, Some(Resource::Own(_))) {
            self.duplicates.push(to);
        }
    }

    /// Adds a bucket that the configuration writes to.
    pub(super) fn add_bucket(&mut self, scheme: Scheme, bucket: &str) {
        if scheme == Scheme::S3 {
            self.s3_buckets.insert(bucket.to_owned());
        }
    }

    /// Returns the references of the resources of a kind, sorted by name.
    pub fn of_kind(&self, kind: Kind) -> impl Iterator<Item = &Ref> {
        self.resources.keys().filter(move |id| id.kind == kind)
    }

    /// Checks that names are unique and valid, and that every reference has a target.
    pub(super) fn check(&self) -> Result<(), Error> {
        if let Some(Ref { kind, name }) = self.duplicates.first() {
            let reason = format!(
                "is the name of two resources ({kind:?}); rename their objects in the spec"
            );
            return Err(Error::value("the model", name, reason));
        }
        for (id, resource) in &self.resources {
            let Resource::Own(body) = resource else { continue };
            if let Some(name) = body.gce_name(&id.name) {
                names::check(id.kind.terraform_type(), name)?;
            }
            let mut refs = body.refs().into_iter();
            if let Some(missing) = refs.find(|to| !self.resources.contains_key(to)) {
                let (kind, name) = (missing.kind, &missing.name);
                let reason = format!("refers to {kind:?} {name:?}, which does not exist");
                return Err(Error::value(&format!("{:?}", id.kind), &id.name, reason));
            }
        }
        Ok(())
    }
}
