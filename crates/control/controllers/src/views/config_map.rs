//! ConfigMaps.

use api_meta::{ObjectMeta, null_default};
use serde::Deserialize;

use super::labels::Labels;

/// A ConfigMap with its data.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct ConfigMap {
    pub(crate) metadata: ObjectMeta,
    #[serde(default, deserialize_with = "null_default")]
    pub(crate) data: Labels,
}
