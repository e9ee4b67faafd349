//! Custom resources.

use e2e::shared;

fn definition(plural: &str, kind: &str) -> String {
    format!(
        r#"{{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{{"name":"{plural}.example.com"}},
        "spec":{{"group":"example.com","scope":"Namespaced","names":{{"plural":"{plural}","kind":"{kind}"}},"versions":[{{"name":"v1",
        "served":true,"storage":true,"subresources":{{"status":{{}},"scale":{{"specReplicasPath":".spec.replicas",
        "statusReplicasPath":".status.replicas"}}}},
        "additionalPrinterColumns":[{{"name":"Size","type":"integer","jsonPath":".spec.replicas"}}],
        "schema":{{"openAPIV3Schema":{{"type":"object","properties":{{"spec":{{"type":"object","description":"What is wanted.",
        "required":["replicas"],"properties":{{"replicas":{{"type":"integer","minimum":0}},
        "colour":{{"type":"string","default":"blue","enum":["blue","green"]}}}}}},
        "status":{{"type":"object","properties":{{"replicas":{{"type":"integer"}}}}}}}}}}}}}}]}}}}"#
    )
}

#[test]
fn defines_uses_and_removes_a_custom_kind() {
    let s = shared("custom-kind");
    s.apply(&definition("boats", "Boat"));
    s.kubectl("wait crd/boats.example.com --for=condition=Established --timeout=60s").ok();
    let boat = r#"{"apiVersion":"example.com/v1","kind":"Boat","metadata":{"name":"b"},"spec":{"replicas":2}}"#;
    s.until("api-resources --api-group=example.com -o name", |names| {
        names.contains("boats.example.com")
    });
    s.apply(boat);
    assert_eq!(s.field("boat b", "{.spec.colour}"), "blue");
    let table = s.kubectl("get boats").ok();
    assert!(
        table.contains("SIZE") && table.lines().nth(1).is_some_and(|row| row.contains('2')),
        "{table}"
    );
    s.kubectl("scale boat b --replicas=5").ok();
    assert_eq!(s.field("boat b", "{.spec.replicas}"), "5");
    for (mistake, message) in [
        (boat.replace(":2", ":-1"), "should be greater than or equal to 0"),
        (
            boat.replace("\"replicas\":2", "\"colour\":\"red\",\"replicas\":2"),
            "Unsupported value: \"red\"",
        ),
        (boat.replace("\"replicas\":2", "\"colour\":\"green\""), "Required value"),
        (
            boat.replace("\"replicas\":2", "\"replicas\":2,\"sail\":1"),
            "unknown field \"spec.sail\"",
        ),
    ] {
        let refused =
            s.kubectl_with(&["create", "--dry-run=server", "-f", "-"], &mistake).refused();
        assert!(refused.contains(message), "{message:?} is not in {refused}");
    }
    let output = s.until("explain boats.spec", |text| text.contains("replicas"));
    assert!(output.contains("What is wanted."), "{output}");
    s.kubectl("delete crd boats.example.com --wait=true").ok();
    s.until("api-resources --api-group=example.com -o name", |names| !names.contains("boats"));
}

#[test]
fn deleting_a_definition_deletes_its_objects() {
    let s = shared("custom-gone");
    s.apply(&definition("rafts", "Raft"));
    s.kubectl("wait crd/rafts.example.com --for=condition=Established --timeout=60s").ok();
    s.until("explain rafts.spec", |text| text.contains("replicas"));
    s.apply(r#"{"apiVersion":"example.com/v1","kind":"Raft","metadata":{"name":"r"},"spec":{"replicas":1}}"#);
    s.kubectl("delete crd rafts.example.com --wait=true").ok();
    s.apply(&definition("rafts", "Raft"));
    s.kubectl("wait crd/rafts.example.com --for=condition=Established --timeout=60s").ok();
    s.until("get rafts -o name", str::is_empty);
    s.kubectl("delete crd rafts.example.com --wait=true").ok();
}
