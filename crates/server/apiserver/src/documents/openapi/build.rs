//! Builds documents from the kinds that this server serves and the documents of other API servers.

use std::io::{self, Write};

use api_schema::openapi::{self, Contents, CustomKind, Version2};
use serde_json::{Value, json};
use version::KUBERNETES_VERSION;

use super::{
    form::Form,
    kinds::{CustomVersion, PLAIN, custom, groups, versions},
    writer::MemberWriter,
};
use crate::{
    aggregation::{ApiServices, merge::MemberIndex},
    watch_cache::Kinds,
};

/// Writes the OpenAPI v3 document for a group and version or another path. Returns `None` if nothing is served there.
pub(super) fn version_3<W: Write>(
    kinds: &Kinds,
    name: &str,
    form: Form,
    out: W,
) -> io::Result<Option<W>> {
    let versions = versions(kinds);
    let found = versions.iter().find(|(g, v)| openapi::document_path(g, v) == name);
    let custom = found.map(|found| custom(kinds, Some(*found))).unwrap_or_default();
    let custom: Vec<CustomKind<'_>> = custom.iter().map(CustomVersion::kind).collect();
    let contents = match found {
        Some((group, version)) => Some(Contents::of_version(group, version, &custom)),
        None if name.starts_with("apis/") && !groups(kinds).contains(name) => None,
        None => Contents::unversioned(name),
    };
    contents.map(|contents| write_version_3(&contents, form, out)).transpose()
}

fn write_version_3<W: Write>(contents: &Contents<'_>, form: Form, out: W) -> io::Result<W> {
    let mut document = MemberWriter::document(form, api_codec::openapi::v3, out)?;
    document.member("openapi", "3.0.0".into())?;
    document.member("info", contents.info(KUBERNETES_VERSION))?;
    document.open("paths")?;
    let names = contents.paths(|path, item| document.member(&path, item))?;
    document.close()?;
    document.open("components")?;
    if let Some(schemes) = contents.security_schemes() {
        document.member("securitySchemes", schemes)?;
    }
    if !names.is_empty() {
        document.open("schemas")?;
        contents.schemas(names, |name, mut schema| {
            api_docs::describe(&name, &mut schema);
            document.member(&name, schema)
        })?;
        document.close()?;
    }
    document.close()?;
    document.finish()
}

/// Writes the OpenAPI v2 document.
pub(super) fn version_2<W: Write>(
    kinds: &Kinds,
    known: &ApiServices,
    form: Form,
    out: W,
) -> io::Result<W> {
    let groups = groups(kinds);
    let unversioned = PLAIN.into_iter().chain(groups.iter().map(String::as_str)).collect();
    let custom = custom(kinds, None);
    let custom: Vec<CustomKind<'_>> = custom.iter().map(CustomVersion::kind).collect();
    let contents = Contents::whole(unversioned, versions(kinds).into_iter().collect(), &custom);
    let learned = known.remotes().filter_map(|s| known.remote_api(&s.group, &s.version));
    let parts: Vec<&Value> = learned.filter_map(|learned| learned.open_api.as_deref()).collect();
    write_version_2(&contents, &parts, form, out)
}

