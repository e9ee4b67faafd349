//! Measures the memory of an API server with many custom kinds: the definitions of a few dozen projects in one cluster.

use std::fs;

use serde_json::{Map, Value, json};

use super::{
    api::{Bench, NAMESPACE},
    h2load::Load,
    table::{Better, Column},
};
use crate::{
    error::{During, Result},
    file::{create_directory, write},
    run::{output, pass},
};

const KINDS: usize = 500;
const OBJECTS_OF_KIND: u32 = 16;
const GROUP: &str = "kinds.bench.example.com";
/// The sizes in bytes of the smallest definition and of each tenth of 468 definitions of 16 public projects (Argo,
/// cert-manager, Crossplane, Gatekeeper, Gateway API, Istio, KEDA, Kueue, OpenShift, the Prometheus operator and
/// others). The largest has 1.2 MB; the last size gives the largest tenth its total.
const SIZES: [usize; 11] =
    [446, 3_282, 6_441, 9_879, 12_201, 13_834, 15_765, 20_447, 30_989, 56_457, 480_000];
pub(super) fn measure(mut bench: Bench) -> Result<Column> {
    bench.prepare_namespace()?;
    bench.memory("no custom kind", None);
    create_kinds(&bench)?;
    for index in 0..KINDS {
        create_objects(&mut bench, index)?;
    }
    let count = KINDS * OBJECTS_OF_KIND as usize;
    bench.memory(&format!("{KINDS} custom kinds with {count} objects"), Some(12.0));
    for document in ["v3", "v2"] {
        let raw = format!("/openapi/{document}");
        output(bench.control_plane.kubectl().args(["get", "--raw", &raw]))?;
        bench.memory(&format!("… after /openapi/{document}"), None);
    }
    bench.control_plane.kill();
    let ready = bench.control_plane.start_api_server()?.as_secs_f64();
    bench.note(&format!("{KINDS} custom kinds stored, to /readyz"), "s", Better::Less, None, ready);
    bench.memory("… after a restart", None);
    let all = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    output(bench.control_plane.kubectl().args(["delete", "--raw", all]))?;
    let mut gone = bench.control_plane.kubectl();
    pass(gone.args(["wait", "--for=delete", "crd", "--all", "--timeout=10m"]))?;
    bench.memory("… after their deletion", None);
    Ok(bench.measured())
}

fn create_kinds(bench: &Bench) -> Result<()> {
    let directory = bench.control_plane.directory.join("kinds");
    create_directory(&directory)?;
    for index in 0..KINDS {
        let path = directory.join(format!("{index}.json"));
        write(&path, definition(index).to_string())?;
    }
    let mut create = bench.control_plane.kubectl();
    create.args(["create", "--validate=false", "--filename"]).arg(&directory);
    output(&mut create)?;
    let mut established = bench.control_plane.kubectl();
    established.args(["wait", "--for=condition=Established", "crd", "--all", "--timeout=10m"]);
    output(&mut established)?;
    fs::remove_dir_all(&directory).during("removing", directory.display())
}

fn create_objects(bench: &mut Bench, index: usize) -> Result<()> {
    let object = json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": format!("Kind{index}"),
        "metadata": {"generateName": "load-", "labels": {"app": "web"}},
        "spec": {"field0": "value", "field1": "value", "unknown": "pruned"},
    });
    let path = bench.body("custom-object", &object.to_string())?;
    let url = bench.control_plane.url();
    let load = Load {
        url: format!("{url}/apis/{GROUP}/v1/namespaces/{NAMESPACE}/kind{index}s"),
        body: Some(&path),
        ..bench.load("", OBJECTS_OF_KIND, 1, 1)
    };
    load.run(&bench.token).map(drop)
}

/// Returns the definition of a custom kind. The sizes of all definitions are distributed like those of [`SIZES`], and
/// one in ten has a second version. Most of the text is descriptions, and the same types occur several times.
fn definition(index: usize) -> Value {
    let place = index * (SIZES.len() - 1);
    let (tenth, rest) = (place / KINDS, place % KINDS);
    let size = SIZES[tenth] + (SIZES[tenth + 1] - SIZES[tenth]) * rest / KINDS;
    let versions: &[&str] = if index % 10 == 5 { &["v1", "v1beta1"] } else { &["v1"] };
    let schema = schema(size / versions.len());
    let version = |name: &&str| {
        json!({
            "name": name, "served": true, "storage": *name == "v1",
            "schema": {"openAPIV3Schema": schema},
            "subresources": {"status": {}},
            "additionalPrinterColumns": [{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}],
        })
    };
    let (kind, plural) = (format!("Kind{index}"), format!("kind{index}s"));
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{GROUP}")},
        "spec": {
            "group": GROUP, "scope": "Namespaced",
            "names": {"plural": plural, "kind": kind},
            "versions": versions.iter().map(version).collect::<Vec<_>>(),
        },
    })
}

/// Returns a schema with about `size` bytes of JSON.
fn schema(size: usize) -> Value {
    let (mut properties, mut used, mut number) = (Map::new(), 0, 0);
    while used < size {
        // Every seventh member is a type of its own, and the others repeat one of five.
        let member = if number % 7 == 6 { structure(number) } else { structure(number % 5) };
        used += member.to_string().len();
        properties.insert(format!("field{number}"), if number < 2 { text(number) } else { member });
        number += 1;
    }
    json!({
        "type": "object",
        "properties": {
            "apiVersion": text(0), "kind": text(1), "metadata": {"type": "object"},
            "spec": {"type": "object", "properties": properties},
            "status": {"type": "object", "properties": {"phase": text(2)}},
        },
    })
}

/// Returns a type with a dozen members: strings, bounded lists, enumerations, defaults, patterns and a rule.
fn structure(number: usize) -> Value {
    let mut members: Map<String, Value> =
        (0..9).map(|member| (format!("member{number}x{member}"), text(number + member))).collect();
    let list =
        json!({"type": "array", "maxItems": 8, "items": {"type": "string", "maxLength": 63}});
    members.insert("list".to_owned(), list);
    let mode = json!({"type": "string", "enum": ["Always", "Never"], "default": "Always"});
    members.insert("mode".to_owned(), mode);
    let pattern = format!("^[a-z0-9]([-a-z0-9]{{0,{}}}[a-z0-9])?$", number % 50 + 8);
    members
        .insert("name".to_owned(), json!({"type": "string", "maxLength": 63, "pattern": pattern}));
    let rule = json!([{"rule": "!has(self.mode) || self.mode != 'Never' || has(self.name)"}]);
    json!({"type": "object", "properties": members, "x-kubernetes-validations": rule})
}

fn text(number: usize) -> Value {
    let words = ["the object", "a name", "the time after which", "is optional", "must be unique"];
    let description: Vec<&str> = (0..12).map(|at| words[(number + at * at) % 5]).collect();
    json!({"type": "string", "description": description.join(" ")})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_definitions_are_distributed_like_real_ones() {
        // Every tenth is enough, because the sizes grow steadily.
        let sizes: Vec<usize> =
            (0..KINDS).step_by(10).map(|index| definition(index).to_string().len()).collect();
        let total = sizes.iter().sum::<usize>() * 10;
        assert!((15_000_000..30_000_000).contains(&total), "{total}");
        let median = sizes[sizes.len() / 2];
        assert!((10_000..25_000).contains(&median), "{median}");
    }
}
