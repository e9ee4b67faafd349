//! The model of a cluster: resources by identity, and the references between them.

use std::collections::BTreeMap;

use crate::{
    aws::{Body, Kind, Ref, Resource, Tags},
    error::Error,
};

/// All resources of a cluster in AWS.
#[derive(Clone, Debug, Default)]
pub struct Model {
    /// The AWS region.
    pub region: String,
    /// The resources by reference.
    pub resources: BTreeMap<Ref, Resource>,
    /// References that two parts of the model added.
    duplicates: Vec<Ref>,
}

impl Model {
    /// Returns an empty model.
    pub(crate) fn of(region: &str) -> Self {
        Self { region: region.to_owned(), ..Self::default() }
    }

    /// Adds a resource that the cluster creates, and returns its reference.
    pub(crate) fn add(
        &mut self,
        name: impl Into<String>,
        tags: Tags,
        body: impl Into<Body>,
    ) -> Ref {
        self.put(Resource { name: name.into(), shared: None, tags, body: body.into() })
    }

    /// Adds a resource, which exists already if it has an ID.
    pub(crate) fn put(&mut self, resource: Resource) -> Ref {
        let id = resource.reference();
        if self.resources.insert(id.clone(), resource).is_some() {
            self.duplicates.push(id.clone());
        }
        id
    }

    /// Returns a reference to an existing resource, which several parts may add.
    pub(crate) fn add_existing(
        &mut self,
        name: impl Into<String>,
        id: &str,
        body: impl Into<Body>,
    ) -> Ref {
        let (name, shared, body) = (name.into(), Some(id.to_owned()), body.into());
        let to = Ref::new(body.kind(), name.clone());
        let existing = || Resource { name, shared, tags: Tags::new(), body };
        self.resources.entry(to.clone()).or_insert_with(existing);
        to
    }

    /// Returns the resource of a reference.
    pub fn find(&self, to: &Ref) -> Option<&Resource> {
        self.resources.get(to)
    }

    /// Returns the resources of a kind, sorted by name.
    pub fn of_kind(&self, kind: Kind) -> impl Iterator<Item = &Resource> {
        self.resources.iter().filter(move |(id, _)| id.kind == kind).map(|(_, one)| one)
    }

    /// Checks that names are unique and that every reference has a target.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if let Some(Ref { kind, name }) = self.duplicates.first() {
            let reason = format!(
                "is the name of two resources ({kind:?}); rename their objects in the spec"
            );
            return Err(Error::value("the model", name, reason));
        }
        for (id, resource) in &self.resources {
            if let Some(missing) =
                resource.body.refs().into_iter().find(|to| self.find(to).is_none())
            {
                let reason = format!(
                    "refers to {:?} {:?}, which does not exist",
                    missing.kind, missing.name
                );
                return Err(Error::value(&format!("{:?}", id.kind), &id.name, reason));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aws::{DhcpOptionsAssociation, Vpc};

    #[test]
    fn check_rejects_duplicate_names_and_missing_references() {
        let mut model = Model::default();
        let vpc = model.add("a", Tags::new(), Vpc { cidr: "10.0.0.0/8".to_owned() });
        let options = Ref::new(Kind::DhcpOptions, "a");
        let body = DhcpOptionsAssociation { vpc, options };
        let mut missing = model.clone();
        missing.add("a", Tags::new(), body);
        let error = missing.check().expect_err("a missing reference").to_string();
        assert!(error.contains("refers to DhcpOptions \"a\", which does not exist"), "{error}");
        assert!(model.check().is_ok());
        model.add("a", Tags::new(), Vpc { cidr: String::new() });
        let error = model.check().expect_err("two of a name").to_string();
        assert!(error.contains("is the name of two resources (Vpc)"), "{error}");
    }
}
