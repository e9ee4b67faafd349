//! The vocabulary that every part of the API shares: groups and kinds, names, quantities, selectors, field errors,
//! times and the `Status` that the API answers failures with.
//!
//! Invariant: the crate is pure. It reads no clock and draws no random number; both come in as arguments. What it
//! prints is what upstream prints, since people and programs match on these words.

pub mod field;
mod field_selector;
mod gvk;
mod int_or_string;
mod label_selector;
pub mod names;
mod quantity;
mod quote;
mod selector;
mod status;
mod time;
pub mod validation;

pub use field::{ErrorList, ErrorType, FieldError, Path};
pub use field_selector::{FieldSelector, FieldSelectorError, FieldTerm};
pub use gvk::{
    GroupKind, GroupResource, GroupVersion, GroupVersionKind, GroupVersionResource,
    ParseGroupVersionError,
};
pub use int_or_string::{IntOrString, PercentError};
pub use label_selector::{LabelSelector, LabelSelectorRequirement};
pub use quantity::{ParseQuantityError, Quantity, QuantityFormat};
pub use quote::go_quote;
pub use selector::{Operator, Requirement, Selector, SelectorError};
pub use status::{ListMeta, Status, StatusCause, StatusDetails, StatusReason};
pub use time::{ParseTimeError, Timestamp, human_duration};
