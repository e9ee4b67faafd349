//! The table of fields, parsed once from `facts/fields.tsv`.
//!
//! A line without a tab starts a type. Its fields follow, each with its names in the hub, in v1alpha2 and in v1alpha3
//! (one name if all agree, `-` for none) and its type. The hub's name may be a path from the type (`rootVolume.size`),
//! a path from the enclosing type (`^cloudProvider.aws.ebsCSIDriver`), or the type itself (`.`). `!` means that
//! v1alpha2 has the opposite truth value.
//!
//! Types are Go's: `*T` may be absent, `[]T`, `map[string]T`. `~T` is a structure that the hub always has and v1alpha2
//! omits while it is empty. A trailing `!` means that the field is written even if it is empty.

use std::{collections::HashMap, sync::LazyLock};

const FACTS: &str = include_str!("../facts/fields.tsv");

/// A form of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    /// The internal form, which machines' configurations contain, too.
    Hub,
    V1alpha2,
    V1alpha3,
}

/// The kinds of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Cluster,
    InstanceGroup,
    Keyset,
    SshCredential,
    Host,
}

impl Kind {
    /// All kinds. Each has a type of its own in the table.
    pub const ALL: [Self; 5] =
        [Self::Cluster, Self::InstanceGroup, Self::Keyset, Self::SshCredential, Self::Host];

    /// Returns the `kind` of documents.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cluster => "Cluster",
            Self::InstanceGroup => "InstanceGroup",
            Self::Keyset => "Keyset",
            Self::SshCredential => "SSHCredential",
            Self::Host => "Host",
        }
    }
}

#[derive(Debug, PartialEq)]
pub(crate) enum Shape {
    Text,
    /// The role of a group: v1alpha2 has `Master` for `ControlPlane`.
    Role,
    Bool,
    Int {
        least: i128,
        most: i128,
    },
    Quantity,
    Duration,
    IntOrString,
    Time,
    Bytes,
    /// An object of core/v1 with its own fields.
    Object,
    Struct(&'static str),
    /// A structure that v1alpha2 omits while it is empty.
    Loose(&'static str),
    Pointer(Box<Shape>),
    List(Box<Shape>),
    Map(Box<Shape>),
}

/// The location of a field in the hub.
#[derive(Debug)]
pub(crate) struct HubPath {
    /// `true` if the path starts at the enclosing type.
    pub(crate) from_parent: bool,
    /// `true` if v1alpha2 has the opposite truth value.
    pub(crate) negated: bool,
    /// The path; empty for the type itself.
    pub(crate) path: Vec<&'static str>,
}

/// A field of a type.
#[derive(Debug)]
pub(crate) struct Field {
    /// The location in the hub; `None` if the hub lacks the field.
    pub(crate) hub: Option<HubPath>,
    v1alpha2: Option<&'static str>,
    v1alpha3: Option<&'static str>,
    /// The type of the values.
    pub(crate) shape: Shape,
    /// `true` if the field is written even if it is empty.
    pub(crate) keep: bool,
}

impl Field {
    /// Returns the name in a version; `None` if the version lacks the field.
    pub(crate) fn name(&self, version: Version) -> Option<&'static str> {
        match version {
            Version::V1alpha2 => self.v1alpha2,
            Version::V1alpha3 => self.v1alpha3,
            Version::Hub => match &self.hub {
                Some(HubPath { from_parent: false, path, .. }) if path.len() == 1 => Some(path[0]),
                _ => None,
            },
        }
    }

    /// Reports whether a version has the opposite truth value of the hub.
    pub(crate) fn is_negated(&self, version: Version) -> bool {
        version == Version::V1alpha2 && self.hub.as_ref().is_some_and(|place| place.negated)
    }
}

/// A structured type.
#[derive(Debug, Default)]
pub(crate) struct Type {
    /// The fields.
    pub(crate) fields: Vec<Field>,
    /// `true` if a field is located in the enclosing type.
    pub(crate) reaches_up: bool,
}

static TYPES: LazyLock<HashMap<&'static str, Type>> = LazyLock::new(|| parse(FACTS));

/// Returns a type of the table. A test checks that the table contains every type it names.
pub(crate) fn of(name: &str) -> &'static Type {
    static NONE: Type = Type { fields: Vec::new(), reaches_up: false };
    TYPES.get(name).unwrap_or(&NONE)
}

