//! The built-in functions except `and` and `or`, which do not evaluate all of their arguments.

use std::{borrow::Cow, cmp::Ordering};

use crate::{compare, error::Message, escape, format, value::Val};

type Outcome<'a> = Result<Val<'a>, Message>;

/// The function that executes a defined template and returns its output, in sets with snippets.
pub(crate) const INCLUDE: &str = "include";

/// The number of a function's arguments.
pub(crate) struct Arity {
    pub(crate) least: usize,
    pub(crate) variadic: bool,
    /// `true` if the first argument must be a string.
    pub(crate) wants_string: bool,
}

pub(crate) fn arity(name: &str) -> Option<Arity> {
    let (least, variadic) = match name {
        "and" | "or" | "eq" | "index" | "slice" | "call" | "printf" => (1, true),
        "html" | "js" | "urlquery" | "print" | "println" => (0, true),
        "not" | "len" => (1, false),
        "ne" | "lt" | "le" | "gt" | "ge" => (2, false),
        _ => return None,
    };
    Some(Arity { least, variadic, wants_string: name == "printf" })
}

pub(crate) fn is_builtin(name: &str) -> bool {
    arity(name).is_some()
}

/// Calls a built-in function with the right number of arguments. `limit` bounds its text, and `first` is the text of
/// the first argument in the template.
pub(crate) fn call<'a>(name: &str, args: &[Val<'a>], limit: usize, first: &str) -> Outcome<'a> {
    let before = |orders: &[Ordering]| {
        let order = compare::order(&args[0], &args[1])?;
        Ok(Val::Bool(order.is_some_and(|order| orders.contains(&order))))
    };
    let negated = |orders: &[Ordering]| {
        let order = compare::order(&args[0], &args[1])?;
        Ok(Val::Bool(!order.is_some_and(|order| orders.contains(&order))))
    };
    match name {
        "not" => Ok(Val::Bool(!args[0].truth())),
        "eq" => compare::eq(args).map(Val::Bool),
        "ne" => compare::eq(args).map(|equal| Val::Bool(!equal)),
        "lt" => before(&[Ordering::Less]),
        "le" => before(&[Ordering::Less, Ordering::Equal]),
        // Go defines these as negations, which matters only for NaN.
        "gt" => negated(&[Ordering::Less, Ordering::Equal]),
        "ge" => negated(&[Ordering::Less]),
        "len" => len(&args[0]),
        "index" => index(args),
        "slice" => slice(args),
        "print" => bounded(args, limit, format::sprint),
        "println" => bounded(args, limit, format::sprintln),
        "printf" => match &args[0] {
            Val::Text(text) => {
                check(&args[1..], limit)?;
                Ok(Val::text(format::sprintf(text, &args[1..], limit)))
            }
            other => {
                Err(format!("wrong type for value; expected string; got {}", other.type_name())
                    .into())
            }
        },
        "html" => Ok(Val::text(escape::html(&escapable_text(args, limit)?))),
        "js" => Ok(Val::text(escape::js(&escapable_text(args, limit)?))),
        "urlquery" => Ok(Val::text(escape::urlquery(&escapable_text(args, limit)?))),
        "call" => match &args[0] {
            value if value.is_nothing() => Err("call of nil".into()),
            value => Err(format!("non-function {first} of type {}", value.type_name()).into()),
        },
        _ => Err(format!("{name} is not a function").into()),
    }
}

