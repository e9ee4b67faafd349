//! The operations that each kind of resources implements. Read [`Operations`] first.

use serde_json::{Value, json};

use super::{
    answers::Answers,
    call::Call,
    existing::{ExistingResource, Fields, IdentifiedResource, Ids},
    fields::tag_pairs,
    kind::{Kind, Ref, Tags},
    scope::Scope,
    writer::Writer,
};
use crate::{error::Error, terraform::hcl::Block};

/// The operations of one kind of resources: comparison with the existing ones, calls, and Terraform.
pub(crate) trait Operations {
    /// Returns the queries about existing resources. A query that needs the answer to another one is returned once
    /// that answer is known.
    fn queries(_scope: &Scope, _answers: &Answers) -> Vec<Call>
    where
        Self: Sized,
    {
        Vec::new()
    }

    /// Returns the existing resources in the answers.
    fn find_existing(scope: &Scope, answers: &Answers) -> Vec<IdentifiedResource>
    where
        Self: Sized;

    /// Returns the calls that delete an existing resource; none if it vanishes with another one.
    fn delete(identity: &str, found: &ExistingResource) -> Vec<Call>
    where
        Self: Sized;

    /// Returns a resource's name in Terraform.
    fn terraform_name(name: &str) -> String
    where
        Self: Sized,
    {
        name.to_owned()
    }

    /// Returns the attribute by which other resources refer to this one in Terraform.
    fn terraform_reference() -> &'static str
    where
        Self: Sized,
    {
        "id"
    }

    /// Returns the resources that must exist before this one.
    fn refs(&self) -> Vec<&Ref> {
        Vec::new()
    }

    /// Returns the limit of direct calls that the resource exceeds.
    fn direct_limit(&self) -> Option<Limit> {
        None
    }

    /// Adds what queries need to know about the resource. `shared` is the ID of an existing resource.
    fn extend_scope(&self, _shared: Option<&str>, _scope: &mut Scope) {}

    /// Returns the identifying value; `None` while the resource depends on one that does not exist.
    fn identity(&self, own: &Header<'_>, _ids: &Ids) -> Option<String> {
        Some(own.name.to_owned())
    }

    /// Reports whether tags are compared. Tags of other kinds are only written at creation.
    fn has_compared_tags(&self) -> bool {
        true
    }

    /// Returns the desired fields, without tags.
    fn desired_fields(&self, _own: &Header<'_>, _ids: &Ids) -> Fields {
        Fields::new()
    }

    /// Returns the creation of the resource.
    fn create(&self, own: &Header<'_>, ids: &Ids) -> Result<Creation, Error>;

    /// Returns the calls that change fields other than tags. Fields that cannot be changed are rejected.
    fn change(&self, update: &Update<'_>) -> Result<Vec<Call>, Error> {
        update.validate_fields(&[])?;
        Ok(Vec::new())
    }

    /// Returns the call that sets tags.
    fn set_tags(&self, id: &str, tags: &Tags) -> Call {
        Call::ec2("CreateTags", json!({"ResourceId": [id], "Tag": tag_pairs(tags)}))
    }

    /// Returns the arguments in Terraform.
    fn terraform(&self, own: &Header<'_>, writer: &mut Writer<'_>) -> Result<Block, Error>;
}

/// The kind-independent part of a resource that the cluster creates.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Header<'a> {
    /// The kind.
    pub(crate) kind: Kind,
    /// The name, unique within the kind.
    pub(crate) name: &'a str,
    /// The tags.
    pub(crate) tags: &'a Tags,
}

impl Header<'_> {
    /// Returns the error for a resource that [`Operations::direct_limit`] should have rejected.
    pub(crate) fn internal_error(&self) -> Error {
        Error::Unsupported {
            what: format!("{:?} {:?} with --target=direct", self.kind, self.name),
            remedy: "this is a bug; please report it",
        }
    }
}

/// A feature that direct calls do not support.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    /// The feature.
    pub(crate) feature: &'static str,
    /// The remedy for the user.
    pub(crate) remedy: &'static str,
}

/// The creation of a resource, and the work left after it.
#[derive(Clone, Debug)]
pub struct Creation {
    /// The call that creates the resource.
    pub call: Call,
    /// The source of the new resource's ID.
    pub(crate) id: IdSource,
    /// The fields that are set after the creation.
    pub later: Vec<String>,
}

/// The source of a new resource's ID.
#[derive(Clone, Debug)]
pub(crate) enum IdSource {
    /// The resource's name.
    Name,
    /// A field of the answer, by path.
    Field(&'static str),
    /// A member of the first item of a list in the answer.
    First {
        /// The path of the list.
        list: &'static str,
        /// The member.
        member: &'static str,
    },
    /// An ID that is known before the creation.
    Known(String),
}

impl Creation {
    /// Returns a creation that leaves no fields.
    pub(crate) fn new(call: Call, id: IdSource) -> Self {
        Self { call, id, later: Vec::new() }
    }

    /// Returns the creation of an EC2 resource whose ID is a field of the answer.
    pub(crate) fn ec2(operation: &'static str, parameters: Value, id: &'static str) -> Self {
        Self::new(Call::ec2(operation, parameters), IdSource::Field(id))
    }

    /// Adds fields that are set after the creation.
    pub(crate) fn with_later<'a>(mut self, fields: impl IntoIterator<Item = &'a str>) -> Self {
        self.later.extend(fields.into_iter().map(str::to_owned));
        self
    }
}

/// A change of an existing resource.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Update<'a> {
    /// The desired resource.
    pub(crate) own: Header<'a>,
    /// The existing resource.
    pub(crate) found: &'a ExistingResource,
    /// The IDs of existing resources.
    pub(crate) ids: &'a Ids,
    /// The differing fields, without tags.
    pub(crate) fields: &'a [&'a str],
}

impl<'a> Update<'a> {
    /// Returns the ID of the existing resource.
    pub(crate) fn id(&self) -> &'a str {
        &self.found.id
    }

    /// Reports whether a field differs.
    pub(crate) fn has(&self, field: &str) -> bool {
        self.fields.contains(&field)
    }

    /// Rejects the change if it contains another field than these.
    pub(crate) fn validate_fields(&self, mutable: &[&str]) -> Result<(), Error> {
        let Some(field) = self.fields.iter().find(|field| !mutable.contains(field)) else {
            return Ok(());
        };
        let what = format!("{:?} {}: {field}", self.own.kind, self.own.name);
        let old = self.found.fields.get(*field).cloned().unwrap_or_default();
        let reason = "cannot be changed in place: revert the change, or delete the resource first";
        Err(Error::value(&what, old, reason))
    }
}
