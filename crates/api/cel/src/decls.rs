//! The declarations of functions of CEL and Kubernetes' libraries: overloads with upstream's names.
//!
//! A line of a table is `id: function(arguments) result`. A method has the receiver's type and `#` before its name.

use std::{collections::HashMap, sync::OnceLock};

use crate::types::Type;

/// An overload of a function.
#[derive(Debug)]
pub(crate) struct Overload {
    pub(crate) id: &'static str,
    pub(crate) name: &'static str,
    /// `true` for a method. The first argument is the receiver.
    pub(crate) member: bool,
    pub(crate) args: Vec<Type>,
    pub(crate) result: Type,
    pub(crate) library: Library,
}

/// The library of a function, by the minor version of Kubernetes that introduced it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Library {
    Since(u32),
    /// Available only in mutating policies.
    Mutation,
}

const TABLES: [(Library, &str); 14] = [
    (Library::Since(0), include_str!("decls/standard.txt")),
    (Library::Since(0), include_str!("decls/lists.txt")),
    (Library::Since(0), include_str!("decls/kubernetes.txt")),
    (Library::Since(27), include_str!("decls/authorizer.txt")),
    (Library::Since(28), include_str!("decls/quantity.txt")),
    (Library::Since(28), include_str!("decls/optionals.txt")),
    (Library::Since(29), include_str!("decls/sets.txt")),
    (Library::Since(0), include_str!("decls/strings.txt")),
    (Library::Since(30), include_str!("decls/network.txt")),
    (Library::Since(31), include_str!("decls/format.txt")),
    (Library::Since(31), include_str!("decls/authorizer_selectors.txt")),
    (Library::Since(33), include_str!("decls/semver.txt")),
    (Library::Since(34), include_str!("decls/lists_ext.txt")),
    (Library::Mutation, include_str!("decls/jsonpatch.txt")),
];

/// Returns all overloads of a function in all libraries.
pub(crate) fn overloads(name: &str) -> &'static [Overload] {
    all().get(name).map_or(&[], Vec::as_slice)
}

#[cfg(test)]
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    all().keys().copied()
}

fn all() -> &'static HashMap<&'static str, Vec<Overload>> {
    static ALL: OnceLock<HashMap<&'static str, Vec<Overload>>> = OnceLock::new();
    ALL.get_or_init(|| {
        let mut all: HashMap<&'static str, Vec<Overload>> = HashMap::new();
        for (library, table) in TABLES {
            for overload in table.lines().filter_map(|line| overload(library, line)) {
                all.entry(overload.name).or_default().push(overload);
            }
        }
        all
    })
}

fn overload(library: Library, line: &'static str) -> Option<Overload> {
    let (id, signature) = line.split_once(": ")?;
    let (before, rest) = signature.split_once('#').map_or((None, signature), |(r, s)| (Some(r), s));
    let open = rest.find('(')?;
    let close = closing(rest, open)?;
    let mut args: Vec<Type> = before.into_iter().map(read).collect();
    args.extend(split(&rest[open + 1..close]).into_iter().map(read));
    Some(Overload {
        id,
        name: &rest[..open],
        member: before.is_some(),
        args,
        result: read(rest[close + 1..].trim()),
        library,
    })
}

/// Returns the position of the parenthesis that closes the one at `open`.
fn closing(text: &str, open: usize) -> Option<usize> {
    let mut depth = 0;
    text.char_indices().skip(open).find_map(|(at, c)| {
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

fn read(text: &'static str) -> Type {
    if let Some((name, rest)) = text.split_once('(') {
        let mut inner = split(rest.strip_suffix(')').unwrap_or(rest)).into_iter().map(read);
        let mut next = || inner.next().unwrap_or(Type::Dyn);
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
        _ => named(text).unwrap_or(Type::Opaque(text)),
    }
}

/// Returns a type of the language by its name in expressions.
pub(crate) fn named(name: &str) -> Option<Type> {
    Some(match name {
        "bool" => Type::Bool,
        "int" => Type::Int,
        "uint" => Type::Uint,
        "double" => Type::Double,
        "string" => Type::String,
        "bytes" => Type::Bytes,
        "null_type" => Type::Null,
        "dyn" => Type::Dyn,
        "timestamp" | "google.protobuf.Timestamp" => Type::Timestamp,
        "duration" | "google.protobuf.Duration" => Type::Duration,
        "list" => Type::list(Type::Dyn),
        "map" => Type::map(Type::Dyn, Type::Dyn),
        "type" => Type::type_of(Type::Dyn),
        "optional_type" => Type::optional(Type::Dyn),
        _ => return None,
    })
}

/// The opaque types that expressions can name, and the version that introduced them.
pub(crate) const OPAQUE: [(&str, u32); 9] = [
    ("kubernetes.URL", 0),
    ("kubernetes.Quantity", 28),
    ("kubernetes.authorization.Authorizer", 27),
    ("net.IP", 30),
    ("net.CIDR", 30),
    ("kubernetes.NamedFormat", 31),
    ("kubernetes.Semver", 33),
    ("kubernetes.authorization.Decision", 27),
    ("kubernetes.authorization.ResourceCheck", 27),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_all_tables() {
        for (library, table) in TABLES {
            for line in table.lines() {
                let read = overload(library, line);
                assert!(read.is_some_and(|o| o.name == "!_" || !o.name.is_empty()), "{line}");
            }
        }
        let [query] = overloads("getQuery") else { panic!("one overload") };
        assert_eq!(query.result, Type::map(Type::String, Type::list(Type::String)));
        assert!(query.member && query.args == [Type::Opaque("kubernetes.URL")]);
    }
}