/// Writes the OpenAPI v2 document of these contents and the parts of other API servers. Paths are kept compressed until
/// all definitions are written, because the definitions decide what the paths of other API servers refer to.
fn write_version_2<W: Write>(
    contents: &Contents<'_>,
    parts: &[&Value],
    form: Form,
    out: W,
) -> io::Result<W> {
    let (mut version_2, mut index) = (Version2::default(), MemberIndex::new(parts));
    let mut document = MemberWriter::document(form, api_codec::openapi::v2, out)?;
    let mut paths = document.members("paths");
    let names = contents.paths(|path, mut item| {
        version_2.convert_path(&mut item);
        index.record("paths", &path, &item);
        paths.member(&path, item)
    })?;
    document.member("swagger", "2.0".into())?;
    document.member("info", contents.info(KUBERNETES_VERSION))?;
    document.open("definitions")?;
    contents.schemas(names, |name, mut schema| {
        api_docs::describe(&name, &mut schema);
        version_2.convert_schema(&mut schema);
        index.record("definitions", &name, &schema);
        document.member(&name, schema)
    })?;
    let mut parameters = version_2.parameters();
    parameters.iter().for_each(|(name, item)| index.record("parameters", name, item));
    for added in parts.iter().flat_map(|part| index.merge(part)) {
        match added.section {
            "paths" => paths.member(&added.name, added.item)?,
            "parameters" => drop(parameters.insert(added.name, added.item)),
            _ => document.member(&added.name, added.item)?,
        }
    }
    document.close()?;
    document.member("parameters", parameters.into())?;
    document.append("paths", paths)?;
    document.member("securityDefinitions", contents.security_schemes().unwrap_or_default())?;
    document.member("security", json!([{"BearerToken": []}]))?;
    document.finish()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use api_schema::openapi::CustomSource;
    use fuzz::heap::peak;

    use super::*;
    use crate::documents::openapi::DocumentEncoder;

    fn schema(members: usize) -> Value {
        let text = "The time after which the object is deleted.";
        let member = |n| (format!("member{n}"), json!({"type": "string", "description": text}));
        json!({"type": "object", "properties": Value::from_iter((0..members).map(member))})
    }

    fn custom_kind<'a>(plural: &'a str, read: &'a dyn Fn() -> CustomSource) -> CustomKind<'a> {
        CustomKind {
            group: "example.com",
            version: "v1",
            plural,
            kind: plural,
            list_kind: "List",
            namespaced: true,
            read,
            status: true,
            scale: false,
        }
    }

    fn document(custom: &[CustomKind<'_>], parts: &[Value]) -> Value {
        let contents = Contents::whole(vec!["version"], vec![("example.com", "v1")], custom);
        let parts: Vec<&Value> = parts.iter().collect();
        let text = write_version_2(&contents, &parts, Form::Json, Vec::new()).unwrap();
        serde_json::from_slice(&text).unwrap()
    }

    #[test]
    fn merges_documents_of_other_servers() {
        let read = || CustomSource { open_api_v3: schema(1), ..CustomSource::default() };
        let custom = [custom_kind("widgets", &read)];
        let part = json!({
            "paths": {
                "/apis/other.example.com/v1/things": {"get": {"schema": {"$ref": "#/definitions/com.example.v1.widgets"}}},
                "/version/": {},
            },
            "definitions": {"com.example.v1.widgets": {"type": "object"}},
            "parameters": {"other": {"in": "query"}},
        });
        let document = document(&custom, &[part]);
        let definitions = &document["definitions"];
        assert!(definitions["com.example.v1.widgets"]["properties"]["member0"].is_object());
        assert_eq!(definitions["com.example.v1.widgets_v2"], json!({"type": "object"}));
        let path = &document["paths"]["/apis/other.example.com/v1/things"];
        assert_eq!(path["get"]["schema"]["$ref"], "#/definitions/com.example.v1.widgets_v2");
        assert!(document["paths"]["/version/"]["get"].is_object());
        let names: Vec<_> = document["parameters"].as_object().unwrap().keys().collect();
        assert!(names.iter().any(|name| *name == "other") && names.len() > 3, "{names:?}");
        assert_eq!(document["swagger"], "2.0");
    }

    /// Types without a description, or with members without one: upstream has none either, except for the object of a
    /// WatchEvent, for which `k8s-openapi` has its own schema.
    const UNDESCRIBED: [&str; 7] = [
        "admissionregistration.v1alpha1.MatchCondition",
        "apiextensions.v1.ExternalDocumentation",
        "apiextensions.v1.JSONSchemaProps",
        "meta.v1.GroupResource",
        "meta.v1.WatchEvent",
        "networking.v1.IngressRule http",
        "pkg.version.Info",
    ];

    #[test]
    fn describes_builtin_types_and_members() {
        let versions: BTreeSet<_> =
            api_schema::resources().iter().map(|r| (r.group, r.version)).collect();
        let contents = Contents::whole(vec!["version"], versions.into_iter().collect(), &[]);
        let text = write_version_2(&contents, &[], Form::Json, Vec::new()).unwrap();
        let document: Value = serde_json::from_slice(&text).unwrap();
        let mut missing = Vec::new();
        let definitions = document["definitions"].as_object().unwrap();
        for (name, definition) in definitions {
            let members = definition["properties"].as_object().into_iter().flatten();
            let of_members = members.map(|(member, schema)| (format!("{name} {member}"), schema));
            let all = of_members.chain([(name.clone(), definition)]);
            missing.extend(all.filter(|(_, s)| !s["description"].is_string()).map(|(at, _)| at));
        }
        missing.retain(|at| !UNDESCRIBED.iter().any(|known| at.contains(known)));
        assert!(definitions.len() > 500 && missing.is_empty(), "{missing:#?}");
    }

    /// The memory does not grow with the number of kinds, but for the compressed document.
    #[test]
    fn bounds_memory_while_document_is_built() {
        let read = || CustomSource { open_api_v3: schema(500), ..CustomSource::default() };
        let plurals: Vec<String> = (0..60).map(|n| format!("kind{n}s")).collect();
        let custom: Vec<_> = plurals.iter().map(|plural| custom_kind(plural, &read)).collect();
        let build = |form| {
            let contents = Contents::whole(Vec::new(), vec![("example.com", "v1")], &custom);
            let out = DocumentEncoder::default();
            write_version_2(&contents, &[], form, out).unwrap().finish().unwrap()
        };
        // The first document loads tables that all share.
        drop(build(Form::Json));
        for form in [Form::Json, Form::Protobuf] {
            let (document, peak) = peak(|| build(form));
            let size = isize::try_from(document.size).unwrap();
            assert!(size > 2_500_000 && peak > 0 && peak < size, "{peak} for {size} bytes");
        }
    }
}
