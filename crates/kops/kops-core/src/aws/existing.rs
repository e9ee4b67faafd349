//! Existing resources: their identity, ID and compared fields.

use std::collections::BTreeMap;

use super::kind::{Kind, Ref};

/// The compared fields of a resource: tags as `Tags.KEY`. Policies and lists are in a canonical order.
pub type Fields = BTreeMap<String, String>;

/// The IDs of existing resources: ARNs of load balancers, names of resources without another ID.
pub type Ids = BTreeMap<Ref, String>;

/// The identity of a resource: its kind, and a value that is unique within the kind.
pub type Identity = (Kind, String);

/// An existing resource with its identifying value.
pub(crate) type IdentifiedResource = (String, ExistingResource);

/// An existing resource.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExistingResource {
    /// Its ID, ARN or name.
    pub id: String,
    /// Its fields.
    pub fields: Fields,
    /// `true` if the cluster owns it. Only owned resources are deleted.
    pub owned: bool,
    /// A further parameter of calls about it, besides its ID, such as the VPC of an internet gateway.
    pub context: String,
}
