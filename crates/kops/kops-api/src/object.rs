//! A kOps object, read from and written to documents.

use api_meta::{Budget, FieldError, Path, Tree as _};
use serde_json::{Map, Value, json};

use crate::{
    error::Error,
    legacy,
    read::Reader,
    schema::{Kind, Version},
    write, yaml,
};

const GROUP: &str = "kops.k8s.io";

/// A version in which objects are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionName {
    V1alpha2,
    V1alpha3,
}

impl VersionName {
    fn api_version(self) -> &'static str {
        match self {
            Self::V1alpha2 => "kops.k8s.io/v1alpha2",
            Self::V1alpha3 => "kops.k8s.io/v1alpha3",
        }
    }

    fn version(self) -> Version {
        match self {
            Self::V1alpha2 => Version::V1alpha2,
            Self::V1alpha3 => Version::V1alpha3,
        }
    }
}

/// An object in the hub's form.
#[derive(Clone, Debug, PartialEq)]
pub struct Object {
    /// The kind.
    pub kind: Kind,
    /// The metadata.
    pub metadata: Value,
    /// The spec, or the whole content of a kind without one.
    pub spec: Value,
}

impl Object {
    /// Creates an object with a name and an empty spec.
    pub fn new(kind: Kind, name: &str) -> Self {
        Self { kind, metadata: json!({"name": name}), spec: json!({}) }
    }

    /// Returns the name; empty if the object has none.
    pub fn name(&self) -> &str {
        self.metadata.text("name")
    }

    /// Parses one document of either version. `what` names it in errors: a file, or a path in the store.
    pub fn read(what: &str, document: &[u8]) -> Result<Self, Error> {
        Self::from_tree(what, yaml::parse(what, document)?)
    }

    /// Parses all documents of a file.
    pub fn read_all(file: &str, text: &str) -> Result<Vec<Self>, Error> {
        let trees = yaml::parse_all(file, text)?;
        trees.into_iter().map(|tree| Self::from_tree(file, tree)).collect()
    }

    /// Converts one parsed object of either version.
    pub fn from_tree(what: &str, tree: Value) -> Result<Self, Error> {
        Budget::object()
            .tree(&tree)
            .map_err(|cause| Error::Exceeded { what: what.to_owned(), cause })?;
        let (api_version, name) =
            (tree.text("apiVersion").to_owned(), tree.text("kind").to_owned());
        // Some stores still contain the group's old name.
        let version = match api_version.as_str() {
            "kops.k8s.io/v1alpha2" | "kops/v1alpha2" => Some(VersionName::V1alpha2),
            "kops.k8s.io/v1alpha3" => Some(VersionName::V1alpha3),
            _ => None,
        };
        let kind = Kind::ALL.into_iter().find(|kind| kind.name() == name);
        let (Some(version), Some(kind), Value::Object(mut fields)) = (version, kind, tree) else {
            return Err(Error::Kind { what: what.to_owned(), version: api_version, kind: name });
        };
        fields.remove("apiVersion");
        fields.remove("kind");
        read(version, kind, fields)
            .map_err(|problems| Error::Fields { what: what.to_owned(), problems })
    }

    /// Returns the object without values that Go's encoder omits: zero values of fields that cannot be unset.
    #[must_use]
    pub fn normalized(&self) -> Self {
        let mut fields = self.to_map(Version::Hub);
        let mut part = |name| fields.remove(name).unwrap_or_else(|| json!({}));
        Self { kind: self.kind, metadata: part("metadata"), spec: part("spec") }
    }

    /// Returns the fields in a version's form.
    fn to_map(&self, version: Version) -> Map<String, Value> {
        let parts = [("metadata", &self.metadata), ("spec", &self.spec)];
        let fields = Map::from_iter(parts.map(|(name, part)| (name.to_owned(), part.clone())));
        write::structure(version, self.kind.name(), &fields, &Map::new())
    }

    /// Returns the object in a version's form.
    pub fn to_tree(&self, version: VersionName) -> Value {
        let mut out = self.to_map(version.version());
        if (version, self.kind) == (VersionName::V1alpha2, Kind::Cluster)
            && let Some(old) = out.get_mut("spec")
        {
            legacy::from_hub(&self.spec, old);
        }
        out.insert("apiVersion".to_owned(), version.api_version().into());
        out.insert("kind".to_owned(), self.kind.name().into());
        Value::Object(out)
    }

    /// Returns the object as YAML, byte for byte as upstream writes it.
    pub fn to_yaml(&self, version: VersionName) -> String {
        yaml::to_string(&self.to_tree(version))
    }
}

fn read(
    version: VersionName,
    kind: Kind,
    fields: Map<String, Value>,
) -> Result<Object, Vec<FieldError>> {
    let old = match (version, kind) {
        (VersionName::V1alpha2, Kind::Cluster) => fields.get("spec").cloned(),
        _ => None,
    };
    let mut reader = Reader { version: version.version(), problems: Vec::new() };
    let mut out = Map::new();
    reader.structure(kind.name(), fields, &Path::default(), &mut out, None);
    let mut part = |name| out.remove(name).unwrap_or_else(|| json!({}));
    let (metadata, mut spec) = (part("metadata"), part("spec"));
    let mut problems = reader.problems;
    if kind == Kind::Cluster {
        let spec = &mut spec;
        if let Some(old) = old {
            legacy::to_hub(&old, spec, &Path::new("spec"), &mut problems);
        }
        legacy::default(spec);
    }
    let object = Object { kind, metadata, spec };
    if problems.is_empty() { Ok(object) } else { Err(problems) }
}

/// Reports whether an object is in kOps' API group. Add-ons of other groups may be in the same file.
pub fn is_ours(tree: &Value) -> bool {
    let version = tree.text("apiVersion");
    version.split_once('/').is_some_and(|(group, _)| group == GROUP || group == "kops")
}
