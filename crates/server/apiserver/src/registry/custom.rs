//! Builds definitions of custom kinds from CustomResourceDefinitions.

use std::{collections::HashMap, sync::Arc};

use api_meta::{ErrorList, GroupVersionKind, Path, Tree as _};
use api_schema::Schema;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::{
    cel_metrics::CelMetrics,
    conversion,
    converter::Converter,
    definition::{
        Definition, ServedSubresource, ServedVersion, SpecHash, api_version, version_rank,
    },
    object::{FieldReader, Selectable},
    projection::Projection,
};
use crate::outbound::backends::Backends;

const VERBS: [&str; 8] =
    ["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"];

/// Validates the schemas of a definition. On an update, only the changed ones.
pub(crate) fn schema_errors(crd: &Value, old: Option<&Value>, cel: &CelMetrics) -> ErrorList {
    let spec = &crd["spec"];
    let (mut errors, paths) = (ErrorList::new(), api_rules::PartPaths::new(spec));
    let before: HashMap<&str, &Value> = old
        .iter()
        .flat_map(|old| old.items("spec.versions"))
        .map(|version| (version.text("name"), version))
        .collect();
    for (i, version) in spec.items("versions").iter().enumerate() {
        let given = version.at("schema.openAPIV3Schema");
        let before = before.get(version.text("name"));
        if given.is_null() || before.is_some_and(|b| *b.at("schema.openAPIV3Schema") == *given) {
            continue;
        }
        let Some(path) = paths.schema(i) else { continue };
        let gvk = kind_of(spec.text("group"), version, spec.at("names"));
        match cel.schema(given, &gvk, &path) {
            Ok(schema) => errors.extend(schema.rule_errors().iter().cloned()),
            Err(wrong) => errors.extend(wrong),
        }
    }
    errors
}

/// Builds the definition of a custom kind. A schema that cannot be used is replaced by one that preserves everything;
/// validation normally rejects such schemas.
pub(crate) fn definition(crd: &Value, backends: &Arc<Backends>, cel: &CelMetrics) -> Definition {
    let spec = &crd["spec"];
    let (group, names) = (spec.text("group"), &spec["names"]);
    let plural = names.text("plural");
    let versions: Vec<&Value> = spec.items("versions").iter().collect();
    let (mut of, other): (Vec<&Value>, Vec<&Value>) =
        versions.iter().copied().partition(|v| v["served"] == Value::Bool(true));
    // Objects may be stored in versions that are not served.
    of.extend(other);
    let has_status = of.iter().any(|v| v["subresources"].get("status").is_some());
    let selectable = of.iter().flat_map(|v| v.items("selectableFields"));
    let own = selectable.map(|field| {
        let path = field.text("jsonPath").trim_start_matches('.');
        Selectable { name: path.into(), read: FieldReader::Path(path.into()) }
    });
    let selectable: Vec<_> = Selectable::all(&[]).into_iter().chain(own).collect();
    let storage = of.iter().position(|v| v["storage"] == Value::Bool(true)).unwrap_or(0);
    let mut all: Vec<ServedVersion> = of.iter().map(|v| served(group, names, v, cel)).collect();
    let stored = of.get(storage).map_or("", |version| version.text("name"));
    let hash = storage_version_hash(group, stored, names.text("kind"));
    for (version, served) in of.iter().zip(&mut all) {
        served.storage_version_hash = hash.clone();
        served.warning = deprecation(group, names, version, &of).map(Into::into);
    }
    let converter = Converter::of(crd, backends);
    let differs = |i: &usize| converter.is_none() && of[*i]["schema"] != of[storage]["schema"];
    for i in (0..all.len()).filter(differs) {
        all[i].conversion = Some(conversion::by_schema(&all[i], &all[storage]));
    }
    Definition {
        group: group.into(),
        plural: plural.into(),
        namespaced: spec["scope"] == "Namespaced",
        prefix: format!("/registry/{group}/{plural}/").into(),
        projection: Selectable::projection(&selectable, &[]),
        consulted: Projection::whole(),
        selectable,
        storage,
        served: all,
        custom: Some(spec_hash(spec)),
        converter: converter.map(Arc::new),
        strategy: api_rules::Strategy::custom(has_status),
    }
}

