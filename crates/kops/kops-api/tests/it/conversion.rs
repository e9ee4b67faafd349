use kops_api::{Object, VersionName, yaml};

use crate::golden::{difference, read, source};

/// kOps' pairs: the same objects in both versions.
const PAIRS: [&str; 7] = ["aws", "azure", "cilium", "do", "gce", "minimal", "openstack"];

fn convert(text: &str, version: VersionName) -> String {
    let objects = Object::read_all("golden", text).unwrap_or_else(|e| panic!("{e}"));
    let written: Vec<_> = objects.iter().map(|object| object.to_yaml(version)).collect();
    written.join("\n---\n\n").trim().to_owned()
}

#[test]
fn converts_kops_pairs_both_ways() {
    let Some(source) = source() else { return };
    let mut missed = Vec::new();
    for pair in PAIRS {
        let file =
            |version| source.join(format!("tests/integration/conversion/{pair}/{version}.yaml"));
        let (old, new) = (read(&file("v1alpha2")), read(&file("v1alpha3")));
        for (from, to, version) in
            [(&old, &new, VersionName::V1alpha3), (&new, &old, VersionName::V1alpha2)]
        {
            let difference = difference(&convert(from, version), to.trim());
            missed.extend(difference.map(|d| format!("{pair} to {version:?} {d}")));
        }
    }
    assert_none_missed("converted documents", 2 * PAIRS.len(), &missed);
}

#[test]
fn kops_documents_round_trip() {
    let Some(source) = source() else { return };
    let mut missed = Vec::new();
    let mut count = 0;
    for set in ["create_cluster", "update_cluster"] {
        let set = source.join("tests/integration").join(set);
        for case in std::fs::read_dir(set).unwrap() {
            let case = case.unwrap().path();
            for name in
                ["expected-v1alpha2.yaml", "data/aws_s3_object_cluster-completed.spec_content"]
            {
                let path = case.join(name);
                let Ok(text) = std::fs::read_to_string(&path) else { continue };
                for document in api_codec::yaml_documents(&text).unwrap() {
                    count += 1;
                    let tree = api_codec::from_yaml(document.as_bytes()).unwrap();
                    let plain = difference(yaml::to_string(&tree).trim(), document.trim());
                    let object = Object::from_tree("golden", tree);
                    let typed = match object {
                        Ok(object) => difference(
                            object.to_yaml(VersionName::V1alpha2).trim(),
                            document.trim(),
                        ),
                        Err(error) => Some(error.to_string()),
                    };
                    missed.extend(plain.or(typed).map(|d| format!("{}: {d}", path.display())));
                }
            }
        }
    }
    assert_none_missed("documents read and written", count, &missed);
}

fn assert_none_missed(family: &str, count: usize, missed: &[String]) {
    eprintln!("{family}: {} of {count}", count - missed.len());
    assert!(missed.is_empty(), "{family}: {} missed:\n{}", missed.len(), missed.join("\n\n"));
}
