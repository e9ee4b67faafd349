//! Reads the overloads of functions from the signatures in the tables of libraries.

use std::{collections::HashMap, sync::OnceLock};

use crate::{
    function::{Function, Library},
    natives::LIBRARIES,
    types::Type,
};

/// An overload of a function.
#[derive(Debug)]
pub(crate) struct Overload {
    pub(crate) function: &'static Function,
    pub(crate) library: &'static Library,
    /// `true` for a method. The first argument is the receiver.
    pub(crate) member: bool,
    pub(crate) args: Vec<Type>,
    pub(crate) result: Type,
}

/// The types that `scalar` stands for.
const SCALARS: [Type; 6] =
    [Type::Int, Type::Uint, Type::Double, Type::Bool, Type::Duration, Type::Timestamp];
/// The types that `text` stands for.
const TEXTS: [Type; 2] = [Type::String, Type::Bytes];

/// Returns all overloads of a function in all libraries.
pub(crate) fn find(name: &str) -> &'static [Overload] {
    static ALL: OnceLock<HashMap<&'static str, Vec<Overload>>> = OnceLock::new();
    let all = ALL.get_or_init(|| {
        let mut all: HashMap<&'static str, Vec<Overload>> = HashMap::new();
        for library in LIBRARIES {
            for function in library.functions {
                all.entry(function.name).or_default().extend(read_overloads(library, function));
            }
        }
        all
    });
    all.get(name).map_or(&[], Vec::as_slice)
}

fn read_overloads(library: &'static Library, function: &'static Function) -> Vec<Overload> {
    let mut overloads = Vec::new();
    for signature in function.signatures.split(';').map(str::trim) {
        let placeholders: &[Type] = match signature {
            _ if signature.contains("scalar") => &SCALARS,
            _ if signature.contains("text") => &TEXTS,
            _ => &[Type::Dyn],
        };
        let read = |placeholder| read_overload(library, function, signature, placeholder);
        overloads.extend(placeholders.iter().filter_map(read));
    }
    overloads
}

/// Reads a signature, where `scalar` and `text` stand for `placeholder`.
fn read_overload(
    library: &'static Library,
    function: &'static Function,
    signature: &'static str,
    placeholder: &Type,
) -> Option<Overload> {
    let (receiver, rest) = match signature.split_once('#') {
        Some((receiver, rest)) => (Some(receiver), rest),
        None => (None, signature),
    };
    let close = closing(rest)?;
    let read = |text| read_type(text, placeholder);
    let mut args: Vec<Type> = receiver.into_iter().map(read).collect();
    args.extend(split(&rest[1..close]).into_iter().map(read));
    let result = read(rest[close + 1..].trim());
    Some(Overload { function, library, member: receiver.is_some(), args, result })
}

/// Returns the position of the parenthesis that closes the one at the start.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0;
    text.char_indices().find_map(|(at, c)| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        (depth == 0).then_some(at)
    })
}

/// Splits at commas outside of parentheses.
fn split(text: &'static str) -> Vec<&'static str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, c) in text.char_indices() {
        depth += i32::from(c == '(') - i32::from(c == ')');
        if c == ',' && depth == 0 {
            parts.push(text[start..at].trim());
            start = at + 1;
        }
    }
    parts.push(text[start..].trim());
    parts.retain(|part| !part.is_empty());
    parts
}

fn read_type(text: &'static str, placeholder: &Type) -> Type {
    if let Some((name, rest)) = text.split_once('(') {
        let mut inner = split(rest.strip_suffix(')').unwrap_or(rest)).into_iter();
        let mut next = || inner.next().map_or(Type::Dyn, |text| read_type(text, placeholder));
        return match name {
            "list" => Type::list(next()),
            "optional" => Type::optional(next()),
            "type" => Type::type_of(next()),
            _ => {
                let key = next();
                Type::map(key, next())
            }
        };
    }
    match text {
        "A" => Type::Param(0),
        "B" => Type::Param(1),
        "scalar" | "text" => placeholder.clone(),
        _ => Type::from_name(text).unwrap_or(Type::Opaque(text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_all_signatures() {
        for library in LIBRARIES {
            for function in library.functions {
                let overloads = read_overloads(library, function);
                let signatures = function.signatures.split(';').count();
                assert!(overloads.len() >= signatures, "{}", function.name);
            }
        }
        let [query] = find("getQuery") else { panic!("one overload") };
        assert_eq!(query.result, Type::map(Type::String, Type::list(Type::String)));
        assert!(query.member && query.args == [Type::Opaque("kubernetes.URL")]);
    }
}
