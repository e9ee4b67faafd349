//! The costs of basic operations.

/// The cost per unit of length of traversing a string.
pub(crate) const TRAVERSAL: f64 = 0.1;
/// The cost per unit of length of a regular expression.
pub(crate) const REGEX: f64 = 0.25;
/// The cost of creating a list.
pub(crate) const LIST: u64 = 10;
/// The cost of creating a map.
pub(crate) const MAP: u64 = 30;
/// The cost of creating an object.
pub(crate) const STRUCT: u64 = 40;
/// The cost of an authorization check, which allows two checks per expression.
pub(crate) const CHECK: u64 = 350_000;

pub(crate) fn scaled(size: u64, by: f64) -> u64 {
    // The cast saturates for values over the maximum.
    (size as f64 * by).ceil() as u64
}
