//! The creation of resources.

use api_meta::Tree as _;
use serde_json::Value;

use crate::{
    aws::{
        Creation, Ids, Kind, Resource,
        load_balancer::{alias_of, described_alias},
        operations::IdSource,
    },
    error::Error,
};

/// Returns the creation of a resource.
pub fn plan_creation(resource: &Resource, ids: &Ids) -> Result<Creation, Error> {
    resource.body.operations().create(&resource.metadata(), ids)
}

impl Creation {
    /// Records the ID in the answer to the creation under the resource's reference, and under further references that
    /// depend on it. Returns the ID.
    pub fn record_id(&self, resource: &Resource, answer: &Value, ids: &mut Ids) -> String {
        let own = resource.reference();
        let first = |list: &str| answer.items(list).first().unwrap_or(&Value::Null);
        let id = match &self.id {
            IdSource::Name => resource.name.clone(),
            IdSource::Field(path) => answer.text(*path).to_owned(),
            IdSource::First { list, member } => first(list).text(*member).to_owned(),
            IdSource::Known(id) => id.clone(),
        };
        if own.kind == Kind::NetworkBalancer {
            ids.insert(alias_of(&own), described_alias(first("LoadBalancers")));
        }
        ids.insert(own, id.clone());
        id
    }
}
