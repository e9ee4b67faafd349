//! The resources that the API serves.

use serde::Deserialize;

use crate::{error::Error, request::Client, resource::Resource};

/// A resource of a group version, with its verbs.
#[derive(Clone, Debug)]
pub struct ApiResource {
    /// The resource.
    pub resource: Resource,
    /// The verbs that the API supports for it.
    pub verbs: Vec<String>,
}

impl ApiResource {
    /// Reports whether the API supports all of these verbs for the resource.
    pub fn supports(&self, verbs: &[&str]) -> bool {
        verbs.iter().all(|verb| self.verbs.iter().any(|supported| supported == verb))
    }
}

#[derive(Deserialize)]
struct Document {
    #[serde(default)]
    resources: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    name: String,
    kind: String,
    namespaced: bool,
    #[serde(default)]
    verbs: Vec<String>,
}

impl Client {
    /// Returns the resources of a group version without subresources. `path` is that of its discovery document.
    pub async fn resources(
        &self,
        path: &str,
        group: &str,
        version: &str,
    ) -> Result<Vec<ApiResource>, Error> {
        let document: Document = self.get_raw(path).await?;
        let resource = |entry: Entry| ApiResource {
            resource: Resource {
                group: group.to_owned().into(),
                version: version.to_owned().into(),
                plural: entry.name.into(),
                kind: entry.kind.into(),
                namespaced: entry.namespaced,
            },
            verbs: entry.verbs,
        };
        // A name with a slash is a subresource.
        let entries = document.resources.into_iter().filter(|entry| !entry.name.contains('/'));
        Ok(entries.map(resource).collect())
    }
}
