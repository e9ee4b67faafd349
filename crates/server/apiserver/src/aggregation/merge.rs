//! Merges the OpenAPI v2 documents of other API servers into this server's.

use std::collections::{BTreeMap, HashMap};

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::fetch::SHARED;

/// The SHA-256 digest of a member's JSON.
type Digest = [u8; 32];

/// The members of a document by section (`definitions`, `parameters` and `paths`) and name. It keeps only digests of
/// their contents, because the document itself is not in memory, and only of those that a part has, too.
pub(crate) struct MemberIndex<'a> {
    parts: &'a [&'a Value],
    sections: HashMap<&'static str, HashMap<String, Option<Digest>>>,
}

/// A member that is added to a section of a document.
#[derive(Debug, PartialEq)]
pub(crate) struct AddedMember {
    pub(crate) section: &'static str,
    pub(crate) name: String,
    pub(crate) item: Value,
}

impl<'a> MemberIndex<'a> {
    /// Creates the index of a document into which these parts of other servers are merged.
    pub(crate) fn new(parts: &'a [&'a Value]) -> Self {
        Self { parts, sections: HashMap::new() }
    }

    /// Records a member of the document.
    pub(crate) fn record(&mut self, section: &'static str, name: &str, item: &Value) {
        let is_compared = SHARED.contains(&section)
            && self.parts.iter().any(|part| part[section].get(name).is_some());
        let digest = is_compared.then(|| digest(item));
        self.sections.entry(section).or_default().insert(name.to_owned(), digest);
    }

    /// Records a server's part and returns the members that it adds. Existing paths win. An added definition whose name
    /// exists with another content is renamed.
    pub(crate) fn merge(&mut self, part: &Value) -> Vec<AddedMember> {
        let renamed = self.renamed(part);
        let mut added = Vec::new();
        for section in SHARED.into_iter().chain(["paths"]) {
            let prefix = format!("#/{section}/");
            for (name, item) in part[section].as_object().into_iter().flatten() {
                let called = renamed.get(&format!("{prefix}{name}"));
                let name = called.and_then(|n| n.strip_prefix(&prefix)).unwrap_or(name);
                if self.known(section, name).is_some() {
                    continue;
                }
                let mut item = item.clone();
                rename(&mut item, &renamed);
                self.record(section, name, &item);
                added.push(AddedMember { section, name: name.to_owned(), item });
            }
        }
        added
    }

    /// Returns the references that change, and their replacements.
    fn renamed(&self, part: &Value) -> BTreeMap<String, String> {
        let mut renamed = BTreeMap::new();
        for section in SHARED {
            for (name, item) in part[section].as_object().into_iter().flatten() {
                let Some(known) = self.known(section, name) else { continue };
                if *known == Some(digest(item)) {
                    continue;
                }
                let mut names = (2..).map(|n| format!("{name}_v{n}"));
                // The part may have a definition of that name, too.
                let is_fresh = |name: &String| {
                    self.known(section, name).is_none() && part[section].get(name).is_none()
                };
                let fresh = names.find(is_fresh);
                let old = format!("#/{section}/{name}");
                renamed.extend(fresh.map(|fresh| (old, format!("#/{section}/{fresh}"))));
            }
        }
        renamed
    }

    fn known(&self, section: &str, name: &str) -> Option<&Option<Digest>> {
        self.sections.get(section)?.get(name)
    }
}

/// Returns the digest of a value. Equal values have equal digests, because members of objects are sorted.
fn digest(item: &Value) -> Digest {
    Sha256::digest(item.to_string()).into()
}

fn rename(tree: &mut Value, renamed: &BTreeMap<String, String>) {
    let mut open = vec![tree];
    while let Some(tree) = open.pop() {
        match tree {
            Value::Object(members) => {
                if let Some(Value::String(target)) = members.get_mut("$ref")
                    && let Some(fresh) = renamed.get(target.as_str())
                {
                    target.clone_from(fresh);
                }
                open.extend(members.values_mut());
            }
            Value::Array(items) => open.extend(items),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Merges a part into a document.
    fn merge(document: &Value, part: &Value) -> Vec<AddedMember> {
        let parts = [part];
        let mut index = MemberIndex::new(&parts);
        for section in ["definitions", "parameters", "paths"] {
            for (name, item) in document[section].as_object().into_iter().flatten() {
                index.record(section, name, item);
            }
        }
        index.merge(part)
    }

    #[test]
    fn renames_added_definitions_whose_names_are_taken() {
        let document = json!({
            "paths": {"/version": {}},
            "definitions": {"Meta": {"type": "string"}, "Meta_v2": {"type": "number"}},
        });
        let reference = |name: &str| json!({"$ref": format!("#/definitions/{name}")});
        let part = json!({
            "paths": {"/apis/g.example.com/v1/things": {"get": {"schema": reference("Thing")}}},
            "definitions": {
                "Meta": {"type": "object"},
                "Thing": {"properties": {"meta": reference("Meta"), "self": reference("Thing")}},
            },
            "parameters": {"p": {"in": "query"}},
        });
        let member =
            |section, name: &str, item| AddedMember { section, name: name.to_owned(), item };
        let thing =
            json!({"properties": {"meta": reference("Meta_v3"), "self": reference("Thing")}});
        let get = json!({"get": {"schema": reference("Thing")}});
        let wanted = [
            member("definitions", "Meta_v3", json!({"type": "object"})),
            member("definitions", "Thing", thing),
            member("parameters", "p", json!({"in": "query"})),
            member("paths", "/apis/g.example.com/v1/things", get),
        ];
        assert_eq!(merge(&document, &part), wanted);
    }

    #[test]
    fn renames_to_names_that_the_part_does_not_use() {
        let document =
            json!({"definitions": {"Thing": {"type": "string"}, "Thing_v2": {"type": "number"}}});
        let reference = json!({"$ref": "#/definitions/Thing_v3"});
        let part = json!({"definitions": {
            "Thing": {"properties": {"real": reference}},
            "Thing_v3": {"type": "object"},
        }});
        let member =
            |name: &str, item| AddedMember { section: "definitions", name: name.to_owned(), item };
        let wanted = [
            member("Thing_v4", json!({"properties": {"real": reference}})),
            member("Thing_v3", json!({"type": "object"})),
        ];
        assert_eq!(merge(&document, &part), wanted);
    }

    #[test]
    fn keeps_existing_paths_and_shares_equal_definitions() {
        let document =
            json!({"paths": {"/version": {}}, "definitions": {"Meta": {"type": "object"}}});
        let part = json!({"paths": {"/version": {"get": {}}}, "definitions": {"Meta": {"type": "object"}}});
        assert_eq!(merge(&document, &part), []);
    }
}
