//! The table of the builders' defaults, `facts/defaults.tsv`.
//!
//! A line without a tab names a builder. Its rows have conditions that must all hold, a path in the hub version's spec,
//! and a value. `=` before a path overwrites an existing value; otherwise the value is set only if the path is unset.
//! `*` stands for both kubelet configurations. A value of `null` removes the field.
//!
//! Conditions: `has:PATH`, `is:PATH` (true), `text:PATH=TEXT`, `cloud:NAME`, `bare` (no cloud), `ipv4`, `ipv6`,
//! `k8s<1.34` (the control plane's version; `>=` and `=` likewise), `node<1.34` (the kubelets' version). `!` before a
//! condition negates it.

use std::sync::LazyLock;

use api_meta::Tree as _;
use kops_api::Object;
use serde_json::Value;

use super::context::BuildContext;
use crate::{cluster::Cluster, version::Version};

const FACTS: &str = include_str!("../../facts/defaults.tsv");

struct Row {
    builder: &'static str,
    conditions: Vec<&'static str>,
    paths: Vec<String>,
    over: bool,
    value: Value,
}

static ROWS: LazyLock<Vec<Row>> = LazyLock::new(|| parse(FACTS));

fn parse(facts: &'static str) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut builder = "";
    for line in facts.lines().filter(|line| !line.starts_with('#')) {
        let Some(row) = line.strip_prefix('\t') else {
            builder = line;
            continue;
        };
        let [conditions, path, value] = row.split('\t').collect::<Vec<_>>()[..] else { continue };
        let (path, over) = path.strip_prefix('=').map_or((path, false), |path| (path, true));
        let paths = match path.strip_prefix("*.") {
            Some(field) => vec![format!("kubelet.{field}"), format!("controlPlaneKubelet.{field}")],
            None => vec![path.to_owned()],
        };
        rows.push(Row {
            builder,
            conditions: conditions.split(' ').filter(|c| *c != "-").collect(),
            paths,
            over,
            value: serde_json::from_str(value).unwrap_or_default(),
        });
    }
    rows
}

/// Applies the rows of a builder.
pub(super) fn fill(cluster: &mut Object, context: &BuildContext, builder: &str) {
    for row in ROWS.iter().filter(|row| row.builder == builder) {
        if !row.conditions.iter().all(|condition| holds(condition, cluster, context)) {
            continue;
        }
        for path in &row.paths {
            match (&row.value, row.over) {
                (Value::Null, _) => drop(cluster.spec.remove(path)),
                (value, true) => cluster.spec.put(path, value.clone()),
                (value, false) if is_unset(&cluster.spec, path) => {
                    cluster.spec.put(path, value.clone())
                }
                _ => {}
            }
        }
    }
}

fn is_unset(spec: &Value, path: &str) -> bool {
    match spec.at(path) {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

fn holds(condition: &str, cluster: &Object, context: &BuildContext) -> bool {
    if let Some(opposite) = condition.strip_prefix('!') {
        return !holds(opposite, cluster, context);
    }
    let (word, rest) = condition.split_once(':').unwrap_or((condition, ""));
    match word {
        "has" => cluster.spec.has(rest),
        "is" => cluster.spec.flag(rest),
        "text" => rest.split_once('=').is_some_and(|(path, text)| cluster.spec.text(path) == text),
        "cloud" => cluster.cloud().word() == rest,
        "bare" => cluster.cloud().is_bare(),
        "ipv4" => !cluster.is_ipv6_only(),
        "ipv6" => cluster.is_ipv6_only(),
        _ => version_holds(condition, context).unwrap_or(false),
    }
}

fn version_holds(condition: &str, context: &BuildContext) -> Option<bool> {
    let (version, rest) = match condition.strip_prefix("node") {
        Some(rest) => (&context.node, rest),
        None => (&context.control_plane, condition.strip_prefix("k8s")?),
    };
    let at = rest.find(|c: char| c.is_ascii_digit())?;
    let (operator, minor) = rest.split_at(at);
    let bound: Version = minor.parse().ok()?;
    let before = version.is_before(bound.minor);
    match operator {
        "<" => Some(before),
        ">=" => Some(!before),
        "=" => Some(!before && version.is_before(bound.minor + 1)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use kops_api::{Kind, has_field};

    use super::*;
    use crate::world::World;

    #[test]
    fn every_row_parses_and_names_existing_fields() {
        let lines = FACTS.lines().filter(|line| line.starts_with('\t')).count();
        assert_eq!(ROWS.len(), lines);
        for row in ROWS.iter() {
            for path in &row.paths {
                assert!(has_field(Kind::Cluster, &format!("spec.{path}")), "{path}");
            }
            for condition in &row.conditions {
                let plain = condition.trim_start_matches('!');
                let (word, rest) = plain.split_once(':').unwrap_or((plain, ""));
                let path = rest.split_once('=').map_or(rest, |(path, _)| path);
                let known = match word {
                    "has" | "is" | "text" => has_field(Kind::Cluster, &format!("spec.{path}")),
                    "cloud" => ["aws", "gce", "azure"].contains(&rest),
                    "bare" | "ipv4" | "ipv6" => true,
                    _ => {
                        let version = Version::release(1, 34);
                        let world = World::default();
                        let known = BuildContext {
                            node: version.clone(),
                            control_plane: version,
                            world: &world,
                        };
                        version_holds(plain, &known).is_some()
                    }
                };
                assert!(known, "{condition}");
            }
        }
        assert!(ROWS.iter().filter(|row| !row.over).all(|row| !row.value.is_null()));
    }
}