/// Rejects arguments whose total length exceeds the limit of a text.
fn check(args: &[Val<'_>], limit: usize) -> Result<(), Message> {
    let bytes: usize = args.iter().map(|a| if let Val::Text(t) = a { t.len() } else { 0 }).sum();
    if bytes > limit { Err(format!("text longer than {limit} bytes").into()) } else { Ok(()) }
}

fn bounded<'a>(args: &[Val<'a>], limit: usize, make: fn(&[Val<'_>]) -> String) -> Outcome<'a> {
    check(args, limit)?;
    Ok(Val::text(make(args)))
}

/// Returns the text to escape: a single string unchanged, other arguments as by `print`.
fn escapable_text<'v>(args: &'v [Val<'_>], limit: usize) -> Result<Cow<'v, str>, Message> {
    check(args, limit)?;
    if let [Val::Text(text)] = args {
        return Ok(Cow::Borrowed(text));
    }
    let shown: Vec<Val<'_>> = args
        .iter()
        .map(|arg| if arg.is_nothing() { Val::text("<no value>") } else { arg.clone() })
        .collect();
    Ok(Cow::Owned(format::sprint(&shown)))
}

fn count(len: usize) -> Val<'static> {
    Val::Int(i64::try_from(len).unwrap_or(i64::MAX))
}

fn len<'a>(value: &Val<'a>) -> Outcome<'a> {
    match value {
        Val::Text(text) => Ok(count(text.len())),
        Val::List(items) => Ok(count(items.len())),
        Val::Map(map) => Ok(count(map.len())),
        Val::Nil => Err("len of nil pointer".into()),
        Val::Missing => Err("reflect: call of reflect.Value.Type on zero Value".into()),
        other => Err(format!("len of type {}", other.type_name()).into()),
    }
}

/// Parses an index into a list of length `len`, or the position after its last item.
fn position(index: &Val<'_>, len: usize) -> Result<usize, Message> {
    let number = match index {
        Val::Int(number) => *number,
        value if value.is_nothing() => return Err("cannot index slice/array with nil".into()),
        other => {
            return Err(format!("cannot index slice/array with type {}", other.type_name()).into());
        }
    };
    match usize::try_from(number) {
        Ok(at) if at <= len => Ok(at),
        _ => Err(format!("index out of range: {number}").into()),
    }
}

fn index<'a>(args: &[Val<'a>]) -> Outcome<'a> {
    let mut item = args[0].clone();
    if item.is_nothing() {
        return Err("index of untyped nil".into());
    }
    for key in &args[1..] {
        item = match &item {
            Val::List(items) => match items.get(position(key, items.len())?) {
                Some(item) => Val::from(item),
                None => return Err("reflect: slice index out of range".into()),
            },
            Val::Text(text) => match text.as_bytes().get(position(key, text.len())?) {
                Some(byte) => Val::Int((*byte).into()),
                None => return Err("reflect: string index out of range".into()),
            },
            Val::Map(map) => match key {
                // An absent key gives the zero value of the map's elements.
                Val::Text(key) => map.get(key.as_ref()).map_or(Val::Nil, Val::from),
                key if key.is_nothing() => {
                    return Err("value is nil; should be of type string".into());
                }
                key => {
                    return Err(
                        format!("value has type {}; should be string", key.type_name()).into()
                    );
                }
            },
            Val::Missing | Val::Nil => return Err("index of nil pointer".into()),
            other => return Err(format!("can't index item of type {}", other.type_name()).into()),
        };
    }
    Ok(item)
}

fn slice<'a>(args: &[Val<'a>]) -> Outcome<'a> {
    let (item, indexes) = (&args[0], &args[1..]);
    if item.is_nothing() {
        return Err("slice of untyped nil".into());
    }
    if indexes.len() > 3 {
        return Err(format!("too many slice indexes: {}", indexes.len()).into());
    }
    let len = match item {
        Val::Text(_) if indexes.len() == 3 => return Err("cannot 3-index slice a string".into()),
        Val::Text(text) => text.len(),
        Val::List(items) => items.len(),
        other => return Err(format!("can't slice item of type {}", other.type_name()).into()),
    };
    let mut bounds = [0, len, len];
    for (i, index) in indexes.iter().enumerate() {
        bounds[i] = position(index, len)?;
    }
    let [from, to, most] = bounds;
    if from > to {
        return Err(format!("invalid slice index: {from} > {to}").into());
    }
    if to > most {
        return Err(format!("invalid slice index: {to} > {most}").into());
    }
    Ok(match item {
        Val::List(items) => Val::List(&items[from..to]),
        Val::Text(text) => Val::text(String::from_utf8_lossy(&text.as_bytes()[from..to])),
        // Only these types have a length.
        other => other.clone(),
    })
}
