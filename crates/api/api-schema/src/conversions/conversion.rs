use serde_json::Value;

/// The conversion of a version that is not the storage version.
#[derive(Clone, Copy, Debug)]
pub struct Conversion {
    /// Converts an object of the version to the storage version.
    pub to_storage: fn(&mut Value),
    /// Converts an object of the storage version to the version.
    pub from_storage: fn(&mut Value),
    /// `true` if the rules of the kind describe the storage version.
    pub stored_rules: bool,
}
