//! The bill of materials of a release: the crates in the binary, in CycloneDX 1.6.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use serde_json::{Value, json};

use super::release::Release;
use crate::{
    build::{Tree, host},
    error::{During, Result},
    file::{read, write},
    run::{cargo, output},
};

/// Writes `windlass.cdx.json`.
pub(super) fn build(tree: &Tree, out: &Path, release: &Release<'_>) -> Result<()> {
    let mut command = cargo(["metadata", "--locked", "--format-version", "1", "--filter-platform"]);
    let metadata = output(command.arg(host()?).current_dir(&tree.root))?;
    let metadata =
        serde_json::from_str(&metadata).during("parsing the output of", "cargo metadata")?;
    let checksums = checksums(&read(&tree.root.join("Cargo.lock"))?);
    let text = serde_json::to_string_pretty(&document(&metadata, &checksums, release));
    write(&out.join("windlass.cdx.json"), text.during("writing", "the bill of materials")?)
}

/// Returns the checksums in a Cargo.lock by name and version.
fn checksums(lock: &str) -> BTreeMap<(String, String), String> {
    let value = |entry: &str, key: &str| {
        let line = entry.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = \""))?;
        Some(line.trim_end_matches('"').to_owned())
    };
    let entry = |entry: &str| {
        Some(((value(entry, "name")?, value(entry, "version")?), value(entry, "checksum")?))
    };
    lock.split("[[package]]").filter_map(entry).collect()
}

fn document(
    metadata: &Value,
    checksums: &BTreeMap<(String, String), String>,
    release: &Release<'_>,
) -> Value {
    let linked = linked(metadata);
    let packages = array(&metadata["packages"]);
    let mut components: Vec<Value> = packages
        .iter()
        .filter(|package| linked.contains(text(&package["id"])))
        .map(|package| component(package, checksums))
        .collect();
    components.sort_by_key(|component| component["bom-ref"].to_string());
    json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": release.commit.date,
            "component": {
                "type": "application",
                "bom-ref": "windlass",
                "name": "windlass",
                "version": release.version,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
                "properties": [{"name": "windlass:commit", "value": release.commit.hash}],
            },
        },
        "components": components,
    })
}

/// Returns the ids of the packages that the binary is linked with: all that it depends on, except for those that only
/// build scripts, macros or tests use.
fn linked(metadata: &Value) -> BTreeSet<&str> {
    let nodes: BTreeMap<&str, &Value> =
        array(&metadata["resolve"]["nodes"]).iter().map(|node| (text(&node["id"]), node)).collect();
    let packages = array(&metadata["packages"]);
    let is_macro = |package: &&Value| {
        let mut targets = array(&package["targets"]).iter();
        targets.any(|target| array(&target["kind"]).contains(&"proc-macro".into()))
    };
    let macros: BTreeSet<&str> =
        packages.iter().filter(is_macro).map(|package| text(&package["id"])).collect();
    let start = packages.iter().find(|package| package["name"] == "windlass");
    let mut linked = BTreeSet::new();
    let mut next: Vec<&str> = start.map(|package| text(&package["id"])).into_iter().collect();
    while let Some(id) = next.pop() {
        if macros.contains(id) || !linked.insert(id) {
            continue;
        }
        let dependencies = nodes.get(id).map_or(&[][..], |node| array(&node["deps"]));
        let normal = dependencies.iter().filter(|dependency| {
            array(&dependency["dep_kinds"]).iter().any(|kind| kind["kind"].is_null())
        });
        next.extend(normal.map(|dependency| text(&dependency["pkg"])));
    }
    linked
}

fn component(package: &Value, checksums: &BTreeMap<(String, String), String>) -> Value {
    let (name, version) = (text(&package["name"]), text(&package["version"]));
    let mut component = json!({
        "type": "library",
        "bom-ref": format!("pkg:cargo/{name}@{version}"),
        "name": name,
        "version": version,
        "purl": format!("pkg:cargo/{name}@{version}"),
    });
    if let Some(license) = package["license"].as_str() {
        // Older crates separate alternatives by a slash, which SPDX does not know.
        component["licenses"] = json!([{"expression": license.replace('/', " OR ")}]);
    }
    if let Some(checksum) = checksums.get(&(name.to_owned(), version.to_owned())) {
        component["hashes"] = json!([{"alg": "SHA-256", "content": checksum}]);
    }
    component
}

fn array(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::Commit;

    #[test]
    fn lists_linked_crates_with_license_and_checksum() {
        let package = |name: &str, kind: &str| {
            json!({"id": name, "name": name, "version": "1.0.0", "license": "MIT/Apache-2.0",
                   "targets": [{"kind": [kind]}]})
        };
        let needs = |id: &str, kind: Value| json!({"pkg": id, "dep_kinds": [{"kind": kind}]});
        let metadata = json!({
            "packages": [
                package("windlass", "bin"), package("tokio", "lib"), package("derive", "proc-macro"),
                package("cc", "lib"), package("proptest", "lib"), package("alone", "lib"),
            ],
            "resolve": {"nodes": [
                {"id": "windlass", "deps": [
                    needs("tokio", Value::Null), needs("derive", Value::Null), needs("cc", "build".into()),
                    needs("proptest", "dev".into()),
                ]},
                {"id": "tokio", "deps": [needs("windlass", Value::Null)]},
            ]},
        });
        let lock = "version = 4\n\n[[package]]\nname = \"tokio\"\nversion = \"1.0.0\"\nsource = \"registry\"\nchecksum = \
                    \"0123\"\n\n[[package]]\nname = \"windlass\"\nversion = \"1.0.0\"\n";
        let commit =
            Commit { hash: "abc".into(), date: "2026-01-02T03:04:05Z".into(), epoch: "1".into() };
        let release =
            Release { version: "1.36.2+windlass.1".into(), architecture: "amd64", commit: &commit };
        let document = document(&metadata, &checksums(lock), &release);
        let components = document["components"].as_array().unwrap();
        let names: Vec<_> = components.iter().map(|component| text(&component["name"])).collect();
        assert_eq!(names, ["tokio", "windlass"]);
        assert_eq!(components[0]["hashes"][0]["content"], "0123");
        assert_eq!(components[0]["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(document["metadata"]["component"]["version"], "1.36.2+windlass.1");
    }
}
