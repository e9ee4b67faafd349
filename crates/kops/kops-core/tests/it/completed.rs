//! Tests of completed specs against upstream's goldens.

use api_meta::Tree as _;
use kops_api::{Kind, Object, VersionName, is_ours, validate_group, yaml};
use kops_core::{Machines, complete};
use serde_json::Value;

use crate::{
    golden::{difference, read, source},
    mock::{COMPLETED, assert_missed, cases, world},
};

/// Cases whose completed spec differs from upstream's, with the reason.
const MISSED: &[(&str, &str)] = &[];

/// Fields of inputs that v1alpha2 does not have: case, kind, field of the spec or of its etcd clusters. Upstream drops
/// them, but we reject them, so the test removes them.
const UNKNOWN: &[(&str, &str, &str)] = &[
    ("complex", "Cluster", "serviceOIDCProvider"),
    ("minimal_gce_plb", "Cluster", "type"),
    ("minimal_gce_plb", "Cluster", "volumeIops"),
    ("minimal_gce_plb", "Cluster", "volumeSize"),
    ("minimal_gce_plb", "Cluster", "volumeThroughput"),
    ("minimal_gce_plb", "InstanceGroup", "rootVolume"),
];

/// Removes the fields listed for a case, and checks that they were rejected.
fn without_unknown(case: &str, tree: &mut Value) {
    let kind = tree.text("kind").to_owned();
    // This case is another one's with dedicated API servers.
    let case = case.trim_end_matches("_apiserver");
    let listed = UNKNOWN.iter().filter(|(name, of, _)| *name == case && *of == kind);
    let refused = Object::from_tree("golden", tree.clone());
    let refused = refused.err().map(|e| e.to_string()).unwrap_or_default();
    for (_, _, field) in listed {
        assert!(
            kind != "Cluster" || refused.contains(&format!("{field}: Forbidden: unknown field")),
            "{case} {field}: {refused}"
        );
        tree.remove(&format!("spec.{field}"));
        let clusters = tree.at_mut("spec.etcdClusters").and_then(Value::as_array_mut);
        clusters.into_iter().flatten().for_each(|etcd| drop(etcd.remove(field)));
    }
}

pub(crate) fn objects(case: &str, text: &str) -> Result<Vec<Object>, kops_api::Error> {
    let mut objects = Vec::new();
    for mut tree in yaml::parse_all(case, text)? {
        without_unknown(case, &mut tree);
        if is_ours(&tree) {
            objects.push(Object::from_tree("golden", tree)?);
        }
    }
    Ok(objects)
}

/// Fills in a group's image, as the channel would.
fn with_image(group: &Object) -> Object {
    let mut group = group.clone();
    group.spec.put_default("image", "ami-12345678");
    group
}

fn completed(case: &str, input: &str) -> Result<String, String> {
    let mut objects = objects(case, input).map_err(|e| e.to_string())?;
    let at = objects.iter().position(|o| o.kind == Kind::Cluster).ok_or("no cluster")?;
    let cluster = objects.remove(at);
    let world = world(cluster.spec.has("cloudProvider.gce"));
    // Specs that upstream accepts must not be rejected.
    for group in objects.iter().filter(|object| object.kind == Kind::InstanceGroup) {
        let refused = validate_group(&with_image(group), Some(&cluster));
        assert!(refused.is_empty(), "{case} {}: {refused:?}", group.name());
    }
    let completed = complete(&cluster, &objects, &world, &Machines::default());
    Ok(completed.map_err(|e| e.to_string())?.to_yaml(VersionName::V1alpha2))
}

#[test]
fn completes_specs_as_upstream_does() {
    let Some(source) = source() else { return };
    let (mut missed, mut count) = (Vec::new(), 0);
    for (name, case) in cases(&source) {
        count += 1;
        let why = match completed(&name, &read(&case.join("in-v1alpha2.yaml"))) {
            Ok(ours) => difference(&ours, &read(&case.join(COMPLETED))),
            Err(error) => Some(error),
        };
        missed.extend(why.map(|why| (name, why)));
    }
    assert_missed("completed specs", count, &missed, MISSED);
}
