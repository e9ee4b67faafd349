//! Extracts the resources that a server serves by default from its discovery documents.
//!
//! Each resource and subresource is a line, in discovery's order: `group TAB version TAB name TAB singular TAB kind TAB
//! scope TAB verbs TAB short names TAB categories TAB storage version hash`. The kind is written as
//! `group/version/Kind` if its group or version differs from the resource's.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::Value;

use crate::{error::Result, file};

pub(super) fn facts(import: &Path) -> Result<String> {
    let dir = import.join("golden/apiserver");
    let mut out = String::from("# Written by `cargo xtask codegen --import`.\n");
    let core = file::read_json(&dir.join("resources_api_v1.json"))?;
    group_version(&mut out, "", "v1", &core);
    let groups = file::read_json(&dir.join("apis.json"))?;
    for group in groups["groups"].as_array().into_iter().flatten() {
        let name = group["name"].as_str().unwrap_or_default();
        for version in group["versions"].as_array().into_iter().flatten() {
            let version = version["version"].as_str().unwrap_or_default();
            let list = file::read_json(&dir.join(format!("resources_apis_{name}_{version}.json")))?;
            group_version(&mut out, name, version, &list);
        }
    }
    Ok(out)
}

fn group_version(out: &mut String, group: &str, version: &str, list: &Value) {
    for resource in list["resources"].as_array().into_iter().flatten() {
        let text = |key: &str| resource[key].as_str().unwrap_or_default();
        let words = |key: &str| {
            let words = resource[key].as_array().into_iter().flatten().filter_map(Value::as_str);
            words.collect::<Vec<_>>().join(",")
        };
        let kind = match resource["version"].as_str() {
            Some(other) => format!("{}/{other}/{}", text("group"), text("kind")),
            None => text("kind").to_owned(),
        };
        let scope = if resource["namespaced"] == true { "namespaced" } else { "cluster" };
        let _ = writeln!(
            out,
            "{group}\t{version}\t{}\t{}\t{kind}\t{scope}\t{}\t{}\t{}\t{}",
            text("name"),
            text("singularName"),
            words("verbs"),
            words("shortNames"),
            words("categories"),
            text("storageVersionHash"),
        );
    }
}
