//! Input that is no good: it is refused with upstream's words, and everything goes on.

use std::fs;

use e2e::shared;

#[test]
fn malformed_and_oversize_bodies_are_refused() {
    let s = shared("mistakes-bodies");
    let path = "/api/v1/namespaces/mistakes-bodies/configmaps";
    for body in [
        "{",
        "[]",
        "null",
        "{\"kind\":1}",
        "{\"apiVersion\":\"v1\",\"kind\":\"Secret\",\"metadata\":{\"name\":\"a\"}}",
    ] {
        let refused = s.kubectl_with(&["create", "--raw", path, "-f", "-"], body).refused();
        assert!(refused.contains("Error from server"), "{body}: {refused}");
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("large");
    fs::write(&file, "x".repeat(4 << 20)).unwrap();
    let refused =
        s.kubectl(&format!("create configmap large --from-file={}", file.display())).refused();
    assert!(refused.contains("Request entity too large: limit is 3145728"), "{refused}");
    let deep = format!(
        "{{\"kind\":\"ConfigMap\",\"apiVersion\":\"v1\",\"metadata\":{}",
        "{\"a\":".repeat(100_000)
    );
    s.kubectl_with(&["create", "--raw", path, "-f", "-"], &deep).refused();
    s.kubectl("create configmap fine").ok();
}

#[test]
fn a_static_pod_follows_its_file_even_after_half_of_one() {
    let s = shared("mistakes-static");
    let node = s.field("nodes", "{.items[0].metadata.name}");
    let directory = s.cluster.root().join("etc/kubernetes/manifests");
    let manifest = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"fixed","namespace":"mistakes-static"},
        "spec":{"containers":[{"name":"c","image":"box:1"}]}}"#;
    fs::write(directory.join("fixed.json"), &manifest[..60]).unwrap();
    fs::write(directory.join("junk.yaml"), "\u{0}: [").unwrap();
    fs::write(directory.join("fixed.json"), manifest).unwrap();
    let pod = format!("pod/fixed-{node}");
    s.until(&format!("get {pod} -o jsonpath={{.status.phase}}"), |phase| phase == "Running");
    fs::remove_file(directory.join("junk.yaml")).unwrap();
    fs::remove_file(directory.join("fixed.json")).unwrap();
    s.kubectl(&format!("wait {pod} --for=delete --timeout=90s")).ok();
}