fn parse(facts: &'static str) -> HashMap<&'static str, Type> {
    let mut types: HashMap<&str, Type> = HashMap::new();
    let mut at = "";
    for line in facts.lines().filter(|line| !line.starts_with('#')) {
        let Some(row) = line.strip_prefix('\t') else {
            at = line;
            types.entry(at).or_default();
            continue;
        };
        let field = match row.split('\t').collect::<Vec<_>>()[..] {
            [name, shape] => field([name; 3], shape),
            [hub, v1alpha2, v1alpha3, shape] => field([hub, v1alpha2, v1alpha3], shape),
            _ => continue,
        };
        let entry = types.entry(at).or_default();
        entry.reaches_up |= field.hub.as_ref().is_some_and(|place| place.from_parent);
        entry.fields.push(field);
    }
    types
}

fn field([hub, v1alpha2, v1alpha3]: [&'static str; 3], shape: &'static str) -> Field {
    let (shape, keep) = match shape.strip_suffix('!') {
        Some(shape) => (shape, true),
        None => (shape, false),
    };
    let named = |name: &'static str| (name != "-").then(|| name.trim_start_matches('!'));
    Field {
        hub: (hub != "-").then(|| place(hub)),
        v1alpha2: named(v1alpha2),
        v1alpha3: named(v1alpha3),
        shape: shape_of(shape),
        keep,
    }
}

fn place(text: &'static str) -> HubPath {
    let rest = text.trim_start_matches(['^', '!']);
    HubPath {
        from_parent: text.starts_with('^'),
        negated: text.starts_with('!'),
        path: rest.split('.').filter(|part| !part.is_empty()).collect(),
    }
}

fn shape_of(text: &'static str) -> Shape {
    let inner = |rest| Box::new(shape_of(rest));
    if let Some(rest) = text.strip_prefix('*') {
        return Shape::Pointer(inner(rest));
    } else if let Some(rest) = text.strip_prefix("[]") {
        return Shape::List(inner(rest));
    } else if let Some(rest) = text.strip_prefix("map[string]") {
        return Shape::Map(inner(rest));
    } else if let Some(rest) = text.strip_prefix('~') {
        return Shape::Loose(rest);
    }
    let int = |least: i128, most: i128| Shape::Int { least, most };
    match text {
        "string" => Shape::Text,
        "role" => Shape::Role,
        "bool" => Shape::Bool,
        "int" | "int64" => int(i64::MIN.into(), i64::MAX.into()),
        "int32" => int(i32::MIN.into(), i32::MAX.into()),
        "int16" => int(i16::MIN.into(), i16::MAX.into()),
        "uint32" => int(0, u32::MAX.into()),
        "uint8" => int(0, u8::MAX.into()),
        "quantity" => Shape::Quantity,
        "duration" => Shape::Duration,
        "intOrString" => Shape::IntOrString,
        "time" => Shape::Time,
        "bytes" => Shape::Bytes,
        "object" => Shape::Object,
        name => Shape::Struct(name),
    }
}

/// Reports whether the hub has a field, such as `spec.networking.topology.dns`. Below maps and objects of other APIs
/// every path exists.
pub fn has_field(kind: Kind, path: &str) -> bool {
    let mut at = kind.name();
    for name in path.split('.') {
        let field = of(at).fields.iter().find(|field| field.name(Version::Hub) == Some(name));
        let Some(mut shape) = field.map(|field| &field.shape) else { return false };
        while let Shape::Pointer(inner) | Shape::List(inner) = shape {
            shape = inner;
        }
        match shape {
            Shape::Struct(name) | Shape::Loose(name) => at = name,
            Shape::Map(_) | Shape::Object => return true,
            // A scalar has no fields, so a longer path does not exist.
            _ => at = "",
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(shape: &Shape) -> Option<&'static str> {
        match shape {
            Shape::Struct(name) | Shape::Loose(name) => Some(name),
            Shape::Pointer(inner) | Shape::List(inner) | Shape::Map(inner) => named(inner),
            _ => None,
        }
    }

    #[test]
    fn table_contains_every_type_it_names() {
        let fields = || TYPES.values().flat_map(|t| &t.fields);
        assert!(fields().count() > 1000);
        let missing: Vec<_> =
            fields().filter_map(|f| named(&f.shape)).filter(|n| !TYPES.contains_key(n)).collect();
        assert_eq!(missing, Vec::<&str>::new());
        for kind in Kind::ALL {
            assert_eq!(of(kind.name()).fields.len(), 2, "{kind:?}");
        }
    }

    #[test]
    fn names_are_unique_per_version() {
        for (name, entry) in TYPES.iter() {
            for version in [Version::V1alpha2, Version::V1alpha3, Version::Hub] {
                let mut names: Vec<_> =
                    entry.fields.iter().filter_map(|f| f.name(version)).collect();
                let count = names.len();
                names.sort_unstable();
                names.dedup();
                assert_eq!(names.len(), count, "{name} {version:?}");
            }
        }
    }
}
