//! One object of kOps', read from a document and written as one.

use api_meta::{Budget, FieldError, Path};
use serde_json::{Map, Value, json};

use crate::{Error, Kind, Spec as _, legacy, read::Reader, schema::Version, write, yaml};

const GROUP: &str = "kops.k8s.io";

/// A version that objects are written in.
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
    pub kind: Kind,
    pub metadata: Value,
    pub spec: Value,
}

impl Object {
    /// An object with a name and an empty spec.
    pub fn new(kind: Kind, name: &str) -> Self {
        Self { kind, metadata: json!({"name": name}), spec: json!({}) }
    }

    /// The name, which is empty in an object that has none.
    pub fn name(&self) -> &str {
        self.metadata.text("name")
    }

    /// Reads one document of either version. `what` names it in errors: a file, or a path in the store.
    pub fn read(what: &str, document: &[u8]) -> Result<Self, Error> {
        let tree = api_codec::from_yaml(document)
            .map_err(|e| Error::Yaml { what: what.to_owned(), cause: e.to_string() })?;
        Self::from_tree(what, tree)
    }

    /// Reads one object of either version.
    pub fn from_tree(what: &str, tree: Value) -> Result<Self, Error> {
        Budget::object()
            .tree(&tree)
            .map_err(|cause| Error::Exceeded { what: what.to_owned(), cause })?;
        let (api_version, name) =
            (tree.text("apiVersion").to_owned(), tree.text("kind").to_owned());
        // The group's old name lives on in some stores.
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

    /// The same object without what Go's encoder leaves out: zero values of fields that cannot be unset.
    #[must_use]
    pub fn normalized(&self) -> Self {
        let mut fields = self.written(Version::Hub);
        let mut part = |name| fields.remove(name).unwrap_or_else(|| json!({}));
        Self { kind: self.kind, metadata: part("metadata"), spec: part("spec") }
    }

    fn written(&self, version: Version) -> Map<String, Value> {
        let parts = [("metadata", &self.metadata), ("spec", &self.spec)];
        let fields = Map::from_iter(parts.map(|(name, part)| (name.to_owned(), part.clone())));
        write::structure(version, self.kind.name(), &fields, &Map::new())
    }

    /// The object as a version has it.
    pub fn to_tree(&self, version: VersionName) -> Value {
        let mut out = self.written(version.version());
        if (version, self.kind) == (VersionName::V1alpha2, Kind::Cluster)
            && let Some(old) = out.get_mut("spec")
        {
            legacy::from_hub(&self.spec, old);
        }
        out.insert("apiVersion".to_owned(), version.api_version().into());
        out.insert("kind".to_owned(), self.kind.name().into());
        Value::Object(out)
    }

    /// The object as a document, byte for byte as upstream writes it.
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

/// The documents of a file, which lines of three dashes separate. Empty ones are left out.
pub fn documents(text: &str) -> Vec<&str> {
    let mut documents = Vec::new();
    let (mut from, mut at) = (0, 0);
    for line in text.split_inclusive('\n') {
        if line.trim_end() == "---" {
            documents.push(&text[from..at]);
            from = at + line.len();
        }
        at += line.len();
    }
    documents.push(&text[from..]);
    documents.retain(|document| !document.trim().is_empty());
    documents
}

/// Whether an object's `apiVersion` is kOps' at all; add-ons of other groups stand beside its objects in a file.
pub fn is_ours(tree: &Value) -> bool {
    let version = tree.text("apiVersion");
    version.split_once('/').is_some_and(|(group, _)| group == GROUP || group == "kops")
}
