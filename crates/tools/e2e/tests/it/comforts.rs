//! Commands around a cluster of `up`: kubectl, logs, completion scripts, and the bundle for a report of a problem.

use std::{fs, path::Path};

use e2e::{Cluster, Session, binary, share_machine, tool, until};

/// Secrets as users have them: in a Secret, in a variable, and in the arguments of a Pod.
const OBJECTS: &str = r#"{"apiVersion": "v1", "kind": "List", "items": [
    {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "known"},
        "stringData": {"password": "correct horse battery", "line": "first-line-of-it\nsecond-line-of-it"}},
    {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "careless",
            "annotations": {"note": "annotated-secret"}},
        "spec": {"containers": [{"name": "c", "image": "box:1",
            "args": ["--password=argument-secret", "first-line-of-it"],
            "env": [{"name": "KEY", "value": "environment-secret"}]}]}}]}"#;
const KNOWN: [&str; 7] = [
    "correct horse battery",
    "Y29ycmVjdCBob3JzZSBiYXR0ZXJ5",
    "first-line-of-it",
    "second-line-of-it",
    "annotated-secret",
    "argument-secret",
    "environment-secret",
];

/// Returns the parts of the cluster's keys that no file of a bundle may contain.
fn keys(cluster: &Cluster) -> Vec<String> {
    let pki = cluster.root().join("etc/kubernetes/pki");
    let names = ["ca.key", "sa.key", "apiserver.key", "front-proxy-ca.key"];
    let text = names.map(|name| fs::read_to_string(pki.join(name)).unwrap());
    text.iter().filter_map(|key| key.lines().nth(1).map(str::to_owned)).collect()
}

fn assert_absent(directory: &Path, needles: &[String]) {
    let mut files = 0;
    for entry in fs::read_dir(directory).unwrap().flatten() {
        let text = fs::read_to_string(entry.path()).unwrap();
        files += 1;
        for needle in needles {
            assert!(
                !text.contains(needle.as_str()),
                "{} contains {needle:?}",
                entry.path().display()
            );
        }
    }
    assert!(files > 15, "{files} files");
}

/// Asserts that a bundle shows why a cluster does not answer. Objects are left out, because it is unknown then
/// which values are secret.
fn shows_broken_cluster(cluster: &Cluster, needles: &[String]) {
    let directory = cluster.directory.join("broken");
    let supervisor = cluster.pid("supervisor");
    cluster.signal("STOP", supervisor);
    cluster.kill("control-plane");
    cluster.windlass(&["support-bundle", &directory.display().to_string()]).ok();
    cluster.signal("CONT", supervisor);
    assert_absent(&directory, needles);
    let text = |name: &str| fs::read_to_string(directory.join(name)).unwrap();
    assert!(
        text("status.txt").contains("the API server does not answer"),
        "{}",
        text("status.txt")
    );
    assert!(text("pods.yaml").contains("left out"), "{}", text("pods.yaml"));
    until("the control plane again", || {
        cluster.kubectl(&["get", "--raw", "/readyz"]).ok_if(|answer| answer == "ok")
    });
}

#[test]
fn commands_show_cluster_without_secrets() {
    let _turn = share_machine();
    let cluster = Cluster::new("comforts");
    cluster.up().ok();
    cluster.build_images();
    let s = Session::in_default_namespace(&cluster);
    s.apply(OBJECTS);
    s.kubectl("wait pod/careless --for=jsonpath={.status.phase}=Running --timeout=60s").ok();
    let log = cluster.windlass(&["logs", "kubelet", "--tail", "3"]).ok();
    assert_eq!(log.lines().count(), 3, "{log}");
    let log = cluster.windlass(&["logs", "kube-apiserver"]).ok();
    assert!(log.lines().count() > 3, "{log}");

    let directory = cluster.directory.join("bundle");
    let path = directory.display().to_string();
    cluster.windlass(&["support-bundle", &path]).ok();
    let needles: Vec<String> =
        KNOWN.iter().map(|known| (*known).to_owned()).chain(keys(&cluster)).collect();
    assert_absent(&directory, &needles);
    let pods = fs::read_to_string(directory.join("pods.yaml")).unwrap();
    assert!(pods.contains("name: careless") && pods.contains("<redacted>"), "{pods}");
    assert!(
        fs::read_to_string(directory.join("status.txt"))
            .unwrap()
            .contains("the API server answers")
    );
    let refused = cluster.windlass(&["support-bundle", &path]).refused();
    assert!(refused.contains("exists"), "{refused}");
    shows_broken_cluster(&cluster, &needles);

    let kubectl = tool("kubectl");
    let tools = Path::new(&kubectl).parent().unwrap().display();
    let search = format!("PATH={tools}:/usr/bin:/bin");
    let (program, root) = (binary().display().to_string(), cluster.root().display().to_string());
    let kubectl = [&*search, &program, "kubectl", "--name", &cluster.name, "--root", &root];
    let pods = cluster.run("env", &[&kubectl[..], &["get", "pod", "-o", "name"]].concat()).ok();
    assert!(pods.contains("pod/careless"), "{pods}");
    let script = cluster.run(&program, &["shell-completion", "bash"]).ok();
    assert!(script.contains("support-bundle") && script.contains("load-balancer-range"));
    cluster.down(&[]).ok();
}
