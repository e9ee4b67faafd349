//! Service accounts.

use api_meta::{ObjectMeta, exact_list};
use serde::Deserialize;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ServiceAccount {
    pub(crate) metadata: ObjectMeta,
    #[serde(deserialize_with = "exact_list")]
    pub(crate) secrets: Vec<SecretReference>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct SecretReference {
    pub(crate) name: String,
}

impl ServiceAccount {
    /// Reports whether the account lists a Secret, as it does for the token that a former release made for it.
    pub(crate) fn lists(&self, secret: &str) -> bool {
        self.secrets.iter().any(|reference| reference.name == secret)
    }
}
