//! The vocabulary that all parts of the API share: groups and kinds, names, quantities, selectors, field errors, times,
//! CIDRs, the API's `Status`, and the interfaces of authorizers and admission plugins.
//!
//! Read [`Status`], [`FieldError`] and [`Tree`] first. This crate contains no kinds; their schemas are in `api-schema`.
//!
//! Invariants: the crate is pure. It reads no clock and draws no random numbers; callers pass both as arguments. Its
//! messages are upstream's, because people and programs match on them.

mod address;
mod attributes;
pub mod budget;
pub mod cidr;
mod duration;
pub mod field;
mod field_selector;
#[cfg(test)]
mod fuzzed;
pub mod goregex;
mod gvk;
mod int_or_string;
mod label_selector;
pub mod names;
mod object_meta;
mod objects;
mod percent;
mod quantity;
mod quote;
mod selector;
mod status;
pub mod steps;
mod time;
mod token_bucket;
mod tree;
pub mod user;
pub mod validation;
mod warnings;
mod zone;

pub use address::{SpecialAddress, special};
pub use attributes::{Attributes, Authorizer, Decision, Reason};
pub use budget::{Budget, BudgetExceeded, JsonError};
pub use cidr::{Cidr, CidrError, Family};
pub use duration::{GoDuration, ParseDurationError};
pub use field::{ErrorList, ErrorType, FieldError, Path, aggregate};
pub use field_selector::{FieldSelector, FieldSelectorError, FieldTerm};
pub use gvk::{
    GroupKind, GroupResource, GroupVersion, GroupVersionKind, GroupVersionResource,
    ParseGroupVersionError,
};
pub use int_or_string::{IntOrString, PercentError};
pub use label_selector::{LabelSelector, LabelSelectorRequirement, values_error};
pub use object_meta::{
    ObjectKey, ObjectMeta, OwnerReference, PartialObject, exact_list, null_default,
};
pub use objects::{Changed, Objects, Observer, garbage_collection_only};
pub use percent::{percent_decode, percent_encode, query_decode};
pub use quantity::{ParseQuantityError, Quantity, QuantityFormat};
pub use quote::{go_bool, go_escape, go_quote};
pub use selector::{Operator, Requirement, Selector, SelectorError};
pub use status::{ListMeta, Status, StatusCause, StatusDetails, StatusReason};
pub use time::{ParseTimeError, Timestamp, human_duration};
pub use token_bucket::TokenBucket;
pub use tree::{Tree, TreePath, is_zero};
pub use user::UserInfo;
pub use warnings::Warnings;
pub use zone::Zone;
