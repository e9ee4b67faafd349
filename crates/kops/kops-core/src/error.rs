//! The errors of creating and completing specs.

use api_meta::CidrError;

/// An error of creating or completing a spec.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A field or option with an invalid value.
    #[error("{field}: {value:?} {reason}")]
    Value { field: String, value: String, reason: String },
    /// A field that is not an address range.
    #[error("{field}: {cause}")]
    Cidr { field: String, cause: CidrError },
    /// A field or option that is not set.
    #[error("{field} is required{hint}")]
    Missing { field: String, hint: &'static str },
    /// A feature that is not supported.
    #[error("{what} is not supported: {remedy}")]
    Unsupported { what: String, remedy: &'static str },
    /// A reference to an object that does not exist.
    #[error("{what} {name:?} does not exist; {remedy}")]
    Unknown { what: &'static str, name: String, remedy: &'static str },
    /// A range without a free part.
    #[error("no part of {within} is left for {what}: give it a range, or widen spec.networkCIDR")]
    Full { within: String, what: String },
    /// A spec that the builders change in every round.
    #[error("the spec does not settle: after {0} rounds of defaults it still changes")]
    Unsettled(usize),
    /// An object that cannot be parsed or is invalid.
    #[error(transparent)]
    Object(#[from] kops_api::Error),
}

impl Error {
    /// Returns the error for an invalid value.
    pub(crate) fn value(field: &str, value: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Value { field: field.to_owned(), value: value.into(), reason: reason.into() }
    }
}
