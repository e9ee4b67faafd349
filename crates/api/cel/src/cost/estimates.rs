//! The estimated costs of calls, and the estimated sizes of their results, for operands of known sizes.
//!
//! The numbers are upstream's, with all peculiarities.

use super::{
    range::Cost,
    units::{CHECK, LIST, REGEX, STRUCT, TRAVERSAL},
};
use crate::types::Type;

/// An operand of a call. The first operand of a method is its receiver.
pub(crate) struct Operand<'e> {
    pub(crate) ty: &'e Type,
    /// The size, if it is known or bounded.
    pub(crate) size: Option<Cost>,
    /// The size of a list's items according to the list's schema.
    pub(crate) item: Cost,
    /// The value of an integer literal.
    pub(crate) int: Option<i64>,
}

/// The estimate of a call: its cost without the operands, and the size of the result, if the function determines it.
pub(crate) struct CallCost {
    pub(crate) cost: Cost,
    pub(crate) size: Option<Cost>,
}

impl From<Cost> for CallCost {
    fn from(cost: Cost) -> Self {
        Self { cost, size: None }
    }
}

/// A function that estimates a call with these operands.
pub(crate) type Estimate = fn(&[Operand<'_>]) -> CallCost;

fn size(operands: &[Operand<'_>], at: usize) -> Cost {
    operands.get(at).and_then(|operand| operand.size).unwrap_or(Cost::UNKNOWN)
}

fn traversal(operands: &[Operand<'_>], at: usize) -> Cost {
    size(operands, at).scaled(TRAVERSAL)
}

/// Returns the value of an integer literal. Negative numbers count as zero.
fn int(operands: &[Operand<'_>], at: usize, otherwise: u64) -> u64 {
    match operands.get(at).and_then(|operand| operand.int) {
        Some(value) => u64::try_from(value).unwrap_or(0),
        None => otherwise,
    }
}

pub(crate) fn one(_: &[Operand<'_>]) -> CallCost {
    Cost::ONE.into()
}

/// Estimates a function that reads its first operand.
pub(crate) fn read(operands: &[Operand<'_>]) -> CallCost {
    traversal(operands, 0).into()
}

/// Estimates a function that reads its second operand.
pub(crate) fn read_second(operands: &[Operand<'_>]) -> CallCost {
    traversal(operands, 1).into()
}

/// Estimates a function that reads its first operand twice.
pub(crate) fn read_twice(operands: &[Operand<'_>]) -> CallCost {
    size(operands, 0).scaled(2.0 * TRAVERSAL).into()
}

/// Estimates a function whose result is as long as its first operand.
pub(crate) fn copy(operands: &[Operand<'_>]) -> CallCost {
    CallCost { cost: traversal(operands, 0), size: Some(size(operands, 0)) }
}

pub(crate) fn authorization(_: &[Operand<'_>]) -> CallCost {
    Cost::exactly(CHECK).into()
}

/// Estimates the parsing of a selector in the second operand.
pub(crate) fn selector(operands: &[Operand<'_>]) -> CallCost {
    let requirements = size(operands, 1).scaled(0.5).scaled((LIST + STRUCT) as f64);
    Cost::exactly(LIST).add(traversal(operands, 1)).add(requirements).into()
}

/// Estimates the traversal of a list, including its string items, or of a string.
pub(crate) fn walk(operands: &[Operand<'_>]) -> CallCost {
    let size = size(operands, 0);
    let Some(target) = operands.first() else { return Cost::UNKNOWN.into() };
    match target.ty {
        Type::List(of) if matches!(**of, Type::String | Type::Bytes) => {
            size.times(Cost::ONE.add(target.item.scaled(TRAVERSAL))).into()
        }
        Type::List(_) => size.into(),
        _ => size.scaled(TRAVERSAL).into(),
    }
}

pub(crate) fn replace(operands: &[Operand<'_>]) -> CallCost {
    let length = replaced_size(size(operands, 0), size(operands, 1), size(operands, 2));
    CallCost { size: Some(length), ..read_twice(operands) }
}

/// Returns the length of a string after replacements.
fn replaced_size(text: Cost, from: Cost, to: Cost) -> Cost {
    let count = |text: u64, from: u64| (text as f64 / from as f64).ceil() as u64;
    let (most, rest_max) = match from.min {
        // An empty string matches around each character.
        0 => (text.max.saturating_add(1), text.max),
        least if to.max <= least => (0, text.max),
        least => (count(text.max, least), 0),
    };
    let (fewest, rest_min) = match from.max {
        0 => (text.min.saturating_add(1), text.min),
        longest if longest <= to.min => (0, text.min),
        longest => (count(text.min, longest), 0),
    };
    let count = Cost { min: fewest, max: most };
    count.times(to).add(Cost { min: rest_min, max: rest_max })
}

pub(crate) fn split(operands: &[Operand<'_>]) -> CallCost {
    let most = match operands.get(2).and_then(|operand| operand.int) {
        // A negative number means all, and so does its wrapped value.
        Some(most) => most as u64,
        None => size(operands, 0).max,
    };
    CallCost { size: Some(Cost { min: 0, max: most }), ..read_twice(operands) }
}

pub(crate) fn join(operands: &[Operand<'_>]) -> CallCost {
    let length = size(operands, 0);
    let mut size = length.times(operands.first().map_or(Cost::UNKNOWN, |list| list.item));
    if let Some(separator) = operands.get(1) {
        let between = Cost { min: length.min.saturating_sub(1), max: length.max.saturating_sub(1) };
        size = size.add(separator.size.unwrap_or(Cost::UNKNOWN).times(between));
    }
    CallCost { cost: size.scaled(TRAVERSAL), size: Some(size) }
}

/// Estimates a search for a regular expression, which is proportional to the sizes of text and pattern.
pub(crate) fn matches(operands: &[Operand<'_>]) -> CallCost {
    let text = size(operands, 0).add(Cost::ONE).scaled(TRAVERSAL);
    text.times(size(operands, 1).scaled(REGEX)).into()
}

/// Estimates a search for a regular expression that returns parts of the text.
pub(crate) fn find(operands: &[Operand<'_>]) -> CallCost {
    let size = Cost { min: 0, max: size(operands, 0).max };
    CallCost { size: Some(size), ..matches(operands) }
}

/// Estimates a search for the second operand in the first one.
pub(crate) fn contains_text(operands: &[Operand<'_>]) -> CallCost {
    traversal(operands, 0).times(traversal(operands, 1)).into()
}

/// Estimates a named format, as a regular expression of an unknown format.
pub(crate) fn validate(operands: &[Operand<'_>]) -> CallCost {
    traversal(operands, 1).scaled(128.0 * REGEX).into()
}

/// The size of an IP address, which has 4 or 16 bytes.
const ADDRESS: Cost = Cost { min: 4, max: 16 };

/// Estimates an operation on a CIDR and an IP address.
pub(crate) fn contains_ip(_: &[Operand<'_>]) -> CallCost {
    ADDRESS.add(ADDRESS).scaled(TRAVERSAL).into()
}

/// Estimates an operation on a CIDR and the text of an IP address.
pub(crate) fn contains_ip_text(operands: &[Operand<'_>]) -> CallCost {
    contains_ip(operands).cost.add(traversal(operands, 1)).into()
}

/// Estimates an operation on two CIDRs.
pub(crate) fn contains_cidr(operands: &[Operand<'_>]) -> CallCost {
    contains_ip(operands).cost.add(ADDRESS.scaled(TRAVERSAL)).add(Cost::ONE).into()
}

/// Estimates an operation on a CIDR and the text of a CIDR.
pub(crate) fn contains_cidr_text(operands: &[Operand<'_>]) -> CallCost {
    contains_cidr(operands).cost.add(traversal(operands, 1)).into()
}

pub(crate) fn string_to_bytes(operands: &[Operand<'_>]) -> CallCost {
    let text = size(operands, 0);
    let size = Cost { min: text.min, max: text.max.saturating_mul(4) };
    CallCost { cost: text.scaled(TRAVERSAL), size: Some(size) }
}

pub(crate) fn bytes_to_string(operands: &[Operand<'_>]) -> CallCost {
    let bytes = size(operands, 0);
    let size = Cost { min: bytes.min / 4, max: bytes.max };
    CallCost { cost: bytes.scaled(TRAVERSAL), size: Some(size) }
}

pub(crate) fn quote(operands: &[Operand<'_>]) -> CallCost {
    let text = size(operands, 0);
    let most = text.max.saturating_mul(2).saturating_add(2);
    let size = Cost { min: text.min.saturating_add(2), max: most };
    CallCost { cost: text.scaled(TRAVERSAL), size: Some(size) }
}

pub(crate) fn concatenate_lists(operands: &[Operand<'_>]) -> CallCost {
    CallCost { cost: Cost::ONE, size: Some(size(operands, 0).add(size(operands, 1))) }
}

pub(crate) fn concatenate_texts(operands: &[Operand<'_>]) -> CallCost {
    let total = size(operands, 0).add(size(operands, 1));
    CallCost { cost: total.scaled(TRAVERSAL), size: Some(total) }
}

/// Estimates a comparison, which stops at the end of the shorter operand.
pub(crate) fn compare(operands: &[Operand<'_>]) -> CallCost {
    let most = size(operands, 0).max.min(size(operands, 1).max);
    Cost { min: u64::from(most > 0), max: most }.scaled(TRAVERSAL).into()
}

/// Estimates `==`, where opaque values have a size of their own.
pub(crate) fn equal(operands: &[Operand<'_>]) -> CallCost {
    let [Operand { ty: Type::Opaque(a), .. }, Operand { ty: Type::Opaque(b), size, .. }] = operands
    else {
        return compare(operands);
    };
    let longest = match *a {
        _ if a != b => return compare(operands),
        "kubernetes.NamedFormat" => 64,
        "kubernetes.URL" => size.unwrap_or(Cost::ONE).max,
        _ => return one(operands),
    };
    Cost { min: 1, max: longest }.scaled(TRAVERSAL).into()
}

/// Estimates `in` for a list in the second operand.
pub(crate) fn contains_item(operands: &[Operand<'_>]) -> CallCost {
    size(operands, 1).into()
}

/// Estimates the comparison of each item of a list with each item of another list.
pub(crate) fn compare_items(operands: &[Operand<'_>]) -> CallCost {
    size(operands, 0).times(size(operands, 1)).add(Cost::ONE).into()
}

/// Estimates the comparison of the items of two lists in both directions.
pub(crate) fn compare_items_twice(operands: &[Operand<'_>]) -> CallCost {
    size(operands, 0).times(size(operands, 1)).scaled(2.0).add(Cost::ONE).into()
}

fn allocate(factor: f64, size: Cost) -> CallCost {
    CallCost { cost: size.scaled(factor).add(Cost::exactly(1 + LIST)), size: Some(size) }
}

/// Estimates a function that returns a list with the items of its first operand.
pub(crate) fn copy_list(operands: &[Operand<'_>]) -> CallCost {
    allocate(1.0, size(operands, 0))
}

pub(crate) fn slice(operands: &[Operand<'_>]) -> CallCost {
    let end = int(operands, 2, size(operands, 0).max);
    allocate(1.0, Cost::exactly(end.wrapping_sub(int(operands, 1, 0))))
}

pub(crate) fn range(operands: &[Operand<'_>]) -> CallCost {
    allocate(1.0, Cost::exactly(int(operands, 0, u64::MAX)))
}

pub(crate) fn flatten(operands: &[Operand<'_>]) -> CallCost {
    allocate(int(operands, 1, u64::MAX) as f64, size(operands, 0))
}

/// Estimates the comparison of each item of a list with each other item.
pub(crate) fn sort(operands: &[Operand<'_>]) -> CallCost {
    allocate(2.0, size(operands, 0).times(size(operands, 0)))
}

/// Estimates the comparison of each string of a list with each other string.
pub(crate) fn sort_texts(operands: &[Operand<'_>]) -> CallCost {
    allocate(2.0 + TRAVERSAL, size(operands, 0).times(size(operands, 0)))
}
