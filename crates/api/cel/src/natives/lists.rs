//! List functions: Kubernetes' library, the lists extension, and sets.

use std::cmp::Ordering;

use super::operators;
use crate::{
    cost::{charges, estimates},
    error::EvalError,
    function::{Function, Library},
    value::{
        Eval, List, Value, Work,
        compare::{compare, equal},
    },
};

/// The list functions of Kubernetes.
pub(super) static KUBERNETES: Library = Library::since(
    0,
    &[
        Function::new("isSorted", "list(scalar)#() bool; list(text)#() bool", is_sorted)
            .costs(charges::walk, estimates::walk),
        Function::new("sum", "list(int)#() int; list(uint)#() uint; list(double)#() double", sum)
            .costs(charges::walk, estimates::walk),
        Function::new("sum", "list(duration)#() duration", sum_of_durations)
            .costs(charges::walk, estimates::walk),
        Function::new("max", "list(scalar)#() scalar; list(text)#() text", |work, args| {
            extreme(work, args, Ordering::Greater, "max")
        })
        .costs(charges::walk, estimates::walk),
        Function::new("min", "list(scalar)#() scalar; list(text)#() text", |work, args| {
            extreme(work, args, Ordering::Less, "min")
        })
        .costs(charges::walk, estimates::walk),
    ],
);

/// The sets extension.
pub(super) static SETS: Library = Library::since(
    29,
    &[
        Function::new("sets.contains", "(list(A), list(A)) bool", |work, args| {
            Ok(Value::Bool(contains(work, args[0].as_list()?, args[1].as_list()?)?))
        })
        .costs(charges::compare_items, estimates::compare_items),
        Function::new("sets.equivalent", "(list(A), list(A)) bool", |work, args| {
            let (a, b) = (args[0].as_list()?, args[1].as_list()?);
            Ok(Value::Bool(contains(work, a, b)? && contains(work, b, a)?))
        })
        .costs(charges::compare_items_twice, estimates::compare_items_twice),
        Function::new("sets.intersects", "(list(A), list(A)) bool", intersects)
            .costs(charges::compare_items, estimates::compare_items),
    ],
);

/// The lists extension.
pub(super) static EXTENSION: Library = Library::since(
    34,
    &[
        Function::new("slice", "list(A)#(int, int) list(A)", slice)
            .costs(charges::slice, estimates::slice),
        Function::new("flatten", "list(list(A))#() list(A)", flatten)
            .costs(charges::copy_list, estimates::copy_list),
        Function::new("flatten", "list(dyn)#(int) list(dyn)", flatten)
            .costs(charges::flatten, estimates::flatten),
        Function::new("lists.range", "(int) list(int)", range)
            .costs(charges::range, estimates::range),
        Function::new("reverse", "list(A)#() list(A)", reverse)
            .costs(charges::copy_list, estimates::copy_list),
        Function::new("distinct", "list(A)#() list(A)", distinct)
            .costs(charges::sort, estimates::sort),
        Function::new("sort", "list(scalar)#() list(scalar)", sort)
            .overload_costs(charges::sort, estimates::sort),
        Function::new("sort", "list(text)#() list(text)", sort)
            .overload_costs(charges::sort, estimates::sort_texts),
        Function::new(
            "@sortByAssociatedKeys",
            "list(A)#(list(scalar)) list(A); list(A)#(list(text)) list(A)",
            sort_by_keys,
        )
        .costs(charges::sort_by_keys, estimates::one),
    ],
);

fn sort<'a>(work: &mut Work, args: &[Value<'a>]) -> Eval<'a> {
    sort_items(work, args[0].as_list()?, args[0].as_list()?)
}

/// Sorts the first list by the keys in the second one.
pub(crate) fn sort_by_keys<'a>(work: &mut Work, args: &[Value<'a>]) -> Eval<'a> {
    sort_items(work, args[0].as_list()?, args[1].as_list()?)
}

fn is_sorted<'a>(work: &mut Work, args: &[Value<'a>]) -> Eval<'a> {
    let list = args[0].as_list()?;
    work.spend(list.len() as u64)?;
    let mut before: Option<Value<'a>> = None;
    for item in list.iter() {
        let item = item?;
        if let Some(before) = &before
            && compare(before, &item)? == Some(Ordering::Greater)
        {
            return Ok(Value::Bool(false));
        }
        before = Some(item);
    }
    Ok(Value::Bool(true))
}

/// Sums durations. The sum of an empty list is zero.
fn sum_of_durations<'a>(work: &mut Work, args: &[Value<'a>]) -> Eval<'a> {
    if args[0].as_list()?.is_empty() { Ok(Value::Duration(0)) } else { sum(work, args) }
}

fn sum<'a>(work: &mut Work, args: &[Value<'a>]) -> Eval<'a> {
    let list = args[0].as_list()?;
    work.spend(list.len() as u64)?;
    let mut total: Option<Value<'a>> = None;
    for item in list.iter() {
        let item = item?;
        total = Some(match total {
            None => item,
            Some(total) => operators::add(work, &[total, item])?,
        });
    }
    // Zero equals zero of any numeric type.
    Ok(total.unwrap_or(Value::Int(0)))
}

fn extreme<'a>(work: &mut Work, args: &[Value<'a>], order: Ordering, name: &str) -> Eval<'a> {
    let list = args[0].as_list()?;
    work.spend(list.len() as u64)?;
    let mut best: Option<Value<'a>> = None;
    for item in list.iter() {
        let item = item?;
        let better = match &best {
            None => true,
            Some(best) => compare(&item, best)? == Some(order),
        };
        if better {
            best = Some(item);
        }
    }
    best.ok_or_else(|| EvalError::Failed(format!("{name} called on empty list")))
}

