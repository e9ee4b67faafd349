//! Calls and answers that most EC2 resources have in common.

use api_meta::Tree as _;
use serde_json::{Value, json};

use super::{
    answers::Answers,
    call::Call,
    existing::{ExistingResource, Fields, IdentifiedResource},
    fields::{is_owned, put_tags, tag_pairs, tags},
    kind::Tags,
    scope::Scope,
};

/// A listing of EC2 resources by their tags.
pub(crate) struct Listing {
    /// The operation.
    pub(crate) operation: &'static str,
    /// The list in an answer.
    pub(crate) list: &'static str,
    /// The member of an item that is its ID.
    pub(crate) id: &'static str,
}

impl Listing {
    /// Returns the query for the resources with a cluster's tag.
    pub(crate) fn query(&self, scope: &Scope) -> Call {
        let tag = format!("tag:kubernetes.io/cluster/{}", scope.cluster);
        let filter = json!([{"Name": tag, "Value": ["owned", "shared"]}]);
        Call::ec2(self.operation, json!({"Filter": filter}))
    }

    /// Returns the items of all answers.
    pub(crate) fn items<'a>(&self, answers: &'a Answers) -> impl Iterator<Item = &'a Value> {
        answers.each(self.operation, self.list)
    }

    /// Returns the resources in the answers. Their names are in a tag.
    pub(crate) fn find(
        &self,
        scope: &Scope,
        answers: &Answers,
        fields: impl Fn(&Value) -> Fields,
    ) -> Vec<IdentifiedResource> {
        self.items(answers).map(|item| self.identified(scope, item, fields(item))).collect()
    }

    /// Returns an item of an answer with these fields and its tags. Its name is in a tag.
    pub(crate) fn identified(
        &self,
        scope: &Scope,
        item: &Value,
        fields: Fields,
    ) -> IdentifiedResource {
        let name = tags(item.items("tagSet")).remove("Name").unwrap_or_default();
        (name, self.existing(scope, item, fields))
    }

    /// Returns an item of an answer with these fields and its tags.
    pub(crate) fn existing(
        &self,
        scope: &Scope,
        item: &Value,
        mut fields: Fields,
    ) -> ExistingResource {
        let tags = tags(item.items("tagSet"));
        put_tags(&mut fields, &tags);
        ExistingResource {
            id: item.text(self.id).to_owned(),
            fields,
            owned: is_owned(&tags, &scope.cluster),
            context: String::new(),
        }
    }
}

/// Reports whether an item of an answer is the cluster's own.
pub(crate) fn has_owner(scope: &Scope, item: &Value) -> bool {
    is_owned(&tags(item.items("tagSet")), &scope.cluster)
}

/// Returns the parameters of a creation with the tags of the new resource.
pub(crate) fn with_tags(mut parameters: Value, kind: &str, tags: &Tags) -> Value {
    if !tags.is_empty() {
        let tagged = json!([{"ResourceType": kind, "Tag": tag_pairs(tags)}]);
        parameters.put("TagSpecification", tagged);
    }
    parameters
}

/// Returns the call that deletes a resource by its ID alone.
pub(crate) fn delete(
    operation: &'static str,
    parameter: &str,
    found: &ExistingResource,
) -> Vec<Call> {
    vec![Call::ec2(operation, json!({parameter: found.id}))]
}