/// Returns the hash of a specification. Equal trees have the same JSON, because their members are sorted.
pub(crate) fn spec_hash(spec: &Value) -> SpecHash {
    Sha256::digest(spec.to_string()).into()
}

/// Returns the hash that changes with the storage version, as a signal for storage migrators.
fn storage_version_hash(group: &str, version: &str, kind: &str) -> Arc<str> {
    let sum = Sha256::digest(format!("{group}/{version}/{kind}"));
    STANDARD.encode(&sum[..8]).into()
}

/// Returns the warning for a deprecated version: the definition's own, or a hint to a newer version.
fn deprecation(group: &str, names: &Value, version: &Value, all: &[&Value]) -> Option<String> {
    if version["deprecated"] != true {
        return None;
    }
    let given = version.text("deprecationWarning");
    if !given.is_empty() {
        return Some(given.to_owned());
    }
    let (name, kind) = (version.text("name"), names.text("kind"));
    let rank = |version: &Value| version_rank(version.text("name"));
    let newer = all.iter().filter(|v| v["served"] == true && v["deprecated"] != true);
    let newest = newer.filter(|v| rank(v) > rank(version)).max_by_key(|v| rank(v));
    let instead = newest.map(|v| format!("; use {group}/{} {kind}", v.text("name")));
    Some(format!("{group}/{name} {kind} is deprecated{}", instead.unwrap_or_default()))
}

fn kind_of(group: &str, version: &Value, names: &Value) -> GroupVersionKind {
    let text = str::to_owned;
    GroupVersionKind::new(text(group), text(version.text("name")), text(names.text("kind")))
}

fn served(group: &str, names: &Value, version: &Value, cel: &CelMetrics) -> ServedVersion {
    let (name, kind) = (version.text("name"), names.text("kind"));
    let words = |list: &Value| list.texts("").map(Arc::from).collect();
    let given = version.at("schema.openAPIV3Schema");
    let gvk = kind_of(group, version, names);
    let schema = cel.schema(given, &gvk, &Path::new("spec")).unwrap_or_else(|errors| {
        tracing::warn!(
            group,
            kind,
            version = name,
            ?errors,
            "the schema of a custom kind cannot be used; fields are not validated"
        );
        Schema::free_form(&gvk)
    });
    let node = schema.kinds[0].node;
    let list_kind = match names.text("listKind") {
        "" => format!("{kind}List"),
        given => given.to_owned(),
    };
    let singular = match names.text("singular") {
        "" => kind.to_lowercase(),
        given => given.to_owned(),
    };
    ServedVersion {
        group: group.into(),
        version: name.into(),
        api_version: api_version(group, name).into(),
        kind: kind.into(),
        list_kind: list_kind.into(),
        singular: singular.into(),
        verbs: VERBS.iter().map(|v| Arc::from(*v)).collect(),
        short_names: words(&names["shortNames"]),
        categories: words(&names["categories"]),
        storage_version_hash: "".into(),
        subresources: subresources(group, name, kind, &version["subresources"]),
        schema: Arc::new(schema),
        node,
        conversion: None,
        warning: None,
        columns: Some(Arc::new(version["additionalPrinterColumns"].clone())),
        scale: version["subresources"].get("scale").map(|scale| Arc::new(scale.clone())),
        enabled: version["served"] == Value::Bool(true),
    }
}

fn subresources(group: &str, version: &str, kind: &str, given: &Value) -> Vec<ServedSubresource> {
    let verbs: Vec<Arc<str>> = ["get", "patch", "update"].map(Arc::from).to_vec();
    let of =
        |name: &str, group: &str, version: &str, kind: &str, foreign: bool| ServedSubresource {
            name: name.into(),
            group: group.into(),
            version: version.into(),
            kind: kind.into(),
            foreign,
            verbs: verbs.clone(),
        };
    let status = given.get("status").map(|_| of("status", group, version, kind, false));
    let scale = given.get("scale").map(|_| of("scale", "autoscaling", "v1", "Scale", true));
    status.into_iter().chain(scale).collect()
}