pub(super) fn index_of<'a>(work: &mut Work, list: &List<'a>, value: &Value<'a>) -> Eval<'a> {
    for (at, item) in list.iter().enumerate() {
        if equal(&item?, value, work)? {
            return Ok(Value::Int(at as i64));
        }
    }
    Ok(Value::Int(-1))
}

pub(super) fn last_index_of<'a>(work: &mut Work, list: &List<'a>, value: &Value<'a>) -> Eval<'a> {
    for at in (0..list.len()).rev() {
        if equal(&list.get(at)?, value, work)? {
            return Ok(Value::Int(at as i64));
        }
    }
    Ok(Value::Int(-1))
}

fn slice<'a>(work: &mut Work, args: &[Value<'a>]) -> Eval<'a> {
    let list = args[0].as_list()?;
    let (start, end, length) = (args[1].as_int()?, args[2].as_int()?, list.len());
    let failed =
        |problem: &str| Err(EvalError::Failed(format!("cannot slice({start}, {end}), {problem}")));
    let (Ok(from), Ok(to)) = (usize::try_from(start), usize::try_from(end)) else {
        return failed("negative indexes not supported");
    };
    if from > to {
        return failed("start index must be less than or equal to end index");
    }
    if to > length {
        return failed(&format!("list is length {length}"));
    }
    work.spend((to - from) as u64)?;
    Ok(Value::list((from..to).map(|at| list.get(at)).collect::<Result<_, _>>()?))
}

fn flatten<'a>(work: &mut Work, args: &[Value<'a>]) -> Eval<'a> {
    let depth = args.get(1).map_or(Ok(1), Value::as_int)?;
    if depth < 0 {
        return Err(EvalError::new("level must be non-negative"));
    }
    let mut out = Vec::new();
    flatten_into(work, args[0].as_list()?, depth, &mut out)?;
    Ok(Value::list(out))
}

fn flatten_into<'a>(
    work: &mut Work,
    list: &List<'a>,
    depth: i64,
    out: &mut Vec<Value<'a>>,
) -> Result<(), EvalError> {
    for item in list.iter() {
        work.spend(1)?;
        match item? {
            Value::List(inner) if depth > 0 => flatten_into(work, &inner, depth - 1, out)?,
            other => out.push(other),
        }
    }
    Ok(())
}

fn range<'a>(work: &mut Work, args: &[Value<'a>]) -> Eval<'a> {
    let end = args[0].as_int()?.max(0);
    work.spend(end.unsigned_abs())?;
    Ok(Value::list((0..end).map(Value::Int).collect()))
}

fn reverse<'a>(work: &mut Work, args: &[Value<'a>]) -> Eval<'a> {
    let list = args[0].as_list()?;
    work.spend(list.len() as u64)?;
    Ok(Value::list((0..list.len()).rev().map(|at| list.get(at)).collect::<Result<_, _>>()?))
}

fn distinct<'a>(work: &mut Work, args: &[Value<'a>]) -> Eval<'a> {
    let mut unique: Vec<Value<'a>> = Vec::new();
    'items: for item in args[0].as_list()?.iter() {
        let item = item?;
        for other in &unique {
            if equal(&item, other, work)? {
                continue 'items;
            }
        }
        unique.push(item);
    }
    Ok(Value::list(unique))
}

/// Sorts the items by their keys. The sort is stable.
fn sort_items<'a>(work: &mut Work, list: &List<'a>, keys: &List<'a>) -> Eval<'a> {
    let (length, found) = (list.len(), keys.len());
    if length != found {
        return Err(EvalError::Failed(format!(
            "@sortByAssociatedKeys() expected a list of the same size as the associated keys list, \
            but got {length} and {found} elements respectively"
        )));
    }
    let levels = length.checked_ilog2().map_or(0, |log| u64::from(log) + 1);
    work.spend((length as u64).saturating_mul(levels))?;
    let mut items: Vec<(Value<'a>, Value<'a>)> = keys
        .iter()
        .zip(list.iter())
        .map(|(key, item)| Ok((key?, item?)))
        .collect::<Result<_, EvalError>>()?;
    if let Some((first, _)) = items.first() {
        compare(first, first).map_err(|_| EvalError::new("list elements must be comparable"))?;
        let ty = first.type_of();
        if items.iter().any(|(key, _)| key.type_of() != ty) {
            return Err(EvalError::new("list elements must have the same type"));
        }
    }
    items.sort_by(|(a, _), (b, _)| compare(a, b).ok().flatten().unwrap_or(Ordering::Equal));
    Ok(Value::list(items.into_iter().map(|(_, item)| item).collect()))
}

/// Reports whether the list contains all items of `other`.
fn contains<'a>(work: &mut Work, list: &List<'a>, other: &List<'a>) -> Result<bool, EvalError> {
    for item in other.iter() {
        if !list.contains(&item?, work)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn intersects<'a>(work: &mut Work, args: &[Value<'a>]) -> Eval<'a> {
    let (a, b) = (args[0].as_list()?, args[1].as_list()?);
    for item in a.iter() {
        if b.contains(&item?, work)? {
            return Ok(Value::Bool(true));
        }
    }
    Ok(Value::Bool(false))
}
