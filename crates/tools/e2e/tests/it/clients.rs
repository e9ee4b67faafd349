//! Third-party client libraries.

use std::process::Command;

use e2e::shared;

mod kube_rs;

/// Returns a Python interpreter that has the Kubernetes client, preferably Debian's.
fn python() -> Option<&'static str> {
    ["/usr/bin/python3", "python3"].into_iter().find(|python| {
        let mut command = Command::new(python);
        command.args(["-c", "import kubernetes"]).output().is_ok_and(|ran| ran.status.success())
    })
}

#[test]
fn the_python_client_works() {
    let Some(python) = python() else {
        eprintln!("skipped: no Python client (Debian: apt-get install python3-kubernetes)");
        return;
    };
    let s = shared("clients-python");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/clients/client.py");
    let kubeconfig = s.cluster.kubeconfig().display().to_string();
    let output = s.on_node(python, &[script, &kubeconfig, &s.namespace, "box:1"]).ok();
    let done: Vec<&str> = output.lines().filter_map(|line| line.strip_prefix("ok: ")).collect();
    let wanted = [
        "create, get, list",
        "watch",
        "conflict",
        "apply",
        "dynamic client and rollout",
        "exec",
        "logs",
    ];
    assert_eq!(done, wanted, "{output}");
}
