//! Merges the aggregated discovery of peers into that of this server, as upstream does. The order of each server is
//! kept. A resource of several servers has the verbs and subresources of all of them.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use api_meta::Tree as _;
use serde_json::{Value, json};

use crate::aggregation::fetch::DiscoveredVersion;

/// Adds the groups of a peer to those of this server and of other peers.
pub(super) fn add_peer(groups: &mut Vec<Value>, served: &[DiscoveredVersion], fresh: bool) {
    let freshness = if fresh { "Current" } else { "Stale" };
    let mut theirs: Vec<Value> = Vec::new();
    for version in served.iter().filter(|version| !version.group.is_empty()) {
        let shown = json!({
            "version": version.version, "resources": version.resources, "freshness": freshness,
        });
        match theirs.last_mut().filter(|group| *group.at("metadata.name") == *version.group) {
            Some(group) => push(group, "versions", shown),
            None => theirs.push(json!({
                "metadata": {"name": version.group, "creationTimestamp": null}, "versions": [shown],
            })),
        }
    }
    add(groups, theirs, |group| group.text("metadata.name"), add_versions);
}

fn add_versions(group: &mut Value, mut theirs: Value) {
    let versions = list(&mut theirs, "versions");
    let mut merged = list(group, "versions");
    add(&mut merged, versions, |version| version.text("version"), add_resources);
    group.put(&["versions"], merged);
}

fn add_resources(version: &mut Value, mut theirs: Value) {
    let resources = list(&mut theirs, "resources");
    let mut merged = list(version, "resources");
    add(&mut merged, resources, |resource| resource.text("resource"), add_capabilities);
    version.put(&["resources"], merged);
}

/// Adds the verbs and subresources of another server's resource. Both become sorted if something is added.
fn add_capabilities(resource: &mut Value, mut theirs: Value) {
    let mut verbs: BTreeSet<String> = resource.texts("verbs").map(str::to_owned).collect();
    let before = verbs.len();
    verbs.extend(theirs.texts("verbs").map(str::to_owned));
    if verbs.len() > before {
        resource.put(&["verbs"], json!(verbs));
    }
    let name = |subresource: &Value| subresource.text("subresource").to_owned();
    let ours = list(resource, "subresources");
    let mut all: BTreeMap<String, Value> = ours.iter().map(|s| (name(s), s.clone())).collect();
    let before = all.len();
    for subresource in list(&mut theirs, "subresources") {
        all.entry(name(&subresource)).or_insert(subresource);
    }
    let merged = if all.len() > before { all.into_values().collect() } else { ours };
    if !merged.is_empty() {
        resource.put(&["subresources"], merged);
    }
}

/// Merges two lists by the names of their items. Items that only `theirs` has follow the item that they follow in
/// `theirs`.
fn add(
    ours: &mut Vec<Value>,
    theirs: Vec<Value>,
    name: impl Fn(&Value) -> &str,
    combine: impl Fn(&mut Value, Value),
) {
    let places: HashMap<String, usize> =
        ours.iter().enumerate().map(|(place, item)| (name(item).to_owned(), place)).collect();
    // New items by the place that they follow; 0 is the start.
    let mut new: BTreeMap<usize, Vec<Value>> = BTreeMap::new();
    let mut known: BTreeSet<String> = BTreeSet::new();
    let mut after = 0;
    for item in theirs {
        if let Some(place) = places.get(name(&item)) {
            after = place + 1;
            combine(&mut ours[*place], item);
        } else if known.insert(name(&item).to_owned()) {
            new.entry(after).or_default().push(item);
        }
    }
    if new.is_empty() {
        return;
    }
    let mut merged = new.remove(&0).unwrap_or_default();
    for (place, item) in std::mem::take(ours).into_iter().enumerate() {
        merged.push(item);
        merged.extend(new.remove(&(place + 1)).unwrap_or_default());
    }
    *ours = merged;
}

/// Takes a list out of an object. It is empty if the object has none.
fn list(object: &mut Value, member: &str) -> Vec<Value> {
    match object.get_mut(member).map(Value::take) {
        Some(Value::Array(items)) => items,
        _ => Vec::new(),
    }
}

