//! The request that admission decides about, its outcome, and the trait of plugins.

use std::{collections::BTreeMap, fmt, sync::Arc};

use api_meta::{
    Authorizer, GroupResource, GroupVersionKind, GroupVersionResource, Objects, Status, Timestamp,
    Tree as _, UserInfo, Warnings,
};
use serde_json::Value;

/// The operation on an object. A patch is an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Create,
    Update,
    Delete,
    /// A stream or a proxied request, which stores nothing.
    Connect,
}

impl Operation {
    /// Returns the name in webhook rules and reviews.
    pub fn name(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
            Self::Connect => "CONNECT",
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An authorized request and the cluster around it. The object is passed separately because it changes.
///
/// This is the request as the client made it: binding a Pod creates a Binding at `pods/binding`, and the server's own
/// write to the Pod is no request. For a deletion the object is null and `old` is the object to delete. For a
/// connection the object is its options.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// The operation.
    pub operation: Operation,
    /// The kind of the submitted object, which for a subresource may differ from the resource's kind.
    pub kind: &'a GroupVersionKind,
    /// The requested resource.
    pub resource: &'a GroupVersionResource,
    /// The subresource; empty for the resource itself.
    pub subresource: &'a str,
    /// Empty for cluster-scoped resources. For a Namespace, its own name.
    pub namespace: &'a str,
    /// Empty for a create with `generateName`, and for each object of a deleted collection.
    pub name: &'a str,
    /// The authenticated user.
    pub user: &'a UserInfo,
    /// The stored object; `None` for a create.
    pub old: Option<&'a Value>,
    /// CreateOptions, UpdateOptions (also for a patch) or DeleteOptions; null for a connection.
    pub options: &'a Value,
    /// `true` if nothing is to be persisted.
    pub dry_run: bool,
    /// The objects of the cluster.
    pub objects: &'a dyn Objects,
    /// The authorizer for permission checks.
    pub authorizer: &'a Arc<dyn Authorizer>,
    /// The time of the request.
    pub now: Timestamp,
    /// Returns a random number below its argument.
    pub random: &'a (dyn Fn(usize) -> usize + Sync),
}

/// The side results of an admission chain.
#[derive(Debug, Default, PartialEq)]
pub struct Outcome {
    /// The `Warning` headers.
    pub warnings: Warnings,
    /// The audit annotations, by key.
    pub audit: BTreeMap<String, String>,
}

impl Request<'_> {
    /// Reports whether the request is for the resource itself.
    pub fn is(&self, resource: &GroupResource) -> bool {
        self.is_sub(resource, "")
    }

    /// Reports whether the request is for this subresource; an empty one is the resource itself.
    pub(crate) fn is_sub(&self, resource: &GroupResource, subresource: &str) -> bool {
        self.subresource == subresource && self.on(resource)
    }

    /// Reports whether the request is for the resource or one of its subresources.
    pub fn on(&self, resource: &GroupResource) -> bool {
        self.resource.resource == resource.resource && self.resource.group == resource.group
    }

    /// Reports whether the request creates an object.
    pub fn creates(&self) -> bool {
        self.operation == Operation::Create
    }

    /// Reports whether the request changes an object, by an update or a patch.
    pub fn updates(&self) -> bool {
        self.operation == Operation::Update
    }

    /// Reports whether the request deletes an object or a collection.
    pub fn deletes(&self) -> bool {
        self.operation == Operation::Delete
    }

    /// Returns the object's name, or its `generateName`.
    pub fn object_name<'o>(&'o self, object: &'o Value) -> &'o str {
        [self.name, object.name(), object.text("metadata.generateName")]
            .into_iter()
            .find(|name| !name.is_empty())
            .unwrap_or("Unknown")
    }

    /// Builds the Forbidden status for this request.
    pub fn forbidden(&self, object: &Value, cause: impl fmt::Display) -> Status {
        Status::forbidden(&self.resource.group_resource(), self.object_name(object), cause)
    }
}

/// The decision of a plugin: an error rejects the request.
pub type AdmissionResult = Result<(), Status>;

/// An admission rule that takes part in one or more phases.
pub trait Plugin: Send + Sync {
    /// Rejects a request in the first phase, before the plugins that follow change its object.
    fn precheck(&self, _request: &Request<'_>, _object: &Value) -> AdmissionResult {
        Ok(())
    }

    /// Reports whether `mutate` may change the object of this request. After a change the server fills in defaults
    /// again.
    fn mutates(&self, _request: &Request<'_>) -> bool {
        false
    }

    /// Changes the object of a request that the plugin mutates.
    fn mutate(&self, _request: &Request<'_>, _object: &mut Value) -> AdmissionResult {
        Ok(())
    }

    /// Validates the final object.
    fn validate(
        &self,
        _request: &Request<'_>,
        _object: &Value,
        _outcome: &mut Outcome,
    ) -> AdmissionResult {
        Ok(())
    }

    /// Returns the ResourceQuotas that the request counts against, with the usage that it adds.
    fn charge(&self, _request: &Request<'_>, _object: &Value) -> Result<Vec<Value>, Status> {
        Ok(Vec::new())
    }
}
