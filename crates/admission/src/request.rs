use std::{collections::BTreeMap, fmt, sync::Arc};

use api_meta::{
    Authorizer, GroupResource, GroupVersionKind, GroupVersionResource, Objects, Status, Timestamp,
    Tree as _, UserInfo, Warnings,
};
use serde_json::Value;

/// What is done to an object, as admission sees it: a patch is an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Create,
    Update,
    Delete,
    /// A stream or a proxied request; nothing is stored.
    Connect,
}

impl Operation {
    /// The name in rules of webhooks and in reviews.
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

/// A request that was authorised, and the cluster around it. The object itself goes beside it, since it changes.
///
/// It is the request as it was made: who binds a Pod creates a Binding at `pods/binding`, and what the server then
/// writes on his behalf is no request. For a deletion the object is null and `old` is what is to be deleted; for a
/// connection the object is its options.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    pub operation: Operation,
    /// The kind of the object that was sent, which for a subresource need not be the resource's.
    pub kind: &'a GroupVersionKind,
    pub resource: &'a GroupVersionResource,
    pub subresource: &'a str,
    /// Empty for cluster-scoped resources. A Namespace is in itself.
    pub namespace: &'a str,
    /// Empty for a create while the server has yet to make the name, and for each object of a collection that is deleted.
    pub name: &'a str,
    pub user: &'a UserInfo,
    pub old: Option<&'a Value>,
    /// CreateOptions, UpdateOptions (of a patch too) or DeleteOptions; null for a connection.
    pub options: &'a Value,
    pub dry_run: bool,
    pub objects: &'a dyn Objects,
    pub authorizer: &'a Arc<dyn Authorizer>,
    pub now: Timestamp,
    /// Draws a number below the given one.
    pub random: &'a (dyn Fn(usize) -> usize + Sync),
}

/// What a chain leaves beside its verdict.
#[derive(Debug, Default, PartialEq)]
pub struct Outcome {
    /// `Warning` headers.
    pub warnings: Warnings,
    pub audit: BTreeMap<String, String>,
}

impl Request<'_> {
    /// Whether this is about the resource itself.
    pub fn is(&self, resource: &GroupResource) -> bool {
        self.is_sub(resource, "")
    }

    /// Whether this is about this subresource; an empty one is the resource itself.
    pub(crate) fn is_sub(&self, resource: &GroupResource, subresource: &str) -> bool {
        self.subresource == subresource && self.on(resource)
    }

    /// Whether this is about the resource or one of its subresources.
    pub fn on(&self, resource: &GroupResource) -> bool {
        self.resource.resource == resource.resource && self.resource.group == resource.group
    }

    /// Whether an object is made.
    pub fn creates(&self) -> bool {
        self.operation == Operation::Create
    }

    /// Whether an object is changed, by an update or a patch.
    pub fn updates(&self) -> bool {
        self.operation == Operation::Update
    }

    /// Whether an object, or each of a collection, is deleted.
    pub fn deletes(&self) -> bool {
        self.operation == Operation::Delete
    }

    /// The object's name, or what it will be made from.
    pub fn object_name<'o>(&'o self, object: &'o Value) -> &'o str {
        [self.name, object.name(), object.text("metadata.generateName")]
            .into_iter()
            .find(|name| !name.is_empty())
            .unwrap_or("Unknown")
    }

    /// The refusal of this request.
    pub fn forbidden(&self, object: &Value, cause: impl fmt::Display) -> Status {
        Status::forbidden(&self.resource.group_resource(), self.object_name(object), cause)
    }
}

/// One admission rule, which takes part in one phase or several.
pub trait Plugin: Send + Sync {
    /// Changes the object.
    fn mutate(
        &self,
        _request: &Request<'_>,
        _object: &mut Value,
        _outcome: &mut Outcome,
    ) -> Result<(), Status> {
        Ok(())
    }

    /// Judges the object as it is going to be.
    fn validate(
        &self,
        _request: &Request<'_>,
        _object: &Value,
        _outcome: &mut Outcome,
    ) -> Result<(), Status> {
        Ok(())
    }

    /// The ResourceQuotas that the request spends from, with the usage that it adds.
    fn charge(&self, _request: &Request<'_>, _object: &Value) -> Result<Vec<Value>, Status> {
        Ok(Vec::new())
    }
}
