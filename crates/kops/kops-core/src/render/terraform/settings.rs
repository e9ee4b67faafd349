//! The settings of a configuration.

use std::collections::BTreeMap;

/// The file with the resources.
pub(super) const MAIN: &str = "kubernetes.tf";

/// The settings of the configuration besides the resources.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The cluster's name.
    pub cluster: String,
    /// The user's arguments for the provider.
    pub provider: BTreeMap<String, String>,
    /// The user's arguments for the provider that writes the state store.
    pub files_provider: BTreeMap<String, String>,
    /// The region of the state store's bucket in S3.
    pub files_region: String,
}
