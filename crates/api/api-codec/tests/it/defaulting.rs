//! Compares the constant defaults of the facts with those that upstream's server set in minimal objects.

use std::fs;

use api_codec::{from_yaml, protobuf};
use api_schema::{Fill, Schema, decode_value};
use serde_json::Value;

/// The fields that the server sets by rule, admission or strategy, never by a constant.
const BY_RULE: [&str; 39] = [
    ".metadata.",
    ".labels",
    ".apiVersion",
    ".kind",
    ".imagePullPolicy",
    ".requests",
    ".volumeMounts",
    "Pod.spec.enableServiceLinks",
    "Pod.spec.preemptionPolicy",
    "Pod.spec.priority",
    "Pod.spec.serviceAccount",
    "Pod.spec.tolerations",
    "Pod.status",
    ".targetPort",
    ".nodePort",
    "Service.spec",
    "StatefulSet.spec.updateStrategy.type",
    "PersistentVolume.status",
    "Controller.spec.selector",
    "LimitRange.spec.limits",
    "Secret.data",
    ".rollingUpdate",
    "Job.spec.backoffLimit",
    "Job.spec.completionMode",
    "Job.spec.completions",
    "Job.spec.manualSelector",
    "Job.spec.parallelism",
    "Job.spec.podReplacementPolicy",
    "Job.spec.selector",
    "Job.spec.suspend",
    "HorizontalPodAutoscaler.spec.metrics",
    "HorizontalPodAutoscaler.status.currentMetrics",
    "NetworkPolicy.spec.policyTypes",
    "RoleBinding.subjects[0].apiGroup",
    "CustomResourceDefinition.spec.names",
    "CustomResourceDefinition.status",
    "CertificateSigningRequest.spec",
    // The recording read the YAML 1.1 key `n` as a boolean.
    ".properties.false",
    ".properties.n",
];

#[test]
fn sets_same_constant_defaults_as_upstream() {
    let Some(dir) = super::reference().map(|dir| dir.join("golden/defaulting")) else { return };
    let read = |name: &str| -> Vec<Value> {
        let text = fs::read_to_string(dir.join(name)).unwrap();
        text.split("\n---\n").map(|document| from_yaml(document.as_bytes()).unwrap()).collect()
    };
    let (minimal, golden) = (read("minimal.yaml"), read("defaulted.yaml"));
    let schema = Schema::builtin();
    let (mut wrong, mut missing) = (Vec::new(), Vec::new());
    for given in minimal {
        let (kind, name) = (&given["kind"], &given["metadata"]["name"]);
        let found = golden.iter().find(|g| g["kind"] == *kind && g["metadata"]["name"] == *name);
        let Some(golden) = found else { continue };
        let (group, version) = protobuf::group_version(given["apiVersion"].as_str().unwrap());
        let node = schema.kind(group, version, kind.as_str().unwrap()).unwrap();
        let root = kind.as_str().unwrap().to_owned();
        let ours = decode_value(schema, node, given, Fill::Defaults).unwrap().value;
        compare(&root, &ours, golden, &mut wrong, &mut missing);
    }
    // Write-only: the server moves it to `data`.
    wrong.retain(|w| !w.starts_with("Secret.stringData"));
    wrong.append(&mut missing);
    wrong.retain(|w| !BY_RULE.iter().any(|rule| w.contains(rule)));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn compare(
    path: &str,
    ours: &Value,
    golden: &Value,
    wrong: &mut Vec<String>,
    missing: &mut Vec<String>,
) {
    match (ours, golden) {
        (Value::Object(a), Value::Object(b)) => {
            for (key, value) in a {
                match b.get(key) {
                    Some(other) => compare(&format!("{path}.{key}"), value, other, wrong, missing),
                    None => wrong.push(format!("{path}.{key}: {value} is not upstream's")),
                }
            }
            missing.extend(
                b.iter()
                    .filter(|(key, _)| !a.contains_key(*key))
                    .map(|(key, v)| format!("{path}.{key} {v}")),
            );
        }
        (Value::Array(a), Value::Array(b)) => {
            for (at, (a, b)) in a.iter().zip(b).enumerate() {
                compare(&format!("{path}[{at}]"), a, b, wrong, missing);
            }
        }
        _ if ours == golden => {}
        _ => wrong.push(format!("{path}: {ours} instead of {golden}")),
    }
}