fn push(object: &mut Value, member: &str, item: Value) {
    if let Some(items) = object.get_mut(member).and_then(Value::as_array_mut) {
        items.push(item);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::Instant;

    use super::*;

    fn group(name: &str, versions: Value) -> Value {
        json!({"metadata": {"name": name}, "versions": versions})
    }

    fn discovered(group: &str, version: &str, resources: Value) -> DiscoveredVersion {
        let resources = resources.as_array().unwrap().clone();
        DiscoveredVersion { group: group.into(), version: version.into(), resources }
    }

    fn shown(groups: &[Value]) -> Vec<String> {
        let of = |group: &Value| {
            let versions = group.items("versions").iter().map(|v| {
                let names = v.items("resources").iter().map(|r| r.text("resource"));
                format!("{}={}", v.text("version"), names.collect::<Vec<_>>().join(","))
            });
            let versions: Vec<String> = versions.collect();
            format!("{}: {}", group.text("metadata.name"), versions.join(" "))
        };
        groups.iter().map(of).collect()
    }

    #[test]
    fn keeps_order_of_all_servers() {
        let resource = |name: &str| json!({"resource": name, "verbs": ["get"]});
        let mut groups = vec![
            group("apps", json!([{"version": "v1", "resources": [resource("a"), resource("c")]}])),
            group("batch", json!([{"version": "v1beta1", "resources": [resource("jobs")]}])),
        ];
        let theirs = [
            discovered("", "v1", json!([resource("pods")])),
            discovered("apps", "v1", json!([resource("a"), resource("b"), resource("c")])),
            discovered("new", "v1", json!([resource("x")])),
            discovered("batch", "v1", json!([resource("jobs")])),
            discovered("batch", "v1beta1", json!([resource("jobs")])),
            discovered("newer", "v1", json!([])),
        ];
        add_peer(&mut groups, &theirs, true);
        let wanted = ["apps: v1=a,b,c", "new: v1=x", "batch: v1=jobs v1beta1=jobs", "newer: v1="];
        assert_eq!(shown(&groups), wanted);
        let once = groups.clone();
        add_peer(&mut groups, &theirs, true);
        assert_eq!(groups, once);
    }

    #[test]
    fn unites_verbs_and_subresources() {
        let ours =
            json!({"resource": "jobs", "verbs": ["update", "get"], "singularResource": "job"});
        let mut groups = vec![group("batch", json!([{"version": "v1", "resources": [ours]}]))];
        let same = [discovered("batch", "v1", json!([{"resource": "jobs", "verbs": ["get"]}]))];
        let before = groups.clone();
        add_peer(&mut groups, &same, true);
        assert_eq!(groups, before);
        let more = json!([{"resource": "jobs", "singularResource": "other", "verbs": ["list"],
            "subresources": [{"subresource": "status", "verbs": ["get"]}]}]);
        add_peer(&mut groups, &[discovered("batch", "v1", more)], true);
        let wanted = json!({"resource": "jobs", "singularResource": "job", "verbs": ["get", "list", "update"],
            "subresources": [{"subresource": "status", "verbs": ["get"]}]});
        assert_eq!(groups[0]["versions"][0]["resources"][0], wanted);
    }

    #[test]
    fn merges_large_documents_in_linear_time() {
        let time = |count: usize| {
            let many = |from: usize| -> Vec<DiscoveredVersion> {
                let names = (from..from + count).map(|n| format!("g{n}.example.com"));
                names.map(|name| discovered(&name, "v1", json!([]))).collect()
            };
            let peers = [0, count / 2, count * 3 / 2].map(many);
            let (mut groups, start) = (Vec::new(), Instant::now());
            for peer in &peers {
                add_peer(&mut groups, peer, false);
            }
            let took = start.elapsed();
            assert_eq!(groups.len(), count * 5 / 2);
            took
        };
        let small = time(2000).max(Duration::from_millis(5));
        assert!(time(20_000) < small * 60);
    }
}
