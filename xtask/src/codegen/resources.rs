//! Extracts the resources that a server serves, by default and on demand, from its discovery documents.
//!
//! Each resource and subresource is a line, in discovery's order: `group TAB version TAB name TAB singular TAB kind TAB
//! scope TAB verbs TAB short names TAB categories TAB storage version hash`. The kind is written as
//! `group/version/Kind` if its group or version differs from the resource's.

use std::{collections::BTreeSet, fmt::Write as _, path::Path};

use serde_json::Value;

use crate::{error::Result, file};

/// Returns the resources that a server serves by default.
pub(super) fn facts(import: &Path) -> Result<String> {
    let dir = import.join("golden/apiserver");
    let mut out = String::from("# Written by `cargo xtask codegen --import`.\n");
    let core = file::read_json(&dir.join("resources_api_v1.json"))?;
    group_version(&mut out, "", "v1", &core);
    for (group, version) in versions(&dir)? {
        let list = file::read_json(&dir.join(format!("resources_apis_{group}_{version}.json")))?;
        group_version(&mut out, &group, &version, &list);
    }
    Ok(out)
}

/// Returns the resources of the versions that a server serves only on demand.
pub(super) fn on_demand(import: &Path) -> Result<String> {
    let by_default: BTreeSet<_> = versions(&import.join("golden/apiserver"))?.into_iter().collect();
    let dir = import.join("discovery");
    let mut out = String::from(
        "# Written by `cargo xtask codegen --import`: the versions that are served on demand.\n",
    );
    let all = versions(&dir)?.into_iter();
    for (group, version) in all.filter(|version| !by_default.contains(version)) {
        let list = file::read_json(&dir.join(format!("apis__{group}__{version}.json")))?;
        group_version(&mut out, &group, &version, &list);
    }
    Ok(out)
}

/// Returns the groups and versions of `/apis`, in its order.
fn versions(dir: &Path) -> Result<Vec<(String, String)>> {
    let groups = file::read_json(&dir.join("apis.json"))?;
    let text = |value: &Value, name: &str| value[name].as_str().unwrap_or_default().to_owned();
    let of_group = |group: &Value| -> Vec<(String, String)> {
        let versions = group["versions"].as_array().into_iter().flatten();
        versions.map(|version| (text(group, "name"), text(version, "version"))).collect()
    };
    Ok(groups["groups"].as_array().into_iter().flatten().flat_map(of_group).collect())
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
